"""What a host holds of one run: the calls of any number of messages, those that run, and the messages that wait for
them."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mosaic_queues.transitions import Advance, Claim
from mosaic_tasks.execution.calls import Execution
from mosaic_tasks.execution.holding import CLAIM_MOST, Holding
from mosaic_tasks.execution.outcomes import Outcome, Work
from mosaic_tasks.execution.prepared import CallId, PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.settling import Settling


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
        ending: why it is cancelled; None: it is not.
        is_left: its end is not awaited any more.
    """

    work: Work
    execution: Execution
    since: float
    task: asyncio.Task[None] | None = None
    ending: Exception | None = field(default=None)
    is_left: bool = False


class HostedRun(Holding):
    """The calls of one run on a host. All but `Ticket.close` happens in the host's clerk thread.

    Each transition claims in a name of its own, so that letting go of what a lost answer claimed touches nothing that
    runs.

    Attributes:
        flights: what runs on the loop.
        landed: what has run and is not settled, with what is left to do for its outcome.
        given_at: monotonic time since which a call waits here for a free slot.
    """

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan) -> None:
        super().__init__(process, run_id, plan, ())
        self.settling = Settling(self)
        self.flights: dict[Claim, Flight] = {}
        self.landed: deque[tuple[Flight, Callable[[], Outcome]]] = deque()
        self.given_at = 0.0
        self._tickets: dict[str, list[Ticket]] = {}
        self._asked: list[str] = []
        self._over: list[str] = []
        self._room = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing of the run is here any more."""
        return not (self or self.flights or self.landed or self._over)

    @property
    def waiting(self) -> int:
        """Calls that were given and that no slot was free for."""
        return len(self.given)

    def runs_here(self, call: str) -> bool:
        """Whether a call runs on the loop, or needs nothing but the clerk."""
        named = CallId(call)
        return named.closes or self.plan.node(named.node).is_async

    def give(self, calls: Sequence[str], ticket: Ticket, now: float) -> None:
        """A message brought these calls."""
        if not self.given:
            self.given_at = now
        for call in calls:
            self._tickets.setdefault(call, []).append(ticket)
        self.given.extend(calls)

    def step(self, *, room: int) -> bool:
        """One transition: records what is finished, claims what `room` slots can run. False: there was nothing to do.

        Raises:
            redis.RedisError: it is to be tried again; nothing is lost.
        """
        self._room, self._asked = max(room, 0), []
        if not (self.finished or (self.given and self._room)):
            return False
        self.claimant = self.process.claimant()
        self.advance()
        claimed = {claim.call for claim in self.claimed}
        self._over.extend(call for call in self._asked if call not in claimed)
        return True

    def _wanted(self) -> list[str]:
        count = min(self._room, CLAIM_MOST, len(self.given))
        self._asked = [self.given.popleft() for _ in range(count)]
        self._room -= count
        return self._asked

    def again(self, transition: Callable[[int], Advance]) -> Advance:
        """As in `Holding`; the messages of what it lets go of are done."""
        self._over.extend([*self._asked, *self.given])
        self._asked = []
        return super().again(transition)

    def keep(self, calls: Sequence[str]) -> int:
        """How many of the calls about to be released this process goes on to: its share, where it has room."""
        config = self.process.settings
        if not (calls and config.continuation_calls and config.continuation_s):
            return 0
        if not all(self.runs_here(call) for call in calls):
            return 0
        queue = self.plan.plan.nodes[CallId(calls[0]).node].queue
        share = math.ceil(len(calls) / max(self.process.slots(queue), 1))
        return min(share, self._room)

    def has_ticket(self, call: str) -> bool:
        """Whether a message brought this call."""
        return call in self._tickets

    def settle_landed(self, now: float) -> None:
        """Settles what has run. When the server is away, what is left stays, for another time."""
        while self.landed:
            flight, outcome = self.landed[0]
            self.settle(flight.work.claim, outcome(), now - flight.since)
            self.landed.popleft()

    def settle(self, claim: Claim, outcome: Outcome, length_s: float) -> None:
        """A call ended; its message is done with it once `recorded` says so."""
        self.settling.settle(claim, outcome, length_s)
        self._over.append(claim.call)

    def recorded(self) -> int:
        """Everything that ended is recorded, or was never ours: closes it in its messages. Returns the slots that are
        free again."""
        if self.finished:
            return 0
        over, self._over = self._over, []
        return sum(self._close(call) for call in over)

    def _close(self, call: str) -> int:
        tickets = self._tickets.pop(call, [])
        for ticket in tickets:
            ticket.close([call])
        return max(1, len(tickets))

    def close(self) -> int:
        """Nothing more happens here: its messages are done. Returns the slots that are free again."""
        flights = {claim.call for claim in self.flights}
        return sum(self._close(call) for call in flights | set(self._tickets))

    def hand_back(self) -> None:
        """Gives back the calls that no slot is free for."""
        given = list(self.given)
        super().hand_back()
        self._over.extend(given)
