"""Reads what is told at one moment: from queues, workers, engines, limits, and what all processes counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from celery import Celery
from redis import Redis

from mosaic_queues.dead_letters import dead_letters
from mosaic_queues.keys import Keys
from mosaic_queues.liveness import LiveProcess, live_processes
from mosaic_queues.queue_ages import QueueAges
from mosaic_queues.topology import topology
from mosaic_queues.work import Work, work_of
from mosaic_routing.guards import Guards, Limits, Query, ServerBackend
from mosaic_routing.guards.budgets import MICROS, Period
from mosaic_routing.guards.limits import EACH
from mosaic_routing.inventory import EngineReport, engines
from mosaic_routing.manifests.services import services
from mosaic_routing.pool import ModelPool, pool
from mosaic_routing.queues import DIRECT_PREFIX
from mosaic_tasks.observability.standing import ages_of
from mosaic_tasks.observability.tallies import Tally, counted


class Budget(NamedTuple):
    """What may be spent a day, and what of it is, in US dollars."""

    limit_usd: float
    spent_usd: float


class Beat(NamedTuple):
    """Whether ticks are sent.

    Attributes:
        leads: a beat holds the lock.
        schedules: that it has to keep.
    """

    leads: bool = False
    schedules: int = 0


class Figures(NamedTuple):
    """What is told at one moment.

    Attributes:
        queues: work of each queue.
        groups: work of each group of the topology: of all its queues, those of its workers alone included.
        workers: how many serve each queue.
        ages: what the last sweep saw; None: nobody sweeps.
        breakers: by deployment, whether it is open.
        budgets: by account: `all`, `tenant:NAME`.
    """

    queues: Mapping[str, Work]
    groups: Mapping[str, Work]
    workers: Mapping[str, int]
    engines: Sequence[EngineReport]
    tallies: Sequence[Tally] = ()
    ages: QueueAges | None = None
    breakers: Mapping[str, str] = {}
    budgets: Mapping[str, Budget] = {}
    dead_letters: int = 0
    beat: Beat = Beat()


def gather(app: Celery, client: Redis, keys: Keys) -> Figures:
    """All of it, as it is now.

    Raises:
        ConfigurationError: the broker is no Redis, or topology or model pool cannot be read.
    """
    processes = live_processes(client, keys)
    found = services(topology(), pool())
    groups = {service.group.name: queues_of(service.queues, processes) for service in found}
    workers = served(processes)
    queues = work_of(app, [*workers, *(queue for each in groups.values() for queue in each)])
    with Guards(ServerBackend(client, keys)) as guards:
        breakers, budgets = _breakers(guards, pool()), _budgets(guards, pool().limits)
    return Figures(
        queues,
        together(groups, queues),
        workers,
        engines(client, keys=keys),
        counted(client, keys),
        ages_of(client, keys),
        breakers,
        budgets,
        _dead(app),
        beat_of(app, client),
    )


def _breakers(guards: Guards, models: ModelPool) -> dict[str, str]:
    names = tuple(dict.fromkeys(each.name for each in models.deployments))
    readings = guards.read(Query(breakers=names)).breakers
    return {name: reading.state for name, reading in zip(names, readings, strict=True)}


def _budgets(guards: Guards, limits: Limits) -> dict[str, Budget]:
    daily = daily_budgets(limits)
    accounts: tuple[tuple[str, Period], ...] = tuple((account, "day") for account in daily)
    spent = guards.read(Query(accounts=accounts)).accounts
    return {
        account: Budget(limit, sum(amounts) / MICROS)
        for (account, limit), amounts in zip(daily.items(), spent, strict=True)
    }


def daily_budgets(limits: Limits) -> dict[str, float]:
    """By account, the US dollars of a day; those that have a name of their own: `*` is for names that only calls
    know."""
    scopes = {
        "provider": limits.providers,
        "deployment": limits.deployments,
        "model": limits.models,
        "tenant": limits.tenants,
    }
    found = {
        f"{scope}:{name}": limit.dollars_per_day
        for scope, named in scopes.items()
        for name, limit in named.items()
        if name != EACH
    }
    return {
        account: dollars
        for account, dollars in {"all": limits.dollars_per_day, **found}.items()
        if dollars is not None
    }


def _dead(app: Celery) -> int:
    with dead_letters(app) as letters:
        return letters.count() if letters is not None else 0


def beat_of(app: Celery, client: Redis) -> Beat:
    """Whether an app's schedules have somebody who keeps them."""
    lock, prefix = app.conf.get("redbeat_lock_key"), app.conf.get("redbeat_key_prefix")
    if not (lock and prefix):
        return Beat()
    schedules = cast("Any", client.zcard(f"{prefix}:schedule"))
    return Beat(bool(client.exists(lock)), int(schedules))


def served(processes: Sequence[LiveProcess]) -> dict[str, int]:
    """How many workers serve each queue."""
    found: dict[str, int] = {}
    for queue in (queue for process in processes for queue in process.queues):
        found[queue] = found.get(queue, 0) + 1
    return found


def queues_of(shared: Sequence[str], processes: Sequence[LiveProcess]) -> list[str]:
    """The queues of a group, with those that each of its workers has for itself."""
    direct = (
        queue
        for process in processes
        if set(shared) <= set(process.queues)
        for queue in process.queues
        if queue.startswith(DIRECT_PREFIX)
    )
    return [*shared, *dict.fromkeys(direct)]


def together(groups: Mapping[str, Sequence[str]], queues: Mapping[str, Work]) -> dict[str, Work]:
    """The work of each group; what two groups serve counts for both."""
    return {
        name: Work(
            sum(queues[queue].waiting for queue in served), sum(queues[queue].running for queue in served)
        )
        for name, served in groups.items()
    }


__all__ = [
    "Beat",
    "Budget",
    "Figures",
    "beat_of",
    "daily_budgets",
    "gather",
    "queues_of",
    "served",
    "together",
]
