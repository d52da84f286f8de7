"""The command that works: worker."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.cli.options import utf8
from mosaic_tasks.cli.output import print_json_line

if TYPE_CHECKING:
    from celery import Celery

    from mosaic_queues.topology import WorkerGroup
    from mosaic_tasks.engines.hosted import HostedSpec
    from mosaic_tasks.logs import Form


SLOTS = 256
"""Calls at once in the async pool; engines that have no room for so many lower it."""
HEARTBEAT_S = 10
"""By these Flower knows that a worker is there that has nothing to do; it forgets one after two minutes of silence."""
DEFAULT_CLASS = "cpu"
_CLASS = re.compile(r"[a-z0-9][a-z0-9-]*")


def gpu_class(value: str | None) -> str | None:
    """Refuses what cannot be a part of a queue's name."""
    if value is not None and not _CLASS.fullmatch(value):
        raise typer.BadParameter(
            f"{value!r} is no GPU class; write one in small letters, digits and '-', such as h100 or a100-80, or cpu"
        )
    return value


class Pool(StrEnum):
    """How a worker runs several calls at once."""

    PREFORK = "prefork"
    SOLO = "solo"
    THREADS = "threads"
    ASYNC = "async"


class LogLevel(StrEnum):
    """How much a worker says."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def worker(
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues",
            "-Q",
            metavar="A,B",
            callback=utf8,
            help="Queues to serve. Default: mosaic.cpu and that of MOSAIC_MODEL; with --model, those of the models; "
            "with --group, the group's.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            help=f"Messages at once; with the async pool, calls. Default: one a processor; async: {SLOTS}.",
        ),
    ] = None,
    pool: Annotated[
        Pool | None,
        typer.Option(
            "--pool",
            "-P",
            help="Processes, threads, one at a time, or one event loop for hundreds of coroutines (async). "
            "Default: prefork; with --model: async.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="NAME",
            help="Start one of the workers of this group of the topology; other options go before what it says.",
        ),
    ] = None,
    class_name: Annotated[
        str | None,
        typer.Option(
            "--class",
            "--gpu",
            metavar="CLASS",
            callback=gpu_class,
            help="GPU class of this machine, such as h100; or cpu. Default: that of its first GPU, cpu without one.",
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="SPEC",
            help="Model to host with vLLM: its name in the model pool, its folder, its name elsewhere, or a YAML file "
            "of its settings. May be repeated.",
        ),
    ] = None,
    engine_options: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-option", metavar="NAME=VALUE", help="Argument of vLLM's engine. May be repeated."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", "-n", callback=utf8, help="Name among the workers of this machine. Default: by pid."
        ),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option("--log-level", "-l", help="What to log.")] = LogLevel.INFO,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one line of JSON once it works, and log as lines of JSON."),
    ] = False,
    celery_options: Annotated[
        list[str] | None, typer.Argument(metavar="-- CELERY_OPTIONS", help="Passed on to `celery worker`.")
    ] = None,
) -> None:
    """Start a worker, which runs the calls of workflows.

    It is `celery -A mosaic_tasks.app worker` with task events on, a heartbeat each 10 s and no gossip or mingle.
    Modules with tools are found in the current directory. Ctrl-C once: finish what runs; twice: stop at once,
    nothing is lost. Exit code 1: it ended by an error, which its log tells.

    With --model it hosts models, which agents name vllm:ALIAS (the alias is the name in the pool, the folder's, or what
    the YAML file says), on the queues mosaic.gpu.ALIAS, mosaic.CLASS.ALIAS and one of its own, and on no others. It
    takes calls once each model has given a token.

    With --group it does what the topology says of the group: `mosaic topology` shows it.

    With --json it prints one line when it is ready: name, pid, queues, pool, concurrency and server; its log, on
    stderr, has one JSON document a line.

    \b
    Examples:
      mosaic worker
      mosaic worker --queues mosaic.cpu,mosaic.api.openai --concurrency 8 --pool threads
      mosaic worker --pool async --queues mosaic.api.openai
      mosaic worker --class h100 --model /models/llama-3.1-8b
      mosaic worker --class cpu --model smollm2.yaml --engine-option block_size=32
      mosaic worker --group api --concurrency 64
      mosaic worker --json 2> worker.log
      mosaic worker -- --max-tasks-per-child 100
    """
    from mosaic_queues.connection import connect, server_urls
    from mosaic_tasks.app import app
    from mosaic_tasks.execution.process import ledger_url

    chosen = _effective(group, class_name=class_name, options=engine_options or [])
    hosted = _host(app, chosen, models, class_name=class_name, options=engine_options or [])
    served = _served(queues, chosen, hosted)
    pool = pool or _pool(chosen, hosted)
    if hosted and pool is not Pool.ASYNC:
        raise typer.BadParameter(f"a model is hosted in the async pool, not in {pool}", param_hint="--pool")
    concurrency = concurrency or (chosen.concurrency if chosen else None)
    if pool is Pool.ASYNC:
        app.conf.worker_pool = "mosaic_tasks.pool:TaskPool"
        concurrency = concurrency or SLOTS
    url = ledger_url(app) or server_urls().redis_url
    connect(url).close()
    arguments = worker_arguments(
        queues=served,
        concurrency=concurrency,
        pool=pool,
        name=name or f"{group or 'mosaic'}-{os.getpid()}",
        log_level=log_level,
        more=celery_options or [],
    )
    _log(app, log_level, "json" if as_json else "text")
    if as_json:
        _speak_json(url, pool=pool)
        arguments.insert(0, "--quiet")
    raise typer.Exit(_work(app, arguments))


def _effective(group: str | None, *, class_name: str | None, options: Sequence[str]) -> WorkerGroup | None:
    """A group of the topology, with what the command line says of class and engine in the place of what it says.

    Raises:
        ConfigurationError: there is no such group, or the topology cannot be read.
    """
    from mosaic_queues.topology import topology

    if group is None:
        return None
    found = topology().group(group)
    return found.model_copy(
        update={
            "gpu_class": class_name or found.gpu_class,
            "options": {**found.options, **_options(options)},
        }
    )


def _options(words: Sequence[str]) -> dict[str, Any]:
    from mosaic_tasks.engines.vllm.spec import option

    return dict(option(word) for word in words)


def _host(
    app: Celery,
    group: WorkerGroup | None,
    sources: list[str] | None,
    *,
    class_name: str | None,
    options: Sequence[str],
) -> list[str]:
    """Has the app's workers host models: those named, or else those of the group; returns the queues of these.

    Raises:
        ConfigurationError: a model's settings are of no use, or the pool does not have it on this class.
    """
    from mosaic_routing.queues import hosting_queues
    from mosaic_tasks.execution.hosted_models import host_models

    if not sources and not (group and group.models):
        _refuse_class(class_name, options)
        return []
    specs, name = _specs(
        sources, group, told=class_name or (group.gpu_class if group else None), options=options
    )
    aliases = [spec.alias for spec in specs]
    if len(set(aliases)) < len(aliases):
        raise typer.BadParameter(
            f"two models have one alias: {', '.join(aliases)}; name it in a YAML file", param_hint="--model"
        )
    host_models(app, specs, gpu_class=name)
    return [queue for alias in aliases for queue in hosting_queues(name, alias)]


def _refuse_class(class_name: str | None, options: Sequence[str]) -> None:
    """Of a worker that hosts nothing."""
    if class_name or options:
        raise typer.BadParameter(
            "it is for a worker that hosts a model; name that too: --model SPEC",
            param_hint="--class" if class_name else "--engine-option",
        )


def _specs(
    sources: list[str] | None, group: WorkerGroup | None, *, told: str | None, options: Sequence[str]
) -> tuple[list[HostedSpec], str]:
    """What to host, and on which GPU class."""
    from mosaic_routing.deployment import specs_of
    from mosaic_routing.pool import pool
    from mosaic_tasks.engines.hosted import read_spec
    from mosaic_tasks.engines.simulated import SimulatedSpec
    from mosaic_tasks.engines.vllm.spec import ModelSpec, is_path

    arguments = group.options if group else _options(options)
    known = pool()
    pooled = [each for each in sources if each in known.models and not is_path(each)] if sources else None
    plain = [read_spec(each, options=arguments) for each in sources or () if each not in (pooled or ())]
    computes = not plain or bool(pooled) or not all(isinstance(spec, SimulatedSpec) for spec in plain)
    name = told or (machine_class() if computes else DEFAULT_CLASS)
    if computes:
        _check_gpu(name)
    models, gpus = (pooled, 0) if pooled is not None or group is None else (group.models, group.gpus)
    fields = specs_of(models or (), name, known, gpus=gpus, options=arguments)
    return [*plain, *map(ModelSpec.of_pool, fields)], name


def _check_gpu(name: str) -> None:
    """Refuses a GPU class where there is no GPU."""
    from mosaic_tasks.engines.vllm.gpus import why_none

    if name != DEFAULT_CLASS and (reason := why_none()):
        raise typer.BadParameter(
            f"no NVIDIA GPU here: {reason}; to compute on the processor give --class {DEFAULT_CLASS}",
            param_hint="--class",
        )


def machine_class() -> str:
    """The class of this machine's first GPU that can be used; `cpu` where it has none."""
    from mosaic_routing.amd import amd_gpus
    from mosaic_routing.gpus import Nvml
    from mosaic_tasks.engines.vllm.gpus import why_none

    nvml = Nvml()
    found = nvml.read()
    nvml.close()
    usable = [gpu for gpu in found.gpus or amd_gpus().gpus if gpu.gpu_class and not gpu.is_sliced]
    if not usable and not why_none():
        raise typer.BadParameter(f"this machine's GPU is not known: {found.why}", param_hint="--class")
    return usable[0].gpu_class if usable else DEFAULT_CLASS


def _served(queues: str | None, group: WorkerGroup | None, hosted: Sequence[str]) -> list[str]:
    """The queues of a worker, in the order of the command line, of the group, or of what is usual."""
    if queues is not None:
        served = [queue.strip() for queue in queues.split(",") if queue.strip()]
    elif group is not None:
        served = list(dict.fromkeys((*group.queues, *hosted)))
    else:
        served = list(hosted) or default_queues(os.environ.get("MOSAIC_MODEL"))
    _check_served(served, hosted)
    return served


def _check_served(served: Sequence[str], hosted: Sequence[str]) -> None:
    """Refuses queues whose calls would fail here, since their models are not hosted, and those that are not for
    workers to name."""
    from mosaic_routing.serving import unhosted, untakable, worker_commands

    if wrong := unhosted(served, hosted):
        raise typer.BadParameter(
            f"this worker would not host the model of {', '.join(map(repr, wrong))}; start instead: "
            f"{worker_commands(wrong)}",
            param_hint="--queues",
        )
    if told := next(untakable(served), None):
        raise typer.BadParameter(told, param_hint="--queues")


def _pool(group: WorkerGroup | None, hosted: Sequence[str]) -> Pool:
    """The pool of a worker that names none."""
    if hosted:
        return Pool.ASYNC
    return Pool(group.pool) if group else Pool.PREFORK


def _work(app: Celery, arguments: list[str]) -> ExitCode:
    """Works until the worker ends; 1 when nobody told it to. Celery keeps its own exit code to itself."""
    from celery import signals
    from click import ClickException

    workers: list[Any] = []
    signals.worker_init.connect(lambda sender, **_options: workers.append(sender), weak=False)
    signals.worker_shutting_down.connect(lambda **_options: workers.clear(), weak=False)
    try:
        app.worker_main(arguments)
    except ClickException as error:
        raise typer.BadParameter(f"celery: {error.format_message()}") from error
    return ExitCode.FAILED if any(worker.exitcode for worker in workers) else ExitCode.OK


def _log(app: Celery, level: str, form: Form) -> None:
    """Has the worker log in one form. Celery would set its own around ours, the time twice in each line."""
    from celery import signals

    from mosaic_tasks import logs

    @signals.setup_logging.connect(weak=False)
    def set_up(loglevel: Any, logfile: str | None, **_options: Any) -> None:
        """In the place of Celery; `--logfile` and `--loglevel` may have come behind `--`."""
        logs.configure(loglevel, form, file=logfile)
        app.log.redirect_stdouts(app.conf.worker_redirect_stdouts_level)

    logs.configure(level, form)  # what is said before


def _speak_json(url: str, *, pool: str) -> None:
    """Makes the worker say on stdout only that it is ready, and that as JSON."""
    from celery import signals

    from mosaic_queues.connection import redact
    from mosaic_tasks.execution.bootsteps import facts_of

    answer = sys.stdout
    # Where Celery remarks on signals, past its log.
    sys.__stdout__ = Path(os.devnull).open("w")  # type: ignore[misc]  # noqa: SIM115

    @signals.worker_ready.connect(weak=False)
    def announce(sender: Any, **_options: Any) -> None:
        facts = facts_of(sender.controller)
        told = {"name": facts.hostname, "pid": os.getpid(), "queues": facts.queues, "pool": str(pool)}
        told |= {"concurrency": facts.slots, "server": redact(url)}
        print_json_line(told, stream=answer)


def default_queues(model: str | None) -> list[str]:
    """The queue of tools, and that of agents without a model of their own, unless that is a hosted one."""
    from mosaic_routing.queues import CPU, queue_for
    from mosaic_routing.serving import hosted_model

    queues = dict.fromkeys((CPU, queue_for("agent", model)))
    return [queue for queue in queues if not hosted_model(queue)]


def worker_arguments(
    *,
    queues: Sequence[str],
    concurrency: int | None,
    pool: str,
    name: str,
    log_level: str,
    more: Sequence[str],
) -> list[str]:
    """The command line of `celery worker`."""
    arguments = ["worker", "--task-events", "--without-gossip", "--without-mingle"]
    arguments += ["--heartbeat-interval", str(HEARTBEAT_S)]
    arguments += ["--queues", ",".join(queue.strip() for queue in queues if queue.strip())]
    arguments += ["--hostname", name if "@" in name else f"{name}@%h"]
    arguments += [] if pool == Pool.ASYNC else ["--pool", str(pool)]  # Celery knows no name for ours
    arguments += ["--loglevel", str(log_level)]
    if concurrency is not None:
        arguments += ["--concurrency", str(concurrency)]
    return [*arguments, *more]
