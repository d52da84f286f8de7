"""The fleet as one process knows it: read from the server now and then, in O(targets)."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from redis import Redis

from mosaic_queues.errors import ConfigurationError
from mosaic_queues.keys import Keys
from mosaic_queues.liveness import live_processes
from mosaic_routing.ceilings import Ceiling
from mosaic_routing.classes import gpu_class
from mosaic_routing.fleet import Standing, targets
from mosaic_routing.guards import BreakerReading, GuardedCall, Guards, Limits, Need, Query
from mosaic_routing.inventory import EngineReport, aged_engines
from mosaic_routing.machines import REPORTS
from mosaic_routing.pool import ModelPool, pool
from mosaic_routing.queues import API_PREFIX
from mosaic_routing.reports import Aged
from mosaic_routing.requirements import Requirement, explain_misses, match
from mosaic_routing.snapshot import Snapshot
from mosaic_routing.targets import Decision, Target
from mosaic_tasks.execution.sent import lease_of

REFRESH_S = 0.5
"""What is known is at most so old; in between, a process counts what it sends itself."""
LEASE_S, LEASE_MOST_S = 60.0, 3_600.0
"""A target's backlog counts a call for so long beyond its predicted end, should nobody say that it ended."""


class Fit(NamedTuple):
    """What satisfies a requirement: names of deployments, or why there are none.

    Attributes:
        bound: of these, those whose model another class hosts that does not satisfy it, and must not take its calls.
    """

    deployments: tuple[str, ...]
    lacks: str = ""
    bound: frozenset[str] = frozenset()


class Fleet:
    """Engines, providers and limits at one moment.

    Args:
        round_trips: seconds from workers to the server and back, by their incarnation.
        ceilings: by target, the limits of how many calls run at once; of those that have any.
    """

    def __init__(
        self,
        engines: Sequence[Aged[EngineReport]],
        served: Mapping[str, int],
        models: ModelPool,
        standings: Mapping[str, Standing],
        round_trips: Mapping[str, float] | None = None,
        ceilings: Mapping[str, Sequence[Ceiling]] | None = None,
    ) -> None:
        self.ceilings = ceilings or {}
        self._round_trips = round_trips
        self._engines, self._served, self._pool, self._standings = engines, served, models, standings
        self._snapshots: dict[str, Snapshot] = {}
        self._sent: list[Decision] = []
        self._fits: dict[Requirement, Fit] = {}
        self._by_name = {target.name: target for target in self._targets("")}

    @property
    def targets(self) -> Collection[Target]:
        """All of them."""
        return self._by_name.values()

    @cached_property
    def load(self) -> float:
        """Calls that were sent and have not ended, for each slot; 1 is what there is room for."""
        slots = sum(target.slots for target in self.targets)
        return sum(target.active for target in self.targets) / slots if slots else 0.0

    def target(self, name: str) -> Target:
        """One of the targets."""
        return self._by_name[name]

    def find(self, name: str) -> Target | None:
        """One of the targets, or None where it is none."""
        return self._by_name.get(name)

    def snapshot(self, capability: str) -> Snapshot:
        """The targets, with the quality that was measured for a capability."""
        if capability not in self._snapshots:
            made = self._snapshots[capability] = Snapshot(self._targets(capability))
            for decision in self._sent:
                made.sent(decision)
        return self._snapshots[capability]

    def sent(self, decision: Decision) -> None:
        """Counts a call that this process sends, whatever capability it asked for, until the fleet is read anew."""
        self._sent.append(decision)
        for snapshot in self._snapshots.values():
            snapshot.sent(decision)
        for ceiling in self.ceilings.get(decision.target, ()):
            ceiling.sent()

    def fit(self, requirement: Requirement) -> Fit:
        """What satisfies a requirement now."""
        if requirement not in self._fits:
            self._fits[requirement] = self._fit(requirement)
        return self._fits[requirement]

    def _fit(self, requirement: Requirement) -> Fit:
        classes = {report.gpu_class: gpu_class(report.gpu_class) for report, _ in self._engines}
        providers = {queue.removeprefix(API_PREFIX) for queue in self._served if queue.startswith(API_PREFIX)}
        try:
            found = match(requirement, self._pool, classes, providers=providers)
        except ConfigurationError as error:  # the pool was changed since the run was submitted
            return Fit((), str(error))
        names = tuple(deployment.name for deployment in found.satisfying)
        return Fit(names, "" if names else explain_misses(requirement, found), self._bound(names))

    def _bound(self, satisfying: Collection[str]) -> frozenset[str]:
        hosted = {f"{report.gpu_class}/{report.model}": report.model for report, _ in self._engines}
        others = {model for name, model in hosted.items() if name not in satisfying}
        return frozenset(name for name in satisfying if hosted.get(name) in others)

    def _targets(self, capability: str) -> list[Target]:
        return targets(
            self._engines,
            self._served,
            self._pool,
            standings=self._standings,
            round_trips=self._round_trips,
            capability=capability,
        )


class Fleets:
    """Reads the fleet anew once it is old. Thread-safe."""

    def __init__(self, client: Redis, keys: Keys, guards: Guards) -> None:
        self._client, self._keys, self._guards = client, keys, guards
        self._lock = threading.Lock()
        self._fleet: Fleet | None = None
        self._read_at = 0.0

    def now(self) -> Fleet:
        """The fleet.

        Raises:
            ServerError: the server is away.
            ConfigurationError: the model pool cannot be used.
        """
        with self._lock:
            if self._fleet is None or time.monotonic() - self._read_at > REFRESH_S:
                self._fleet = self._read()
                self._read_at = time.monotonic()
            return self._fleet

    def _read(self) -> Fleet:
        models = pool()
        engines = aged_engines(self._client, keys=self._keys)
        served: dict[str, int] = {}
        for process in live_processes(self._client, self._keys):
            for queue in process.queues:
                served[queue] = served.get(queue, 0) + process.slots
        found = targets(engines, served, models, standings={})
        needs = _needs(found, models.limits)
        counts = self._counts(needs, found)
        standings = {each.name: _standing(each, needs[each.deployment], counts) for each in found}
        ceilings = _ceilings({each.name: needs[each.deployment] for each in found}, counts)
        return Fleet(engines, served, models, standings, self._read_round_trips(), ceilings)

    def _read_round_trips(self) -> dict[str, float]:
        reports = REPORTS.all(self._client, keys=self._keys)
        return {each.holder: each.round_trip_s for each in reports if each.round_trip_s is not None}

    def _counts(self, needs: Mapping[str, Need], found: Sequence[Target]) -> _Counts:
        """In one step; `needs`: by deployment."""
        limited = {lease.of for need in needs.values() for lease in need.leases}
        leases = (*(backlog_of(target.name) for target in found), *limited)
        buckets = tuple({(take.bucket, take.limit) for need in needs.values() for take in need.takes})
        read = self._guards.read(Query(leases=leases, breakers=tuple(needs), buckets=buckets))
        return _Counts(
            dict(zip(leases, read.leases, strict=True)),
            dict(zip(needs, read.breakers, strict=True)),
            {bucket: ms for (bucket, _), ms in zip(buckets, read.buckets, strict=True)},
        )


class _Counts(NamedTuple):
    """What the server counts.

    Attributes:
        leases: how many, and their weight, by what they are of.
        breakers: by deployment.
        empty_ms: until something can be taken, by bucket.
    """

    leases: Mapping[str, tuple[int, int]]
    breakers: Mapping[str, BreakerReading]
    empty_ms: Mapping[str, int]


def _needs(found: Iterable[Target], limits: Limits) -> dict[str, Need]:
    """What limits a call to each deployment."""
    return {
        target.deployment: limits.need(GuardedCall(deployment=target.deployment, model=target.model))
        for target in found
    }


def _standing(target: Target, need: Need, counts: _Counts) -> Standing:
    """What is counted of a target, and what keeps its deployment from taking more."""
    wait_ms = counts.breakers[target.deployment].wait_ms
    until_ms = max((counts.empty_ms[take.bucket] for take in need.takes), default=0)
    active, work_tokens = counts.leases[backlog_of(target.name)]
    ready_in_s = max(wait_ms, until_ms) / 1000
    return Standing(active=active, work_tokens=work_tokens, is_open=wait_ms != 0, ready_in_s=ready_in_s)


def _ceilings(needs: Mapping[str, Need], counts: _Counts) -> dict[str, list[Ceiling]]:
    """By target, the limits of how many calls run at once; what waits at a target counts as much as what runs."""
    sent: dict[str, int] = {}
    for name, need in needs.items():
        for lease in need.leases:
            sent[lease.of] = sent.get(lease.of, 0) + counts.leases[backlog_of(name)][0]
    limits = {lease.of: lease.limit for need in needs.values() for lease in need.leases if lease.limit}
    ceilings = {of: Ceiling(limit, max(sent[of], counts.leases[of][0])) for of, limit in limits.items()}
    found = {
        name: [ceilings[lease.of] for lease in need.leases if lease.of in ceilings]
        for name, need in needs.items()
    }
    return {name: each for name, each in found.items() if each}


def backlog_of(target: str) -> str:
    """Under which name the calls are counted that were sent to a target."""
    return f"target:{target}"


def count_at(target: str, guards: Guards, run_id: str, call: str, *, fence: int, decision: Decision) -> None:
    """Counts a call as a load of a target, and of no other any more; whoever runs it takes it out again.

    Args:
        fence: of the claim for which it is sent.
    """
    guards.lease(
        lease_of(run_id, call, fence),
        of=backlog_of(target),
        weight=int(decision.work_tokens),
        expiry_s=min(decision.latency_s + LEASE_S, LEASE_MOST_S),
        instead_of=lease_of(run_id, call, fence - 1),
    )


__all__ = ["Fit", "Fleet", "Fleets", "backlog_of", "count_at"]
