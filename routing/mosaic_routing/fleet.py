"""The targets that there are now: what workers report, put together with what the model pool says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from mosaic_routing.classes import gpu_class
from mosaic_routing.inventory import EngineReport
from mosaic_routing.pool import API, Deployment, ModelPool, Speed
from mosaic_routing.queues import API_PREFIX, DIRECT_PREFIX
from mosaic_routing.reports import Aged
from mosaic_routing.speeds import speed_of
from mosaic_routing.targets import Target

UNKNOWN = Speed(prefill_tokens_s=2_000.0, decode_tokens_s=50.0, first_token_s=0.0, estimated=True)
"""Of a deployment of which nobody told or measured anything."""


class Standing(NamedTuple):
    """What limits say of a target and of its deployment.

    Attributes:
        active: calls that were sent there and have not ended.
        work_tokens: of these together.
        is_open: the deployment's breaker lets nothing through.
        ready_in_s: when to look again, where it does not.
    """

    active: int = 0
    work_tokens: float = 0.0
    is_open: bool = False
    ready_in_s: float = 0.0


_FREE = Standing()


def targets(
    engines: Iterable[Aged[EngineReport]],
    served: Mapping[str, int],
    pool: ModelPool,
    *,
    standings: Mapping[str, Standing],
    round_trips: Mapping[str, float] | None = None,
    capability: str = "",
) -> list[Target]:
    """What calls can be sent to now.

    Args:
        engines: that workers host; those that are not ready, or whose class the pool does not name for the model, are
            no targets.
        served: by queue, how many calls its live workers run at once.
        standings: by target; what has none is free.
        round_trips: seconds from workers to the server and back, by their incarnation; of others nothing is known.
        capability: quality is the share of right answers that was measured for it; empty: all are equal.
    """
    found = [*_hosted(engines, pool, capability, round_trips or {}), *_offered(served, pool, capability)]
    return [_standing(target, standings.get(target.name, _FREE)) for target in found]


def _standing(target: Target, standing: Standing) -> Target:
    return Target(
        **{name: getattr(target, name) for name in _LASTING},
        active=standing.active,
        backlog_tokens=standing.work_tokens,
        is_open=standing.is_open,
        ready_in_s=standing.ready_in_s,
    )


_LASTING = tuple(
    name
    for name in Target.__struct_fields__
    if name not in ("active", "backlog_tokens", "is_open", "ready_in_s")
)


def _hosted(
    engines: Iterable[Aged[EngineReport]], pool: ModelPool, capability: str, round_trips: Mapping[str, float]
) -> Iterator[Target]:
    known = {deployment.name: deployment for deployment in pool.deployments}
    for (queue, model), (report, age_s) in _latest(engines).items():
        deployment = known.get(f"{report.gpu_class}/{model}")
        if report.state != "ready" or deployment is None:
            continue
        speed = _measured(report, speed_of(deployment, pool, gpu_class(report.gpu_class)) or UNKNOWN)
        yield _target(
            f"{deployment.name}@{queue.removeprefix(DIRECT_PREFIX)}",
            deployment,
            pool,
            capability,
            engine=f"{report.engine}:{report.model}",
            queue=queue,
            machine=queue.rpartition("@")[2],
            speed=speed,
            slots=report.running + report.slots,
            round_trip_s=round_trips.get(report.holder, 0.0),
            age_s=age_s,
        )


def _latest(engines: Iterable[Aged[EngineReport]]) -> dict[tuple[str, str], Aged[EngineReport]]:
    """The youngest report by direct queue and model: of a worker that died and began again, both are there a while."""
    found: dict[tuple[str, str], Aged[EngineReport]] = {}
    for each in engines:
        for queue in each.report.queues:
            known = found.get((queue, each.report.model))
            if queue.startswith(DIRECT_PREFIX) and (known is None or each.age_s < known.age_s):
                found[queue, each.report.model] = each
    return found


def _measured(report: EngineReport, told: Speed) -> Speed:
    """What the engine measured goes before what is told of its class."""
    return Speed(
        prefill_tokens_s=report.prefill_tokens_s or told.prefill_tokens_s,
        decode_tokens_s=1.0 / report.inter_token_s if report.inter_token_s else told.decode_tokens_s,
        first_token_s=told.first_token_s,
        estimated=told.estimated,
    )


def _offered(served: Mapping[str, int], pool: ModelPool, capability: str) -> Iterator[Target]:
    """Providers are asked by whichever worker serves their queue."""
    for deployment in pool.deployments:
        if deployment.is_hosted:
            continue
        queue = API_PREFIX + deployment.gpu_class.removeprefix(API)
        if slots := served.get(queue, 0):
            yield _target(
                deployment.name,
                deployment,
                pool,
                capability,
                engine=deployment.engine,
                queue=queue,
                speed=deployment.speed or UNKNOWN,
                slots=slots,
                age_s=0.0,
            )


def _target(
    name: str,
    deployment: Deployment,
    pool: ModelPool,
    capability: str,
    *,
    engine: str,
    queue: str,
    machine: str = "",
    speed: Speed,
    slots: int,
    age_s: float,
    round_trip_s: float = 0.0,
) -> Target:
    model = pool.models[deployment.model]
    return Target(
        name=name,
        deployment=deployment.name,
        model=deployment.model,
        engine=engine,
        queue=queue,
        gpu_class=deployment.gpu_class,
        machine=machine,
        slots=slots,
        prefill_tokens_s=speed.prefill_tokens_s,
        decode_tokens_s=speed.decode_tokens_s,
        first_token_s=speed.first_token_s,
        input_price=deployment.price.input,
        output_price=deployment.price.output,
        quality=model.capabilities.get(capability, 0.0) if capability else 1.0,
        context_tokens=model.context_tokens,
        round_trip_s=round_trip_s,
        age_s=age_s,
    )


__all__ = ["UNKNOWN", "Standing", "targets"]
