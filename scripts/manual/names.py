"""The pages of what has a name that people rely on: settings, figures, errors, tasks and events."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, get_args

from manual.words import fields_of, is_error, page, plain, table, unwrapped

ELSEWHERE = {
    "MOSAIC_MODEL": ("`extractive`", "model of the agents that name none: `openai:NAME`, `vllm:NAME`, `replay:FILE`"),
    "MOSAIC_ENDPOINTS": ("", "file that names several servers behind a model of `openai:`"),
    "MOSAIC_PRICES": ("", "JSON file of prices by model"),
    "MOSAIC_REPLAY_SPEED": ("1", "how much faster than recorded the engine `replay` answers; `max`: without waiting"),
    "MOSAIC_MACHINE_ADDRESS": ("found out", "address by which other machines reach this one, where it has several"),
    "MOSAIC_DEBUG": ("off", "the command line shows the traceback of an error"),
    "OPENAI_BASE_URL": ("OpenAI's", "server of `openai:` models"),
    "OPENAI_API_KEY": ("", "its key"),
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("", "collector of traces, which are sent where it is set"),
    "OTEL_SERVICE_NAME": ("`mosaic_tasks`", "name of the service in traces"),
    "OTEL_TRACES_SAMPLER": ("`always_on`", "`traceidratio`: a part of the runs is traced"),
    "OTEL_TRACES_SAMPLER_ARG": ("1", "which part"),
}  # fmt: skip
"""Variables that are read where they are needed: their defaults and meanings."""


def settings_page() -> str:
    """Every environment variable."""
    from mosaic_queues.settings import Settings
    from mosaic_tasks.webhooks.configuration import WebhookSettings

    rows = [
        (
            f"`{model.model_config['env_prefix']}{name.upper()}`",
            _default(field.get_default()),
            field.description,
        )
        for model in (Settings, WebhookSettings)
        for name, field in model.model_fields.items()
    ]
    rows += [(f"`{name}`", *told) for name, told in ELSEWHERE.items()]
    return page(
        "Settings",
        "Environment variables of all processes alike. Sizes in bytes, times in seconds. A value that cannot be used "
        "is told as soon as a process reads it. OpenTelemetry's other variables (`OTEL_*`) are those of its SDK.",
        table(("variable", "default", "meaning"), rows),
    )


def _default(value: Any) -> str:
    shown = value.get_secret_value() if hasattr(value, "get_secret_value") else value
    return "" if shown in (None, "") else f"`{plain(shown)}`"


def metrics_page() -> str:
    """What Prometheus is told."""
    from prometheus_client.metrics_core import Metric

    from mosaic_routing.inventory import METRICS
    from mosaic_tasks.gateway.metrics import Meter
    from mosaic_tasks.observability.exposition import GAUGES
    from mosaic_tasks.observability.figures import FIGURES

    def row(name: str, kind: str, labels: Iterable[str], about: str) -> tuple[str, ...]:
        total = "_total" if kind == "counter" and not name.endswith("_total") else ""
        return f"`{name}{total}`", kind, ", ".join(f"`{label}`" for label in labels), about

    def of_gateway(found: Metric, labels: Iterable[str]) -> tuple[str, ...]:
        return row(found.name, found.type, labels, found.documentation)

    deployment = [row(f"mosaic_{each.name}", "gauge", each.labels, each.about) for each in GAUGES]
    deployment += [
        row(f"mosaic_{each.name}", each.kind, each.labels, each.about) for each in FIGURES.values()
    ]
    labels = ("model", "class", "worker")
    hosted = [row(f"mosaic_engine_{each.name}", each.kind, labels, each.help) for each in METRICS]
    meters = [each for each in vars(Meter()).values() if hasattr(each, "_labelnames")]
    gateway = [of_gateway(next(iter(each.describe())), each._labelnames) for each in meters]
    columns = ("figure", "kind", "labels", "meaning")
    return page(
        "Metrics",
        "What Prometheus is told. [Watching runs](../observability.md) says what to know of these figures.",
        "## Of a deployment\n\n`mosaic metrics` answers for all of it; one process is enough.",
        table(columns, deployment),
        "## Of engines that workers host\n\n`mosaic metrics` too.",
        table(columns, hosted),
        "## Of a gateway\n\nEach gateway answers for its own process at `/metrics`, to who has the scope `operate`.",
        table(columns, gateway),
    )


def errors_page() -> str:
    """The tree of errors, and what to do about each."""
    from mosaic_queues import errors
    from mosaic_tasks.cli.exits import code_of
    from mosaic_tasks.gateway.problems import STATUS

    title, _, tree = (errors.__doc__ or "").partition("\n\n")
    kinds = [each for each in vars(errors).values() if is_error(each) and each.__module__ == errors.__name__]

    def status(kind: type) -> str:
        found = next((STATUS[each] for each in kind.__mro__ if each in STATUS), None)
        return str(found.value) if found else ""

    rows = [
        (f"`{kind.__name__}`", unwrapped(inspect.getdoc(kind).split("\n\n")[0]), _remedy(kind),
         str(int(code_of(kind.__new__(kind)))), status(kind))
        for kind in kinds
    ]  # fmt: skip
    return page(
        "Errors",
        f"{title} `mosaic_queues.errors` has them all; a message says what is wrong, with the value, and what to do.",
        f"```text\n{tree.rstrip()}\n```",
        "The exit code is that of `mosaic`; the status that of the gateway, 500 where there is none.",
        table(("error", "meaning", "what to do", "exit code", "status"), rows),
    )


def _remedy(kind: type) -> str:
    """What its docstring, or that of the error above it, says under `Remedy`."""
    for each in kind.__mro__:
        found = re.search(r"Remedy: (.*?)(?:\n\n|\Z)", inspect.getdoc(each) or "", re.DOTALL)
        if found:
            return unwrapped(found[1])
    return ""


def tasks_page() -> str:
    """Names of tasks, and kinds of events."""
    from celery import Celery

    from mosaic_queues import events
    from mosaic_tasks.inspection import parts
    from mosaic_tasks.tasks import register

    app = Celery("reference", set_as_current=False)
    register(app)
    tasks = [(f"`{name}`", unwrapped(inspect.getdoc(task) or ""), f"`{_given(task)}`")
             for name, task in sorted(app.tasks.items()) if name.startswith("mosaic.")]  # fmt: skip
    kinds = [(f"`{kind}`", about) for kind, about in _commented(inspect.getsource(events), "EventKind")]
    assert [f"`{kind}`" for kind in get_args(events.EventKind)] == [kind for kind, _ in kinds]
    return page(
        "Tasks and events",
        "What messages of Celery, events of runs and events of streams are called.",
        "## Celery tasks\n\nAll that the worker's step registers; "
        "[from Celery](../adopting.md) tells when to send `mosaic.submit`.",
        table(("task", "what it does", "arguments"), tasks),
        "## Events of a run\n\nWhat `mosaic events`, `run.events()` and `/v1/runs/{run_id}/events` tell, in order.",
        table(("kind", "meaning"), kinds),
        "The fields of an event:",
        fields_of(events.Event),
        "## Events of a stream\n\nWhat `mosaic stream`, `run.stream()` and `/v1/runs/{run_id}/stream` tell.",
        fields_of(parts.StreamEvent),
    )


def _given(task: Any) -> str:
    parameters = inspect.signature(task.run).parameters.values()
    return ", ".join(str(each.replace(annotation=each.empty)) for each in parameters)


def _commented(source: str, name: str) -> list[tuple[str, str]]:
    """The words of a `Literal`, and the comment behind each."""
    _, _, body = source.partition(f"{name} = Literal[")
    return re.findall(r'"(\w+)",  # (.*)', body.partition("\n]")[0])
