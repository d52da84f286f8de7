"""Calls that wait in the ledger for their turn at full targets: which of them go before it, since there is room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, zip_longest
from typing import NamedTuple

import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import MosaicError
from mosaic_queues.transitions import LiveCall
from mosaic_routing.ceilings import AHEAD_S, room
from mosaic_routing.queues import ROUTED
from mosaic_tasks.execution.placing.fleets import Fleets
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.sent import sent_of

log = structlog.get_logger(__name__)

MOST = 256
"""So many calls are looked at in one sweep."""


class Queued(NamedTuple):
    """The calls of a run that wait, the first ones first."""

    run_id: str
    priority: int
    tenant: str
    calls: Sequence[str]


class Turns:
    """Looks once a sweep, in the process that sweeps."""

    def __init__(self, process: Process, fleets: Fleets) -> None:
        self._process, self._fleets = process, fleets

    def early(self, delayed: Mapping[str, Sequence[LiveCall]]) -> dict[str, list[str]]:
        """By run, calls for which there is room now; where that cannot be said now, none."""
        try:
            return self._early(delayed)
        except (RedisError, MosaicError) as error:
            log.info("turns.unknown", what="calls wait until they are due", error=str(error))
            return {}

    def _early(self, delayed: Mapping[str, Sequence[LiveCall]]) -> dict[str, list[str]]:
        queued = [each for run_id, calls in delayed.items() if (each := self._queued(run_id, calls)).calls]
        rooms = self._rooms() if queued else {}
        if not any(rooms.values()):
            return {}
        candidates = list(islice(in_turn(queued), MOST))
        return chosen(candidates, self._wanted(candidates), rooms)

    def _queued(self, run_id: str, calls: Sequence[LiveCall]) -> Queued:
        """Those that wait for a place: a retry waits in the queue of its target."""
        plan = self._process.plan_of(run_id).plan
        waiting = sorted((call.at_ms, call.call) for call in calls if call.queue == ROUTED)
        return Queued(run_id, plan.priority, plan.tenant, [call for _, call in waiting])

    def _rooms(self) -> dict[str, int]:
        """How many calls may be sent to each target that limits how many run at once."""
        fleet, learning = self._fleets.now(), self._process.learning
        return {
            name: room(ceilings, learning.service_s(fleet.target(name).deployment) or AHEAD_S)
            for name, ceilings in fleet.ceilings.items()
        }

    def _wanted(self, candidates: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, ...]]:
        """By run and call, the targets that it waits for."""
        wanted = {}
        for run_id in dict.fromkeys(run_id for run_id, _ in candidates):
            calls = [call for its_run, call in candidates if its_run == run_id]
            for call, sent in zip(calls, sent_of(self._process.ledger, run_id, calls), strict=True):
                wanted[run_id, call] = sent.waits_for if sent is not None else ()
        return wanted


def in_turn(queued: Sequence[Queued]) -> Iterator[tuple[str, str]]:
    """Run and call: the more urgent runs first; of those that are alike tenants take turns, and the runs of each."""
    for _, level in groupby(sorted(queued, key=lambda each: each.priority), key=lambda each: each.priority):
        tenants: dict[str, list[list[tuple[str, str]]]] = {}
        for each in level:
            tenants.setdefault(each.tenant, []).append([(each.run_id, call) for call in each.calls])
        yield from _alternated([_alternated(runs) for runs in tenants.values()])


def _alternated(lists: Sequence[Sequence[tuple[str, str]]]) -> list[tuple[str, str]]:
    """The first of each, then the second of each, and so on."""
    return [one for together in zip_longest(*lists) for one in together if one is not None]


def chosen(
    candidates: Sequence[tuple[str, str]],
    wanted: Mapping[tuple[str, str], Sequence[str]],
    rooms: Mapping[str, int],
) -> dict[str, list[str]]:
    """By run, the first calls for which there is room at a target that they wait for.

    Args:
        candidates: run and call, in the order in which they go.
        wanted: of each, names of targets.
        rooms: by target.
    """
    left, found = dict(rooms), dict[str, list[str]]()
    for run_id, call in candidates:
        target = next((name for name in wanted[run_id, call] if left.get(name)), None)
        if target is not None:
            left[target] -= 1
            found.setdefault(run_id, []).append(call)
    return found


__all__ = ["Queued", "Turns", "chosen", "in_turn"]
