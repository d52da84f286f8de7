"""What the hosted engines say of themselves, in the server: who serves which queue with which model, and how busy.

Each engine has one key, which expires unless its worker writes it again within seconds: so what is read here is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, cast

import msgspec
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_queues.settings import settings

EXPIRY_S = 5.0
"""An engine that is silent for so long is gone; publish several times in that time."""
_FORGET_AFTER_MS = 60_000
"""Names stay in the index for so long after their last report: the clocks of machines differ."""


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One hosted engine at one moment; the figures are those of `mosaic_tasks.engines.protocol.EngineLoad`.

    Attributes:
        holder: incarnation of the worker that hosts it.
        queues: which the worker consumes for it.
        model: alias by which agents ask for it: NAME in `vllm:NAME`.
        fingerprint: the same for all workers that host the same model in the same way.
        gpu_class: such as `cpu` or `h100`.
        at_ms: wall clock of the report.
        running: requests in its batch.
        waiting: requests that it took and has not begun.
        slots: how many more requests it takes.
        kv_use: part of its KV cache in use, 0 to 1.
        ttft_s: mean time to the first token in the last seconds.
        inter_token_s: mean time between two tokens.
        prefix_hits: part of the prompt tokens that its prefix cache knew, 0 to 1.
        preempted: how often a request had to leave the batch, since its start.
    """

    holder: str
    queues: tuple[str, ...]
    model: str
    fingerprint: str
    gpu_class: str
    at_ms: int
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


def publish(
    client: Redis, report: EngineReport, *, keys: Keys | None = None, expiry_s: float = EXPIRY_S
) -> None:
    """Writes the engine's report in the place of its last one.

    Args:
        keys: names of the keys; default: in the namespace of the settings.
        expiry_s: how long it is believed.
    """
    keys, expiry_ms = keys or _keys(), int(expiry_s * 1000)
    name, index = _key(keys, report), _index(keys)
    with client.pipeline(transaction=False) as pipe:
        pipe.set(name, msgspec.json.encode(report), px=expiry_ms)
        pipe.zadd(index, {name: report.at_ms})
        pipe.zremrangebyscore(index, "-inf", report.at_ms - _FORGET_AFTER_MS - expiry_ms)
        pipe.pexpire(index, _FORGET_AFTER_MS + expiry_ms)
        pipe.execute()


def withdraw(client: Redis, report: EngineReport, *, keys: Keys | None = None) -> None:
    """Takes the engine out at once: it ends, and nobody shall count on it."""
    keys = keys or _keys()
    with client.pipeline(transaction=False) as pipe:
        pipe.delete(_key(keys, report))
        pipe.zrem(_index(keys), _key(keys, report))
        pipe.execute()


def engines(client: Redis, *, keys: Keys | None = None) -> list[EngineReport]:
    """The engines that are alive, by model and worker."""
    names = cast("list[bytes]", client.zrange(_index(keys or _keys()), 0, -1))
    found = cast("list[bytes | None]", client.mget(names)) if names else []
    reports = [msgspec.json.decode(raw, type=EngineReport) for raw in found if raw]
    return sorted(reports, key=lambda report: (report.model, report.holder))


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


_METRICS = (
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
    for metric in _METRICS:
        name = f"mosaic_engine_{metric.name}"
        yield f"# HELP {name} {metric.help}"
        yield f"# TYPE {name} {metric.kind}"
        for report in reports:
            yield f"{name}{_labels(report)} {metric.value(report):.15g}"


def _labels(report: EngineReport) -> str:
    values = {"model": report.model, "class": report.gpu_class, "worker": report.holder}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _keys() -> Keys:
    return Keys(settings().namespace)


def _index(keys: Keys) -> str:
    """Sorted set of the engines' keys, by time of their last report (ms)."""
    return f"{keys.namespace}:engines"


def _key(keys: Keys, report: EngineReport) -> str:
    """What an engine says of itself; expires with it."""
    return f"{keys.namespace}:engine:{report.holder}:{report.model}"


__all__ = ["EXPIRY_S", "EngineReport", "conflict", "engines", "prometheus", "publish", "withdraw"]
