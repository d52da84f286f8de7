"""Runs the calls of one message, and those that they make ready, until its budget is spent.

The loop: claim some, run them, record them and claim the next in one transition. Short calls are recorded together
(group commit, a few milliseconds); a batch that turns out long is handed back by the watch while its first call runs.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mosaic_queues.errors import ClaimLost, RunCancelled, UnknownRun
from mosaic_queues.ledger import EPOCH, Advance, Claim, Done, DoneKind, Group, JoinStep, Usage
from mosaic_queues.streams import Drain
from mosaic_tasks.definition.plan import NodePlan
from mosaic_tasks.execution.calls import execution_of
from mosaic_tasks.execution.interrupting import Interrupted
from mosaic_tasks.execution.loop import forget_loop, run_on_loop
from mosaic_tasks.execution.outcomes import (
    Ending,
    Expand,
    Failure,
    Outcome,
    Read,
    Skip,
    Value,
    Work,
    failure,
    retry_pause,
    timed_out,
)
from mosaic_tasks.execution.prepared import CallId
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.running import Running
from mosaic_tasks.execution.sharing import TOGETHER, calls_to_keep, claim_size
from mosaic_tasks.execution.watch import watching

log = structlog.get_logger(__name__)

COMMIT_S = 0.005
"""Results wait for each other so long before they are recorded."""
CLAIM_MOST = 64
STATUS_EVERY_S = 1.0
"""A long call looks so often whether its run still wants it."""
STUCK_EXIT = 75


@dataclass
class Finished:
    """What the next transition records: calls, the joins they raise, and what they used.

    Attributes:
        values: by call, under which name its envelope is at hand for later calls once it is recorded.
    """

    done: list[Done] = field(default_factory=list)
    joins: dict[str, JoinStep] = field(default_factory=dict)
    usages: list[Usage] = field(default_factory=list)
    values: dict[str, tuple[str, bytes]] = field(default_factory=dict)

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


class Drive:
    """One message's work on one run.

    The drive's own thread runs and records; the watch's thread calls `look`. They share what `_lock` guards: calls
    given and claimed but not begun, and what is finished but not recorded. `_looking` is held while the watch acts, so
    that the drive does not end in the middle of it.
    """

    def __init__(self, process: Process, run_id: str, calls: Sequence[str]) -> None:
        self.process, self.run_id = process, run_id
        self.started = time.monotonic()
        self._running: Running | None = None
        self._looking = threading.Lock()
        self._looked = 0.0
        self._over = False
        self._given = deque(calls)
        self._claimed: deque[Claim] = deque()
        self._finished = Finished()
        self._opened: dict[str, Drain] = {}
        self._continued = 0
        self._lock = threading.Lock()

    def load(self) -> bool:
        """Reads the plan; False when the run is gone."""
        try:
            self.plan = self.process.plan_of(self.run_id)
        except UnknownRun as error:
            log.info("drive.gone", what="message of a run that is gone", run=self.run_id, error=str(error))
            return False
        self.execution = execution_of(self.process, self.run_id, self.plan)
        self._claimant = self.process.claimant()
        unknown = [call for call in self._given if not self.plan.knows(call)]
        if unknown:
            log.warning(
                "drive.unknown", what="calls that the plan does not know", run=self.run_id, calls=unknown
            )
            self._given = deque(call for call in self._given if self.plan.knows(call))
        return True

    def let_go(self) -> None:
        """Whatever this drive still holds goes back."""
        self.process.let_go(self.run_id, self._claimant)

    def run(self) -> None:
        """Runs until nothing is left that this message may do."""
        while not self._ends():
            self._advance()
            while self._claimed:
                self._run_some()
                self._advance()

    def _ends(self) -> bool:
        """Whether all is done; the watch may have put something back that it could not hand over."""
        with self._looking:
            self._over = not (self._given or self._claimed or self._finished)
            return self._over

    # -- running -----------------------------------------------------------------------------------------------

    def _run_some(self) -> None:
        """Runs held calls until the commit window closes."""
        until = time.monotonic() + COMMIT_S
        with self._lock:
            held = [claim.call for claim in self._claimed]
        self.execution.inputs.fetch(held)
        together: list[Work] = []
        while (claim := self._next_claim()) is not None:
            opened = self._opened.pop(claim.call, None)
            prepared = self.execution.prepare(claim, holder=self._claimant, opened=opened)
            self._report_start(claim)
            if not isinstance(prepared, Work):
                self._settle(claim, prepared, 0.0)
            elif prepared.is_async:
                together.append(prepared)
                if len(together) < TOGETHER:
                    continue
            else:
                self._run_sync(prepared)
            if together or time.monotonic() >= until:
                break
        if together:
            self._run_together(together)

    def _next_claim(self) -> Claim | None:
        with self._lock:
            return self._claimed.popleft() if self._claimed else None

    def _run_sync(self, work: Work) -> None:
        running = Running([work], together=False, batch_since=self.execution.batch_since)
        begun = time.perf_counter()
        try:
            with running.context:
                self._running = running
                outcome = self.execution.run(work)
        except Interrupted:
            outcome = failure(work.node, work.claim, running.reason or Interrupted())
        finally:
            self._running = None
        self._settle(work.claim, outcome, time.perf_counter() - begun)

    def _run_together(self, works: Sequence[Work]) -> None:
        running = Running(works, together=True, batch_since=self.execution.batch_since)

        async def run_one(work: Work) -> None:
            running.begin()
            try:
                outcome = await self.execution.run_async(work)
            except Interrupted:
                outcome = failure(work.node, work.claim, running.reason or timed_out(work.node))
            except asyncio.CancelledError as error:
                if running.is_interrupted:
                    raise
                outcome = failure(work.node, work.claim, error)
            running.end(work)
            self._settle(work.claim, outcome, (time.monotonic() - running.since) / len(works))

        async def run_all() -> None:
            tasks = [asyncio.ensure_future(run_one(work)) for work in works]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

        try:
            with running.context:
                self._running = running
                run_on_loop(run_all())
        except (Interrupted, asyncio.CancelledError):
            forget_loop()
            for work in list(running.works):
                reason = running.reason or RunCancelled("the run is over")
                self._settle(work.claim, failure(work.node, work.claim, reason), 0.0)
        finally:
            self._running = None

    # -- recording ---------------------------------------------------------------------------------------------

    def _settle(self, claim: Claim, outcome: Outcome, length_s: float) -> None:
        """Turns an outcome into what the next transition records; failures and fan-outs are their own transitions."""
        match outcome:
            case Value(envelope, shown, ending, usage):
                self._finish(claim, envelope, skipped=False, usage=usage, ending=ending)
                self.process.lengths.add(self.plan.length_key(claim.call), length_s)
                self.process.reporter.succeeded(self.run_id, claim.call, length_s, shown)
            case Skip(reason):
                self._skip(claim, reason, self.execution.endings.of_skip(CallId(claim.call), reason))
                self.process.reporter.succeeded(self.run_id, claim.call, length_s, f"skipped: {reason}")
            case Expand(size):
                self._expand(claim, size)
                self.process.reporter.succeeded(self.run_id, claim.call, length_s, f"{size} items")
            case Read(shown, usage):
                if usage is not None:
                    with self._lock:
                        self._finished.usages.append(usage)
                self.process.reporter.succeeded(self.run_id, claim.call, length_s, shown)
            case Failure():
                self._fail(claim, outcome)

    def _skip(self, claim: Claim, reason: str, ending: Ending) -> None:
        self._finish(claim, self.process.payloads.skipped(reason), skipped=True, ending=ending)

    def _finish(
        self,
        claim: Claim,
        envelope: bytes,
        *,
        skipped: bool,
        ending: Ending,
        usage: Usage | None = None,
    ) -> None:
        call = CallId(claim.call)
        steps = self.plan.steps(call)
        kind: DoneKind = "skipped" if skipped else "done"
        with self._lock:
            self._finished.done.append(
                Done(claim.call, claim.fence, envelope, kind, self.plan.raised(call), *ending)
            )
            if usage is not None:
                self._finished.usages.append(usage)
            self._finished.joins.update((step.name, step) for step in steps)
            if call.item is None:
                self._finished.values[claim.call] = (str(call.node), envelope)

    def _expand(self, claim: Claim, size: int) -> None:
        number = CallId(claim.call).node
        queue = self.plan.plan.nodes[number].queue
        calls = [f"{number}.{item}" for item in range(size)]
        close = self.plan.close_of(number)
        keep = self._keep(calls or close[1])

        def expand(keep: int) -> Advance:
            if keep:
                self.process.assure_alive()
            return self.process.ledger.expand(
                self.run_id,
                claim,
                holder=self._claimant,
                join=f"n{number}",
                items=[(queue, calls)] if calls else [],
                size=size,
                close=close,
                keep=keep,
                serves=self.process.serves,
            )

        try:
            answer = expand(keep)
        except (RedisConnectionError, RedisTimeoutError):
            answer = self._again(expand)
        if size:
            self.process.publish_chord(self.run_id, self.plan, answer.ready, close)
            answer = answer._replace(ready=[])
        self._take(answer)

    def _fail(self, claim: Claim, outcome: Failure) -> None:
        """Another attempt, the node's declared way out, or the end of the run. Also called by the watch."""
        node = self.plan.node(CallId(claim.call).node)
        if outcome.usage is not None:
            with self._lock:
                self._finished.usages.append(outcome.usage)
        failures = 0 if outcome.is_first else claim.failures
        pause = retry_pause(node, failures) if outcome.retryable else None
        self.process.reporter.failed(self.run_id, claim.call, outcome.error, retried=pause is not None)
        log.warning(
            "call.failed",
            what="call failed",
            run=self.run_id,
            node=node.name,
            call=claim.call,
            attempt=failures + 1,
            error=outcome.error,
            retry_s=pause,
        )
        if pause is None and node.plan.on_failure != "fail":
            self._end_in_spite(claim, node.plan, outcome.error)
        else:
            self.process.ledger.fail(
                self.run_id, claim, holder=self._claimant, error=outcome.error, retry_s=pause
            )

    def _end_in_spite(self, claim: Claim, node: NodePlan, error: str) -> None:
        """The declared way out of a failure: skipped, or with its default. Where the claim is lost, another attempt
        decides."""
        endings, holder = self.execution.endings, self._claimant
        self.execution.abandon(claim)
        try:
            if node.on_failure == "skip":
                self._skip(claim, error, endings.taken_back(claim, error, holder=holder))
            else:
                envelope = self.process.payloads.pack(self.run_id, node.default)
                ending = endings.replaced(claim, node.default, holder=holder)
                self._finish(claim, envelope, skipped=False, ending=ending)
        except ClaimLost as lost:
            log.info(
                "drive.stale",
                what="results refused, their claims were lost",
                run=self.run_id,
                error=str(lost),
            )

    def _advance(self) -> None:
        """One transition: records what is finished, claims what comes next."""
        finished = self._drain()
        with self._lock:
            wanted = self._wanted()
        if not finished and not wanted:
            return
        keep = 0 if self._given or self._claimed else self._keep(finished.released())
        try:
            answer = self._transition(finished, wanted, keep)
        except (RedisConnectionError, RedisTimeoutError):
            answer = self._again(lambda keep: self._transition(finished, (), keep))
        if answer.stale:
            log.info(
                "drive.stale",
                what="results refused, their claims were lost",
                run=self.run_id,
                calls=answer.stale,
            )
        self._take(answer)

    def _drain(self) -> Finished:
        """Takes what is finished."""
        with self._lock:
            finished, self._finished = self._finished, Finished()
        return finished

    def _transition(self, finished: Finished, wanted: Sequence[str], keep: int) -> Advance:
        if wanted or keep:
            self.process.assure_alive()
        answer = self.process.ledger.advance(
            self.run_id,
            holder=self._claimant,
            done=finished.done,
            joins=list(finished.joins.values()),
            usages=finished.usages,
            claim=wanted,
            read=self.execution.inputs.absent(wanted),
            open_={
                call: list(self.plan.node(CallId(call).node).streams) for call in wanted if CallId(call).reads
            },
            keep=keep,
            serves=self.process.serves,
        )
        for call in answer.stale:
            finished.values.pop(call, None)
        for name, envelope in finished.values.values():
            self.process.remember_value(self.run_id, self.execution.epoch, name, envelope)
        return answer

    def _again(self, transition: Callable[[int], Advance]) -> Advance:
        """The answer was lost: record again (a repetition is refused), claim nothing, and let go of what the lost
        answer may have claimed, by taking a new name."""
        log.warning("drive.again", what="answer lost, the transition is repeated", run=self.run_id)
        answer = transition(0)
        with self._lock:
            self._claimed.clear()
            self._given.clear()
        self.let_go()
        return answer

    def _take(self, answer: Advance) -> None:
        epoch = max((claim.fence // EPOCH for claim in answer.claimed), default=0)
        if epoch > self.execution.epoch:
            self.execution = execution_of(self.process, self.run_id, self.plan, epoch=epoch)
        for call, envelope in answer.outputs.items():
            self.process.remember_value(self.run_id, self.execution.epoch, call, envelope)
        self._opened.update(answer.opened)
        self.process.publish(self.run_id, self.plan, answer.ready)
        with self._lock:
            self._claimed.extend(answer.claimed)

    def _wanted(self) -> list[str]:
        """The next calls of the message to claim: what starts within the commit window."""
        if not self._given or self._claimed:
            return []
        length = self.plan.expected_length(self.process.lengths, self._given[0])
        number = CallId(self._given[0]).node
        most = (
            TOGETHER
            if self.plan.node(number).is_async
            else claim_size(length, window_s=COMMIT_S, most=CLAIM_MOST)
        )
        return [self._given.popleft() for _ in range(min(most, len(self._given)))]

    def _keep(self, calls: Sequence[str]) -> int:
        """How many of the calls about to be released this process goes on to itself."""
        if not calls:
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

    def _report_start(self, claim: Claim) -> None:
        node = self.plan.plan.nodes[CallId(claim.call).node].name
        self.process.reporter.started(self.run_id, claim.call, node, claim.failures + claim.losses)

    # -- the watch's side ----------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Hands back what waits behind a long call, ends what runs for too long or for nothing."""
        with self._looking:
            if self._over:
                return
            if now - self.started > 2 * self.process.settings.batch_s:
                self._commit_now()
                self._hand_back()
            if self._running is not None:
                self._look_at(self._running, now)

    def _look_at(self, running: Running, now: float) -> None:
        if running.resists(now):
            self._abandon(running)
        elif running.is_interrupted:
            running.insist(now)
        elif (work := running.overdue(now)) is not None:
            running.interrupt(timed_out(work.node), now)
        elif min(now - running.since, now - self._looked) > STATUS_EVERY_S:
            self._looked = now
            status = self.process.ledger.statuses([self.run_id])[0]
            if status != "running":
                running.interrupt(RunCancelled(f"the run is {status or 'gone'}"), now, politely=True)

    def _abandon(self, running: Running) -> None:
        """Records calls that cannot be interrupted as failed, and ends the process."""
        self.process.reporter.flush()
        for work in list(running.works):
            reason = running.reason or timed_out(work.node)
            self._fail(work.claim, failure(work.node, work.claim, reason))
        self._commit_now()
        names = [work.node.name for work in running.works]
        log.critical(
            "drive.stuck", what="calls cannot be interrupted, the process ends", run=self.run_id, nodes=names
        )
        os._exit(STUCK_EXIT)

    def _hand_back(self) -> None:
        """Gives back the calls that wait behind the one that runs."""
        with self._lock:
            given, self._given = list(self._given), deque()
            held, self._claimed = list(self._claimed), deque()
        groups: list[Group] = []
        try:
            if held:
                claims = [(claim.call, claim.fence) for claim in held]
                groups += self.process.ledger.hand_back(self.run_id, claims, holder=self._claimant)
        except RedisError:
            with self._lock:
                self._given.extendleft(reversed(given))
                self._claimed.extendleft(reversed(held))
            raise
        if given:
            groups.append((self.plan.plan.nodes[CallId(given[0]).node].queue, given))
        self.process.publish(self.run_id, self.plan, groups)

    def _commit_now(self) -> None:
        """Records what is finished while a long call runs, so that nobody waits for it."""
        finished = self._drain()
        if not finished:
            return
        try:
            answer = self._transition(finished, (), 0)
        except RedisError:
            with self._lock:
                self._finished.put_back(finished)
            raise
        self.process.publish(self.run_id, self.plan, answer.ready)


def drive(process: Process, run_id: str, calls: Sequence[str]) -> None:
    """Runs the calls of a message; the body of `mosaic.call` and `mosaic.close`. Raises nothing: a run must not hang
    because a message failed."""
    work = Drive(process, run_id, calls)
    if not work.load():
        return
    try:
        with process.driving(), watching(work):
            work.run()
    except RedisError as error:
        log.error("drive.lost", what="the server was lost, calls go back", run=run_id, error=str(error))
        work.let_go()
    except Exception as error:
        log.exception("drive.error", what="internal error, the run is failed", run=run_id)
        with suppress(RedisError):
            process.ledger.end_run(run_id, "failed", f"internal error in a worker, see its log: {error!r}")
        work.let_go()
    except BaseException:
        work.let_go()
        raise
