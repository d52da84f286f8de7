"""How runs recover: which of their calls are lost, overdue or due, and which runs must end.

What it decides is pure (`decide`); what it does is one transition and one publish each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.connection import server_ms
from mosaic_queues.ledger import Ledger
from mosaic_queues.liveness import forget_dead, live_processes
from mosaic_queues.queue_ages import QueueAges
from mosaic_queues.run_sizes import RunSizes
from mosaic_queues.transitions import Group, LiveCall, RunStanding

log = structlog.get_logger(__name__)

RUNS_A_TRIP = 100
FORGET_AFTER_MS = 60_000
"""A run that is listed so long and is not open will not be."""
UPKEEP_EVERY_S = 60.0
OVERDUE_MS = 15_000
"""The process of a call ends it at its timeout, or itself 5 s later; past this, the process does neither."""

T = TypeVar("T")
Claims = dict[str, list[tuple[str, int]]]
"""By holder, its calls and their fencing tokens."""
Heads = dict[tuple[str, int], int | None]
"""By queue and priority, when the oldest message was published (ms); None: there is none."""


class Mend(NamedTuple):
    """What a run needs: calls to wake (due, or their message is lost), claims of the dead, and overdue ones."""

    wake: list[str]
    lost: Claims
    overdue: Claims


def decide(
    calls: Sequence[LiveCall],
    *,
    now_ms: int,
    alive: Collection[str],
    grace_ms: int,
    oldest_ms: Mapping[str, int | None],
    timeouts_s: Mapping[str, float | None],
    stranded: Collection[str] = (),
) -> Mend:
    """Compares what the ledger says with what lives.

    A ready call's message is lost when the call has waited for longer than the grace and its queue holds no
    message as old: queues are first in, first out, so its own, were it there, would be among the oldest.

    Args:
        oldest_ms: by queue, when its oldest message was published; None: the queue is empty.
        timeouts_s: by call, how long it may run.
        stranded: calls whose messages lie where nobody takes them, and which may go elsewhere.
    """
    mend = Mend([], {}, {})
    for call in calls:
        if call.state == "claimed":
            if call.holder not in alive:
                mend.lost.setdefault(call.holder, []).append((call.call, call.fence))
            elif _is_overdue(call, now_ms, timeouts_s.get(call.call)):
                mend.overdue.setdefault(call.holder, []).append((call.call, call.fence))
        elif call.state == "delayed":
            if call.at_ms <= now_ms:
                mend.wake.append(call.call)
        elif call.state == "idle":
            if call.due_ms is not None and call.due_ms <= now_ms:
                mend.wake.append(call.call)
        elif _waits_long(call, now_ms, grace_ms) and (
            call.call in stranded or _is_lost(call, oldest_ms, grace_ms)
        ):
            mend.wake.append(call.call)
    return mend


def _is_overdue(call: LiveCall, now_ms: int, timeout_s: float | None = 0.0) -> bool:
    return timeout_s is not None and call.at_ms + timeout_s * 1000 + OVERDUE_MS < now_ms


def _waits_long(call: LiveCall, now_ms: int, grace_ms: int) -> bool:
    return call.state == "ready" and call.at_ms + grace_ms <= now_ms


def _is_lost(call: LiveCall, oldest_ms: Mapping[str, int | None], grace_ms: int) -> bool:
    oldest = oldest_ms.get(call.queue)
    return oldest is None or call.at_ms + grace_ms < oldest


class RecoveryHost(Protocol):
    """What recovery needs of the process that it runs in."""

    def publish(self, run_id: str, groups: Sequence[Group]) -> object:
        """Sends groups of ready calls of a run."""

    def priority(self, run_id: str) -> int:
        """The priority of a run's messages."""

    def deadline_s(self, run_id: str) -> float | None:
        """How long a run may take."""

    def oldest_message(self, queue: str, priority: int) -> float | None:
        """When the oldest message of a queue and a priority was published (Unix seconds), None: there is none."""

    def is_stranded(self, run_id: str, call: LiveCall) -> bool:
        """Whether nobody takes from the queue of a ready call, and it may go elsewhere."""

    def early(self, delayed: Mapping[str, Sequence[LiveCall]]) -> Mapping[str, Sequence[str]]:
        """Of the calls that are not due yet, by run, those for which there is room all the same."""

    def timeout_s(self, run_id: str, call: str) -> float | None:
        """How long a call may run."""

    def node_of(self, run_id: str, call: str) -> str:
        """What a call belongs to, for people: `node 'people'`."""

    def run_ended(self, run_id: str, standing: RunStanding) -> object:
        """A run has ended; it is told once, or once more where what follows fails."""

    def over(self, run_ids: Sequence[str]) -> object:
        """These runs have ended, or were never opened; told once more, of each alone, where that fails."""

    def calls_lost(self, run_id: str, calls: Sequence[LiveCall], now_ms: int) -> object:
        """Claims of processes that died, or that did not end overdue calls, were taken back."""

    def round_over(self, ages: QueueAges, mended: int) -> object:
        """A round is over, in which so many calls were published again."""

    def expire(self) -> object:
        """Deletes what outlived its run; called now and then."""


class Limits(NamedTuple):
    """How long recovery waits, and what a run may take.

    Attributes:
        grace_s: younger ready calls are left to the process that made them ready.
        max_run_s: an older unfinished run fails.
        max_run_bytes: a run that takes more of the server fails.
        plans_s: how long plans in use, and the index of runs, are kept from now.
    """

    grace_s: float
    max_run_s: float
    max_run_bytes: int
    plans_s: float


class RunRecovery:
    """Looks at every unfinished run once a sweep; a policy of the sweeper."""

    def __init__(self, ledger: Ledger, *, host: RecoveryHost, limits: Limits) -> None:
        self._ledger, self._host, self._limits = ledger, host, limits
        self._grace_ms = int(limits.grace_s * 1000)
        self._sizes = RunSizes(ledger, max_bytes=limits.max_run_bytes)
        self._next_upkeep = 0.0

    @property
    def client(self) -> Redis:
        """Of the ledger's server."""
        return self._ledger.client

    @property
    def lock(self) -> str:
        """The key of its lock."""
        return self._ledger.keys.sweeper

    def sweep(self) -> int:
        """Looks at every unfinished run; returns how many calls were published again."""
        listed = self._ledger.listed_runs()
        mended, running, ages = 0, list[str](), QueueAges()
        for first in range(0, len(listed), RUNS_A_TRIP):
            some = self._still_running(listed[first : first + RUNS_A_TRIP])
            running += some
            mended += self._sweep_some(some, ages)
        self._end_large(running)
        self._upkeep(running)
        self._host.round_over(ages, mended)
        return mended

    def _still_running(self, listed: Sequence[tuple[str, int]]) -> list[str]:
        """The runs that go on; of the others, those that are over leave the index, those too old end."""
        standings = self._ledger.standings([run_id for run_id, _ in listed])
        now_ms = server_ms(self.client)
        running, ended = [], []
        for (run_id, listed_ms), standing in zip(listed, standings, strict=True):
            if standing is None:
                ended += [run_id] if listed_ms + FORGET_AFTER_MS < now_ms else []
            elif standing.status != "running":
                ended.append(run_id)
                self._try(run_id, self._host.run_ended, standing, otherwise=None)
            elif standing.since_ms + self._limits.max_run_s * 1000 < now_ms:
                self._end(run_id, self._too_old())
            elif late := self._late(run_id, now_ms - standing.since_ms):
                self._end(run_id, late)
            else:
                running.append(run_id)
        if ended:
            self._put_in_order(ended)
            self._ledger.unlist_runs(ended)
        return running

    def _put_in_order(self, ended: Sequence[str]) -> None:
        """What runs that are over leave behind: together, or one by one where that fails for any of them."""
        if len(ended) > 1:
            with _logged("runs that are over cannot be put in order together", runs=ended):
                self._host.over(ended)
                return
        for run_id in ended:
            with _logged("what a run leaves behind cannot be put in order", run=run_id):
                self._host.over([run_id])

    def _late(self, run_id: str, taken_ms: int) -> str:
        """What a run that is past its deadline fails with; empty: it is not."""
        deadline_s: float | None = self._try(run_id, self._host.deadline_s, otherwise=None)
        if deadline_s is None or taken_ms <= deadline_s * 1000:
            return ""
        return f"not finished within its deadline of {deadline_s:g} s"

    def _too_old(self) -> str:
        return (
            f"not finished within MOSAIC_MAX_RUN_S={self._limits.max_run_s:g}; raise it, or give the nodes that "
            "take so long a timeout"
        )

    def _end(self, run_id: str, error: str) -> None:
        """Fails a run; the next sweep finds it over."""
        if self._ledger.end_run(run_id, "failed", error):
            log.warning("sweeper.ended", what="run is failed", run=run_id, error=error)

    def _sweep_some(self, running: Sequence[str], ages: QueueAges) -> int:
        if not running:
            return 0
        now_ms = server_ms(self.client)
        found = self._ledger.live_calls_of(running)
        alive = {process.name for process in live_processes(self.client, self._ledger.keys)}
        heads: Heads = {}
        for calls in found:
            ages.add(calls, now_ms=now_ms)
        mended = sum(
            self._try(run_id, self._look, calls, now_ms, alive, heads, otherwise=0)
            for run_id, calls in zip(running, found, strict=True)
        )
        return mended + self._wake_early(dict(zip(running, found, strict=True)), now_ms)

    def _oldest(
        self, run_id: str, calls: Sequence[LiveCall], now_ms: int, heads: Heads
    ) -> dict[str, int | None]:
        """By queue that an overdue call waits for, when its oldest message of the run's priority was published.

        Messages of one priority are first in, first out. Each is looked at once a sweep.
        """
        queues = {call.queue for call in calls if _waits_long(call, now_ms, self._grace_ms)}
        priority = self._host.priority(run_id) if queues else 0
        for queue in queues:
            if (queue, priority) not in heads:
                head = self._host.oldest_message(queue, priority)
                heads[queue, priority] = None if head is None else int(head * 1000)
        return {queue: heads[queue, priority] for queue in queues}

    def _try(self, run_id: str, act: Callable[..., T], *args: Any, otherwise: T) -> T:
        """Does something for a run; what cannot be done for one does not keep the others from it."""
        with _logged("run cannot be mended", run=run_id):
            return act(run_id, *args)
        return otherwise

    def _look(
        self,
        run_id: str,
        calls: Sequence[LiveCall],
        now_ms: int,
        alive: Collection[str],
        heads: Heads,
    ) -> int:
        mend = decide(
            calls,
            now_ms=now_ms,
            alive=alive,
            grace_ms=self._grace_ms,
            oldest_ms=self._oldest(run_id, calls, now_ms, heads),
            timeouts_s=self._timeouts(run_id, calls, now_ms),
            stranded=self._stranded(run_id, calls, now_ms),
        )
        return self._mend(run_id, mend, {(call.call, call.fence): call for call in calls}, now_ms)

    def _wake_early(self, found: Mapping[str, Sequence[LiveCall]], now_ms: int) -> int:
        """What waits for its turn where there is room: told of all runs together, since these share it."""
        delayed = {
            run_id: later
            for run_id, calls in found.items()
            if (later := [call for call in calls if call.state == "delayed" and call.at_ms > now_ms])
        }
        early = self._host.early(delayed) if delayed else {}
        return sum(
            self._try(run_id, self._wake, calls, now_ms, otherwise=0) for run_id, calls in early.items()
        )

    def _wake(self, run_id: str, calls: Sequence[str], now_ms: int) -> int:
        groups = self._ledger.wake(run_id, [], now_ms=now_ms, early=calls)
        if groups:
            self._host.publish(run_id, groups)
        return len(calls)

    def _timeouts(self, run_id: str, calls: Sequence[LiveCall], now_ms: int) -> dict[str, float | None]:
        """Of the calls that were claimed so long ago that it matters."""
        old = [call.call for call in calls if call.state == "claimed" and _is_overdue(call, now_ms)]
        return {call: self._host.timeout_s(run_id, call) for call in old}

    def _stranded(self, run_id: str, calls: Sequence[LiveCall], now_ms: int) -> set[str]:
        """Of the calls that wait for long."""
        return {
            call.call
            for call in calls
            if _waits_long(call, now_ms, self._grace_ms) and self._host.is_stranded(run_id, call)
        }

    def _mend(self, run_id: str, mend: Mend, calls: Mapping[tuple[str, int], LiveCall], now_ms: int) -> int:
        groups: list[Group] = []
        if mend.wake:
            groups += self._ledger.wake(run_id, mend.wake, now_ms=now_ms)
        groups += self._take_back(run_id, mend.lost, "process lost, its calls are re-issued")
        groups += self._take_back(
            run_id, mend.overdue, "process does not end overdue calls, they are re-issued"
        )
        if groups:
            self._host.publish(run_id, groups)
        taken = [claim for lost in (mend.lost, mend.overdue) for claims in lost.values() for claim in claims]
        if taken:
            self._host.calls_lost(run_id, [calls[claim] for claim in taken], now_ms)
        return sum(len(calls) for _, calls in groups)

    def _take_back(self, run_id: str, lost: Claims, what: str) -> list[Group]:
        groups: list[Group] = []
        for holder, claims in lost.items():
            log.warning("sweeper.lost", what=what, run=run_id, holder=holder, calls=len(claims))
            groups += self._ledger.take_back(run_id, claims, holder=holder)
        return groups

    def _end_large(self, running: Sequence[str]) -> None:
        for run_id, size in self._sizes.beyond(running).items():
            self._try(run_id, self._end_as_too_large, size, otherwise=0)

    def _end_as_too_large(self, run_id: str, size: int) -> int:
        found = self._sizes.largest(run_id)
        largest = f"; {self._host.node_of(run_id, found[0])} put {found[1]} of it there" if found else ""
        self._end(
            run_id,
            f"the run takes {size} bytes of the server, MOSAIC_MAX_RUN_BYTES={self._limits.max_run_bytes}{largest}; "
            "return references to large values (a path, a URL), lower MOSAIC_REDIS_BYTES so that more goes to the "
            "object store, or raise the limit",
        )
        return 0

    def _upkeep(self, running: Sequence[str]) -> None:
        """Now and then: prolongs what is in use, forgets dead processes, expires stored objects."""
        if time.monotonic() < self._next_upkeep:
            return
        self._next_upkeep = time.monotonic() + UPKEEP_EVERY_S
        if running:
            self._ledger.prolong_list(keep_s=self._limits.plans_s)
        self._ledger.prolong_plans(self._ledger.plans_of(running), keep_s=self._limits.plans_s)
        forget_dead(self.client, self._ledger.keys, now_ms=server_ms(self.client))
        self._host.expire()


@contextmanager
def _logged(what: str, **told: Any) -> Iterator[None]:
    """What goes wrong inside is logged, unless a server does not answer: then the next sweep tries it again."""
    try:
        yield
    except (RedisError, OperationalError, OSError):
        raise
    except Exception:
        log.exception("sweeper.broken", what=what, **told)
