"""What one message holds of its run, and the transitions that record and claim.

Results are recorded together (group commit, a few milliseconds), and the transition that records them claims what
comes next.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mosaic_queues.advancing import Transition
from mosaic_queues.errors import MosaicError
from mosaic_queues.streams import Drain
from mosaic_queues.transitions import (
    EPOCH,
    Advance,
    Claim,
    Done,
    Group,
    JoinStep,
    Usage,
    route_of,
)
from mosaic_tasks.execution.calls import execution_of
from mosaic_tasks.execution.outcomes import Published
from mosaic_tasks.execution.prepared import CallId, PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.sharing import TOGETHER, calls_to_keep, claim_size
from mosaic_tasks.execution.together import go_alone

log = structlog.get_logger(__name__)


class ServerAwayError(RedisError):
    """The server did not answer others in the same trip, a moment ago; nobody knows what it did of it."""


COMMIT_S = 0.005
"""Results wait for each other so long before they are recorded."""
CLAIM_MOST = 64


@dataclass
class Finished:
    """What the next transition records: calls, the joins they raise, and what they used.

    Attributes:
        values: by call, under which name its envelope is at hand for later calls once it is recorded.
        publications: by call, what it has said.
    """

    done: list[Done] = field(default_factory=list)
    joins: dict[str, JoinStep] = field(default_factory=dict)
    usages: list[Usage] = field(default_factory=list)
    values: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    publications: dict[str, Published] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.done or self.usages)

    def released(self) -> list[str]:
        """The calls that the joins may release."""
        groups = [group for step in self.joins.values() for group in step.members or ()]
        return [call for group in groups for call in group[1]]

    def put_back(self, earlier: Finished) -> None:
        """Takes in what could not be recorded."""
        self.done[:0] = earlier.done
        self.usages[:0] = earlier.usages
        self.joins = earlier.joins | self.joins
        self.values = earlier.values | self.values
        self.publications = earlier.publications | self.publications

    def without_flushes(self, calls: Sequence[str]) -> Finished:
        """These calls, whose last chunks go apart."""
        return Finished(
            [item._replace(flushes=()) for item in self.done if item.call in calls],
            self.joins,
            values={call: value for call, value in self.values.items() if call in calls},
            publications={call: said for call, said in self.publications.items() if call in calls},
        )


class Holding:
    """The calls that a message was given and has claimed, and what of them is finished but not recorded.

    The drive's own thread claims and records; the watch's thread calls `commit` and `hand_back`. `lock` guards what
    both change.

    Attributes:
        given: not claimed.
        claimed: not begun.
        opened: what mailboxes among them read first.
    """

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan, calls: Sequence[str]) -> None:
        self.process, self.run_id, self.plan = process, run_id, plan
        self.execution = execution_of(process, run_id, plan)
        self.claimant = process.claimant()
        self.started = time.monotonic()
        self.lock = threading.Lock()
        self.claimed: deque[Claim] = deque()
        self.opened: dict[str, Drain] = {}
        self.finished = Finished()
        self.given = deque(calls)
        self._continued = 0

    def __bool__(self) -> bool:
        return bool(self.given or self.claimed or self.finished)

    def let_go(self) -> None:
        """Whatever is still claimed goes back."""
        self.process.let_go(self.run_id, self.claimant)

    def next_claim(self) -> Claim | None:
        """The next call to run."""
        with self.lock:
            return self.claimed.popleft() if self.claimed else None

    def advance(self) -> None:
        """One transition: records what is finished, claims what comes next."""
        go_alone(self.advancing(), self._advance)

    def advancing(self) -> Generator[Transition, Advance, None]:
        """The same, where the ledger may be asked for several at once."""
        finished = self._drain()
        with self.lock:
            wanted = self._wanted()
        if not finished and not wanted:
            return
        keep = 0 if self.given or self.claimed else self.keep(finished.released())
        try:
            answer = yield from self._recorded(finished, wanted, keep)
        except RedisError:
            with self.lock:
                self.finished.put_back(finished)
                self.given.extendleft(reversed(wanted))
            raise
        if answer.stale:
            log.info(
                "drive.stale",
                what="results refused, their claims were lost",
                run=self.run_id,
                calls=answer.stale,
            )
        self.take(answer)

    def _recorded(
        self, finished: Finished, wanted: Sequence[str], keep: int
    ) -> Generator[Transition, Advance, Advance]:
        try:
            answer = yield self._asked(finished, wanted, keep)
        except (RedisConnectionError, RedisTimeoutError):
            return self.again(lambda keep: self._transition(finished, (), keep))
        return self._noted(finished, answer)

    def _drain(self) -> Finished:
        """Takes what is finished."""
        with self.lock:
            finished, self.finished = self.finished, Finished()
        return finished

    def _transition(self, finished: Finished, wanted: Sequence[str], keep: int) -> Advance:
        return self._noted(finished, self._advance(self._asked(finished, wanted, keep)))

    def _advance(self, asked: Transition) -> Advance:
        return self.process.ledger.advance(asked.run_id, **asked.options())

    def _asked(self, finished: Finished, wanted: Sequence[str], keep: int) -> Transition:
        if wanted or keep:
            self.process.assure_alive()
        return Transition(
            self.run_id,
            self.claimant,
            finished.done,
            list(finished.joins.values()),
            finished.usages,
            wanted,
            read=[*self.execution.inputs.absent(wanted), *self._sent(wanted)],
            keep=keep,
            serves=self.process.serves,
            open_={
                call: list(self.plan.node(CallId(call).node).streams) for call in wanted if CallId(call).reads
            },
            fences=self.process.observer.tracer is not None,
        )

    def _noted(self, finished: Finished, answer: Advance) -> Advance:
        if answer.gaps:
            self._say_again(finished.without_flushes(answer.gaps))
        for call in (*answer.stale, *answer.gaps):
            finished.values.pop(call, None)
        for call, said in finished.publications.items():
            if call not in answer.gaps:
                said.abandon()
        for shadow in answer.dropped:
            self.execution.release(shadow)
        for name, envelope in finished.values.values():
            self.process.remember_value(self.run_id, self.execution.epoch, name, envelope)
        return answer

    def _say_again(self, unrecorded: Finished) -> None:
        """The server has lost what these calls said before their last chunks. They are recorded once it is said again;
        where it cannot be, they run again, as the ledger finds that it is not there."""
        for call, said in unrecorded.publications.items():
            log.warning("drive.gap", what="chunks were lost, they are sent again", run=self.run_id, call=call)
            try:
                said.flush()
            except (RedisError, MosaicError) as error:
                log.warning("drive.unsaid", what="they cannot be sent", run=self.run_id, error=str(error))
        with self.lock:
            self.finished.put_back(unrecorded)

    def _sent(self, calls: Sequence[str]) -> list[str]:
        """Under which names it is recorded where the router sent these calls; each time anew, for that may change."""
        return [route_of(call) for call in calls if self.plan.is_routed(call)]

    def again(self, transition: Callable[[int], Advance]) -> Advance:
        """The answer was lost: record again (a repetition is refused), claim nothing, and let go of what the lost
        answer may have claimed, by taking a new name."""
        log.warning("drive.again", what="answer lost, the transition is repeated", run=self.run_id)
        answer = transition(0)
        with self.lock:
            self.claimed.clear()
            self.given.clear()
        self.let_go()
        return answer

    def take(self, answer: Advance) -> None:
        """Keeps what a transition claimed, publishes what it made ready."""
        epoch = max((claim.fence // EPOCH for claim in answer.claimed), default=0)
        if epoch > self.execution.epoch:
            earlier = self.execution
            self.execution = execution_of(self.process, self.run_id, self.plan, epoch=epoch)
            self.execution.go_on_from(earlier)
        if answer.waited_ms:
            self.execution.observing.waited(answer.waited_ms)
        for call, envelope in answer.outputs.items():
            self.process.remember_value(self.run_id, self.execution.epoch, call, envelope)
        self.opened.update(answer.opened)
        if answer.ready:
            self.send(partial(self.process.publish, self.run_id, self.plan, answer.ready))
        with self.lock:
            self.claimed.extend(answer.claimed)
        if answer.claimed and self.plan.has_recalls:
            self.process.listen_to_recalls()

    def send(self, publish: Callable[[], object]) -> None:
        """Publishes what a transition made ready."""
        publish()

    def _wanted(self) -> list[str]:
        """The next calls of the message to claim: what starts within the commit window."""
        if not self.given or self.claimed:
            return []
        length = self.plan.expected_length(self.process.lengths, self.given[0])
        number = CallId(self.given[0]).node
        most = (
            TOGETHER
            if self.plan.node(number).is_async
            else claim_size(length, window_s=COMMIT_S, most=CLAIM_MOST)
        )
        return [self.given.popleft() for _ in range(min(most, len(self.given)))]

    def keep(self, calls: Sequence[str]) -> int:
        """How many of the calls about to be released this process goes on to itself."""
        if not calls or self._are_hosted(calls):
            return 0
        config = self.process.settings
        spent = time.monotonic() - self.started
        queue = self.plan.plan.nodes[CallId(calls[0]).node].queue
        keep = calls_to_keep(
            len(calls),
            length_s=self.plan.expected_length(self.process.lengths, calls[0]),
            workers=self.process.slots(queue),
            budget_calls=config.continuation_calls - self._continued,
            budget_s=config.continuation_s - spent,
        )
        self._continued += keep
        return keep

    def _are_hosted(self, calls: Sequence[str]) -> bool:
        """Whether one of these calls belongs on the loop that the calls of this process share."""
        if self.process.host is None:
            return False
        return any(self.plan.node(number).is_async for number in {CallId(call).node for call in calls})

    def hand_back(self) -> None:
        """Gives back the calls that wait behind the one that runs."""
        with self.lock:
            given, self.given = list(self.given), deque()
            held, self.claimed = list(self.claimed), deque()
        groups: list[Group] = []
        try:
            if held:
                claims = [(claim.call, claim.fence) for claim in held]
                groups += self.process.ledger.hand_back(self.run_id, claims, holder=self.claimant)
        except RedisError:
            with self.lock:
                self.given.extendleft(reversed(given))
                self.claimed.extendleft(reversed(held))
            raise
        if given:
            groups.append((self.plan.plan.nodes[CallId(given[0]).node].queue, given))
        self.process.publish(self.run_id, self.plan, groups)

    def commit(self) -> None:
        """Records what is finished while a long call runs, so that nobody waits for it."""
        finished = self._drain()
        if not finished:
            return
        try:
            answer = self._transition(finished, (), 0)
        except RedisError:
            with self.lock:
                self.finished.put_back(finished)
            raise
        self.process.publish(self.run_id, self.plan, answer.ready)
