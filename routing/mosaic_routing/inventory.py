"""What the hosted engines say of themselves, in the server: who serves which queue with which model, and how busy.

Each engine has one key, which expires unless its worker writes it again within seconds: so what is read here is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_routing.queues import HOSTED
from mosaic_routing.reports import Aged, Reports

EXPIRY_S = 5.0
"""An engine that is silent for so long is gone; publish several times in that time."""


EngineState = Literal["loading", "ready", "restarting"]


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a hosted engine does at the moment; rates and means are those of the last seconds.

    Attributes:
        running: requests that are in its batch.
        waiting: requests that it took and has not begun.
        slots: how many more requests fit without any having to wait or to be preempted.
        kv_use: part of its KV cache that is in use, 0 to 1.
        ttft_s: mean time to the first token; 0 where none came.
        inter_token_s: mean time between two tokens of an answer.
        prefix_hits: part of the prompt tokens that its prefix cache knew, 0 to 1.
        preempted: how often it had to take a request out of its batch again, since its start.
        prefill_tokens_s: tokens of a prompt that it reads in a second, of one request alone; 0: not measured.
    """

    running: int = 0
    waiting: int = 0
    slots: int = 0
    kv_use: float = 0.0
    prompt_tokens_s: float = 0.0
    generated_tokens_s: float = 0.0
    ttft_s: float = 0.0
    inter_token_s: float = 0.0
    prefix_hits: float = 0.0
    preempted: int = 0
    prefill_tokens_s: float = 0.0


class EngineReport(EngineLoad, frozen=True, kw_only=True):
    """One hosted engine at one moment, and its load.

    Attributes:
        holder: incarnation of the worker that hosts it.
        queues: which the worker consumes for it.
        engine: what kind it is.
        model: alias by which agents ask for it: NAME in `vllm:NAME`.
        fingerprint: the same for all workers that host the same model in the same way.
        gpu_class: such as `cpu` or `h100`.
        at_ms: wall clock of the report.
        state: only one that is ready takes requests.
        phase: what one that is not is at.
    """

    holder: str
    queues: tuple[str, ...]
    model: str
    fingerprint: str
    gpu_class: str
    at_ms: int
    engine: str = HOSTED
    state: EngineState = "ready"
    phase: str = ""

    @property
    def title(self) -> str:
        """The model, as people are told of it: `tiny`; `simulated:tiny` where another engine than vLLM answers."""
        return self.model if self.engine == HOSTED else f"{self.engine}:{self.model}"


_REPORTS = Reports(
    "engine", EngineReport, name=lambda report: f"{report.holder}:{report.model}", expiry_s=EXPIRY_S
)
publish = _REPORTS.publish
withdraw = _REPORTS.withdraw


def engines(client: Redis, *, keys: Keys | None = None) -> list[EngineReport]:
    """The engines that are alive, by model and worker."""
    return sorted(_REPORTS.all(client, keys=keys), key=lambda report: (report.model, report.holder))


def aged_engines(client: Redis, *, keys: Keys | None = None) -> list[Aged[EngineReport]]:
    """The engines that are alive, each with the age of its report."""
    return _REPORTS.aged(client, keys=keys)


def conflict(reports: Iterable[EngineReport], queue: str, fingerprint: str) -> str | None:
    """The worker that serves `queue` with something else than `fingerprint`; None: nobody does.

    Calls of one queue go to any of its workers, so two models on one queue would answer at random.
    """
    holders = (
        report.holder for report in reports if queue in report.queues and report.fingerprint != fingerprint
    )
    return next(holders, None)


class _Metric(NamedTuple):
    name: str
    kind: str
    help: str
    value: Callable[[EngineReport], float]


METRICS = (
    _Metric("running", "gauge", "Requests in the batch.", lambda report: report.running),
    _Metric("waiting", "gauge", "Requests taken and not begun.", lambda report: report.waiting),
    _Metric("free_slots", "gauge", "Requests that it takes beside.", lambda report: report.slots),
    _Metric("kv_use_ratio", "gauge", "Part of the KV cache in use.", lambda report: report.kv_use),
    _Metric(
        "prompt_tokens_per_second", "gauge", "Prompt tokens read.", lambda report: report.prompt_tokens_s
    ),
    _Metric(
        "generated_tokens_per_second", "gauge", "Tokens written.", lambda report: report.generated_tokens_s
    ),
    _Metric("first_token_seconds", "gauge", "Mean time to the first token.", lambda report: report.ttft_s),
    _Metric(
        "inter_token_seconds", "gauge", "Mean time between two tokens.", lambda report: report.inter_token_s
    ),
    _Metric(
        "prefix_hit_ratio",
        "gauge",
        "Part of the prompt tokens found in the prefix cache.",
        lambda report: report.prefix_hits,
    ),
    _Metric(
        "preemptions_total",
        "counter",
        "Requests that had to leave the batch.",
        lambda report: report.preempted,
    ),
    _Metric(
        "reported_timestamp_seconds", "gauge", "When the engine said so.", lambda report: report.at_ms / 1000
    ),
)
"""Names are public: dashboards and alerts go by them."""


def prometheus(reports: Iterable[EngineReport]) -> str:
    """The reports in Prometheus's text format, as `mosaic_engine_*` with the labels model, class and worker."""
    return "".join(f"{line}\n" for line in _lines(list(reports)))


def _lines(reports: list[EngineReport]) -> Iterator[str]:
    for metric in METRICS:
        name = f"mosaic_engine_{metric.name}"
        yield f"# HELP {name} {metric.help}"
        yield f"# TYPE {name} {metric.kind}"
        for report in reports:
            yield f"{name}{_labels(report)} {metric.value(report):.15g}"


def _labels(report: EngineReport) -> str:
    values = {"model": report.title, "class": report.gpu_class, "worker": report.holder}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


__all__ = [
    "EXPIRY_S",
    "EngineLoad",
    "EngineReport",
    "EngineState",
    "aged_engines",
    "conflict",
    "engines",
    "prometheus",
    "publish",
    "withdraw",
]
