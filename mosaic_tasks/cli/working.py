"""The command that works: worker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer


class Pool(StrEnum):
    """How a worker runs several messages at once."""

    PREFORK = "prefork"
    SOLO = "solo"
    THREADS = "threads"


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
            help="Queues to serve. Default: mosaic.cpu and that of MOSAIC_MODEL.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, help="Messages at once. Default: one a processor."),
    ] = None,
    pool: Annotated[
        Pool, typer.Option("--pool", "-P", help="Processes, threads, or one at a time.")
    ] = Pool.PREFORK,
    name: Annotated[
        str | None,
        typer.Option("--name", "-n", help="Name among the workers of this machine. Default: by pid."),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option("--log-level", "-l", help="What to log.")] = LogLevel.INFO,
    celery_options: Annotated[
        list[str] | None, typer.Argument(metavar="-- CELERY_OPTIONS", help="Passed on to `celery worker`.")
    ] = None,
) -> None:
    """Start a worker, which runs the calls of workflows.

    It is `celery -A mosaic_tasks.app worker` with task events on and without gossip, mingle and heartbeat.
    Modules with tools are found in the current directory. Ctrl-C once: finish what runs; twice: stop at once,
    nothing is lost.

    \b
    Examples:
      mosaic worker
      mosaic worker --queues mosaic.cpu,mosaic.api.openai --concurrency 8 --pool threads
      mosaic worker -- --max-tasks-per-child 100
    """
    from click import ClickException

    from mosaic_queues.connection import connect
    from mosaic_tasks.app import app
    from mosaic_tasks.execution.process import ledger_url

    connect(ledger_url(app)).close()
    arguments = worker_arguments(
        queues=queues.split(",") if queues else default_queues(os.environ.get("MOSAIC_MODEL")),
        concurrency=concurrency,
        pool=pool,
        name=name or f"mosaic-{os.getpid()}",
        log_level=log_level,
        more=celery_options or [],
    )
    try:
        app.worker_main(arguments)
    except ClickException as error:
        raise typer.BadParameter(f"celery: {error.format_message()}") from error


def default_queues(model: str | None) -> list[str]:
    """The queue of tools, and that of agents without a model of their own."""
    from mosaic_routing.queues import CPU, queue_for

    return list(dict.fromkeys((CPU, queue_for("agent", model))))


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
    arguments = ["worker", "--task-events", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    arguments += ["--queues", ",".join(queue.strip() for queue in queues if queue.strip())]
    arguments += ["--pool", str(pool), "--hostname", name if "@" in name else f"{name}@%h"]
    arguments += ["--loglevel", str(log_level)]
    if concurrency is not None:
        arguments += ["--concurrency", str(concurrency)]
    return [*arguments, *more]
