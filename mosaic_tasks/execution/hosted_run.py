"""What a host holds of one run: the calls of any number of messages, those that run, and the messages that wait for
them.

Each call here takes one slot, from when a message brought it, or a transition kept it, until it is recorded or somebody
else's. It *waits*, then has a *seat* once it is claimed, and is *over* in the end.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import structlog
from redis.exceptions import RedisError

from mosaic_queues.advancing import Transition
from mosaic_queues.transitions import Advance, Claim, Group
from mosaic_tasks.execution.calls import Execution
from mosaic_tasks.execution.holding import CLAIM_MOST, Finished, Holding, ServerAwayError
from mosaic_tasks.execution.outcomes import Expand, Outcome, Work
from mosaic_tasks.execution.prepared import CallId, PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.settling import Settling
from mosaic_tasks.execution.together import go_alone

log = structlog.get_logger(__name__)


class Slots(Protocol):
    """How many calls a worker runs at once; shared with what fetches messages."""

    @property
    def limit(self) -> int:
        """At most so many."""

    @property
    def used(self) -> int:
        """So many are taken."""

    ahead: int
    """So many calls beyond the limit may wait here."""

    def take(self, count: int) -> None:
        """So many more calls are here. It may exceed the limit: a message may bring more than there is room for."""

    def give(self, count: int) -> None:
        """So many calls are over."""


class Ticket:
    """A message, from when it is taken up until none of its calls needs it any more.

    Args:
        calls: what the message brought.
        done: called once, from any thread, when the last of them is over.
    """

    def __init__(self, calls: Sequence[str], done: Callable[[], object]) -> None:
        self._open, self._done = set(calls), done
        self._lock = threading.Lock()

    def close(self, calls: Sequence[str]) -> None:
        """These calls are recorded, or somebody else's."""
        with self._lock:
            was_open = bool(self._open)
            self._open.difference_update(calls)
            is_done = was_open and not self._open
        if is_done:
            self._done()


@dataclass(eq=False)
class Flight:
    """A call that runs on the loop.

    Attributes:
        since: monotonic time of its start.
        ends_by: monotonic time at which its slot is free again, whether it has ended or not.
        ending: why it is cancelled; None: it is not.
        is_left: its end is not awaited any more.
    """

    work: Work
    execution: Execution
    since: float
    ends_by: float
    task: asyncio.Task[Callable[[], Outcome]] | None = None
    ending: Exception | None = None
    is_left: bool = False


class _Waiting(NamedTuple):
    since: float
    tickets: list[Ticket]


class _Seat(NamedTuple):
    holder: str
    tickets: Sequence[Ticket]


class HostedRun(Holding):
    """The calls of one run on a host. All but `Ticket.close` happens in the host's clerk thread.

    Each transition claims in a name of its own, so that letting go of what a lost answer claimed touches nothing that
    runs.

    Attributes:
        is_sure: whether it is known that the run has this plan; else the first transition asks.
        flights: what runs on the loop.
        landed: what has run and is not settled, with its outcome, or what is left to do for it.
        retry_at: monotonic time before which the server is not asked again.
    """

    def __init__(
        self, process: Process, run_id: str, plan: PreparedPlan, *, slots: Slots, is_sure: bool = True
    ) -> None:
        super().__init__(process, run_id, plan, ())
        self.is_sure = is_sure
        self.settling = Settling(self)
        self.flights: dict[Claim, Flight] = {}
        self.landed: deque[tuple[Flight, Outcome | Callable[[], Outcome]]] = deque()
        self.retry_at = 0.0
        self._slots = slots
        self._waiting: dict[str, _Waiting] = {}
        self._claiming: list[str] = []
        self._seats: dict[Claim, _Seat] = {}
        self._over: list[tuple[str, Sequence[Ticket]]] = []
        self._unsent: deque[Callable[[], object]] = deque()
        self._room = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing of the run is here any more."""
        return not (self.finished or self._waiting or self._seats or self._over)

    @property
    def waiting(self) -> int:
        """Calls that were given and that no slot was free for."""
        return len(self.given)

    def give(self, calls: Sequence[str], ticket: Ticket, now: float) -> None:
        """A message brought these calls; each has taken a slot."""
        for call in calls:
            if call in self._waiting:  # brought twice, and one slot is enough
                self._waiting[call].tickets.append(ticket)
                self._slots.give(1)
            else:
                self._waiting[call] = _Waiting(now, [ticket])
                self.given.append(call)

    # -- transitions -------------------------------------------------------------------------------------------------

    def step(self, *, room: int) -> bool:
        """One transition: records what is finished, claims what `room` slots can run. False: there was nothing to do.

        Raises:
            redis.RedisError: it is to be tried again; nothing is lost.
        """
        return go_alone(self.stepping(room=room), self._advance)

    def stepping(self, *, room: int) -> Generator[Transition, Advance, bool]:
        """The same, where the ledger may be asked for several runs at once."""
        self._room, self._claiming = max(room, 0), []
        if not (self.finished or (self.given and self._room)):
            return False
        with self._in_a_name_of_its_own():
            yield from self.advancing()
        return True

    @contextmanager
    def _in_a_name_of_its_own(self) -> Iterator[None]:
        self.claimant = self.process.claimant()
        try:
            yield
        except RedisError as error:
            self._claiming = []  # they wait again
            self.process.let_go(self.run_id, self.claimant, now=not isinstance(error, ServerAwayError))
            raise

    def _wanted(self) -> list[str]:
        count = min(self._room, CLAIM_MOST, len(self.given))
        self._claiming = [self.given.popleft() for _ in range(count)]
        self._room -= count
        return self._claiming

    def _asked(self, finished: Finished, wanted: Sequence[str], keep: int) -> Transition:
        asked = super()._asked(finished, wanted, keep)
        return asked if self.is_sure else asked._replace(plan=self.plan.hash)

    def again(self, transition: Callable[[int], Advance]) -> Advance:
        """As in `Holding`; what it has claimed under other names, and what waits, stays."""
        log.warning("host.again", what="answer lost, the transition is repeated", run=self.run_id)
        answer = transition(0)
        self.let_go()
        # Nobody knows whether they were claimed, so they are asked for again.
        self.given.extendleft(reversed(self._claiming))
        self._claiming = []
        return answer

    def take(self, answer: Advance) -> None:
        """Seats what a transition claimed, publishes what it made ready. What it was asked for and has not claimed is
        somebody else's."""
        super().take(answer)
        if not self.is_sure:
            self.is_sure = True
            self.process.remember_plan(self.run_id, self.plan)
        asked, self._claiming = self._claiming, []
        claims = {claim.call: claim for claim in answer.claimed}
        for call in asked:
            claim, tickets = claims.pop(call, None), self._waiting.pop(call).tickets
            if claim is None:
                self._over.append((call, tickets))
            else:
                self._seats[claim] = _Seat(self.claimant, tickets)
        for claim in claims.values():
            self._seats[claim] = _Seat(self.claimant, ())
        self._slots.take(len(claims))  # kept: no message brought them

    def send(self, publish: Callable[[], object]) -> None:
        """Publishes with `send_all`: what was claimed in the same transition is to begin before hundreds of messages
        are written. Should this process die first, the sweeper publishes them."""
        self._unsent.append(publish)

    def send_all(self) -> None:
        """Publishes what transitions made ready."""
        while self._unsent:
            self._unsent.popleft()()

    def holders(self) -> set[str]:
        """In whose names its calls are claimed."""
        return {seat.holder for seat in self._seats.values()}

    def holder(self, claim: Claim) -> str:
        """In whose name a call is claimed."""
        return self._seats[claim].holder

    def keep(self, calls: Sequence[str]) -> int:
        """How many of the calls about to be released this process goes on to: its share, where it has room."""
        config = self.process.settings
        if not (calls and config.continuation_calls and config.continuation_s):
            return 0
        if not all(runs_here(self.plan, call) for call in calls):
            return 0
        queue = self.plan.plan.nodes[CallId(calls[0]).node].queue
        share = math.ceil(len(calls) / max(self.process.slots(queue), 1))
        kept = min(share, self._room)
        self._room -= kept
        return kept

    # -- the end of calls --------------------------------------------------------------------------------------------

    def settle_landed(self, now: float, *, room: int) -> None:
        """Settles what has run. When the server is away, what is left stays, for another time.

        Args:
            room: slots for calls of a fan-out that this process goes on to.
        """
        self._room = max(room, 0)
        while self.landed:
            flight, outcome = self.landed[0]
            if callable(outcome):
                outcome = outcome()
                self.landed[0] = flight, outcome  # it is not made again
            self.settle(flight.work.claim, outcome, now - flight.since)
            self.landed.popleft()

    def settle(self, claim: Claim, outcome: Outcome, length_s: float) -> None:
        """A call ended; its message is done with it once `close_recorded` finds it recorded."""
        if isinstance(outcome, Expand):
            with self._in_a_name_of_its_own():
                self.settling.settle(claim, outcome, length_s)
        else:
            self.settling.settle(claim, outcome, length_s)
        self._over.append((claim.call, self._seats.pop(claim).tickets))

    def close_recorded(self) -> None:
        """Where everything that ended is recorded, or was never ours: closes it in its messages, frees its slots."""
        if self._over and not self.finished:
            over, self._over = self._over, []
            for call, tickets in over:
                _close(tickets, call)
            self._slots.give(len(over))

    def close(self) -> None:
        """Nothing more happens here: its messages are done, its slots free."""
        self._over += [(claim.call, seat.tickets) for claim, seat in self._seats.items()]
        self._over += [(call, waiting.tickets) for call, waiting in self._waiting.items()]
        for kept in (self._seats, self._waiting, self.given, self.claimed, self.landed):
            kept.clear()
        self.finished = Finished()
        self.close_recorded()

    def withdraw(self) -> list[tuple[str, Callable[[], object]]]:
        """The calls that wait, which keep their slots, each with what tells its messages that it is over: nothing else
        of the run is here, and these are no more."""
        waiting, self._waiting = self._waiting, {}
        self.given.clear()
        self.close_recorded()
        return [(call, partial(_close, waits.tickets, call)) for call, waits in waiting.items()]

    def hand_back_late(self, since: float) -> bool:
        """Gives back the calls that no slot was free for since a monotonic time; says whether there were any."""
        late = [call for call in self.given if self._waiting[call].since <= since]
        if not late:
            return False
        self.process.publish(self.run_id, self.plan, by_queue(self.plan, late))
        self.given = deque(call for call in self.given if self._waiting[call].since > since)
        self._over += [(call, self._waiting.pop(call).tickets) for call in late]
        return True

    def give_up(self, now: float) -> None:
        """Records what has run, and has the rest run again elsewhere. Its messages are not done."""
        self.settle_landed(now, room=0)
        while self.step(room=0):
            pass
        self.send_all()
        claims = [(claim.call, claim.fence) for claim in self._seats]
        if claims:
            groups = self.process.ledger.hand_back(self.run_id, claims, holder=self.claimant)
            self.process.publish(self.run_id, self.plan, groups)


def runs_here(plan: PreparedPlan, call: str) -> bool:
    """Whether a call runs on the loop, or needs nothing but the clerk."""
    named = CallId(call)
    return named.closes or plan.node(named.node).is_async


def _close(tickets: Sequence[Ticket], call: str) -> None:
    for ticket in tickets:
        ticket.close([call])


def by_queue(plan: PreparedPlan, calls: Sequence[str]) -> list[Group]:
    """Calls, grouped by the queue that they wait in."""
    groups: dict[str, list[str]] = {}
    for call in calls:
        groups.setdefault(plan.plan.nodes[CallId(call).node].queue, []).append(call)
    return list(groups.items())
