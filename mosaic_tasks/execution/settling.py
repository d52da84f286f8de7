"""What becomes of a call once its outcome is known: recorded with others, expanded, tried again or failed."""

from __future__ import annotations

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mosaic_queues.errors import ClaimLost
from mosaic_queues.transitions import Advance, Claim, Done, DoneKind, Usage, is_shadow
from mosaic_tasks.definition.plan import NodePlan
from mosaic_tasks.execution.holding import Holding
from mosaic_tasks.execution.observing import Observing
from mosaic_tasks.execution.outcomes import (
    Ending,
    Expand,
    Failure,
    Outcome,
    Overtaken,
    Returned,
    Skip,
    Unrecorded,
    Value,
    retry_pause,
)
from mosaic_tasks.execution.prepared import CallId

log = structlog.get_logger(__name__)


class Settling:
    """Settles the calls of one message; failures and fan-outs are their own transitions, the rest waits in `holding`
    for the next one."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._process, self._plan, self._run_id = holding.process, holding.plan, holding.run_id

    @property
    def _observing(self) -> Observing:
        return self._holding.execution.observing

    def report_start(self, claim: Claim) -> None:
        """Tells those who watch that a call begins."""
        self._observing.begins(claim)
        plan, number = self._plan.plan, CallId(claim.call).node
        self._process.reporter.started(
            self._run_id,
            claim.call,
            workflow=plan.name,
            node=plan.nodes[number].name,
            attempt=claim.failures + claim.losses + 1,
        )

    def settle(self, claim: Claim, outcome: Outcome, length_s: float) -> None:
        """Turns an outcome into what the next transition records; failures and fan-outs are their own transitions."""
        ends = self._observing.ends
        match outcome:
            case Value(envelope, shown, ending, usage):
                self._finish(claim, envelope, skipped=False, usage=usage, ending=ending)
                self._process.lengths.add(self._plan.length_key(claim.call), length_s)
                self._process.reporter.succeeded(self._run_id, claim.call, length_s, shown)
                ends(claim, "done", usage=usage)
            case Skip(reason):
                self._skip(claim, reason, self._holding.execution.endings.of_skip(CallId(claim.call), reason))
                self._process.reporter.succeeded(self._run_id, claim.call, length_s, f"skipped: {reason}")
                ends(claim, "skipped")
            case Expand(size):
                self._expand(claim, size)
                self._process.reporter.succeeded(self._run_id, claim.call, length_s, f"{size} items")
                ends(claim, "expanded")
            case Unrecorded(reason, usage, is_lost):
                if usage is not None:
                    with self._holding.lock:
                        self._holding.finished.usages.append(usage)
                ends(claim, "dropped" if is_lost else "waiting", usage=usage)
                if is_lost:  # else it goes on: a mailbox waits for more
                    self._process.reporter.revoked(self._run_id, claim.call, reason)
            case Overtaken(of_call, own):
                self._observing.goes_on_as(claim, of_call)
                self.settle(of_call, own, length_s)
                self._process.reporter.succeeded(self._run_id, claim.call, length_s, "it answered first")
                ends(claim, "overtook")
            case Failure() | Returned() if is_shadow(claim.call):
                self._drop(claim, outcome)
            case Failure():
                self.fail(claim, outcome)
            case Returned():
                self._return(claim, outcome)

    def _drop(self, claim: Claim, outcome: Failure | Returned) -> None:
        """A shadow that has no answer to give is gone; the call itself goes on where it is."""
        back = [(claim.call, claim.fence)]
        self._process.ledger.hand_back(self._run_id, back, holder=self._holding.claimant)
        reason = outcome.error if isinstance(outcome, Failure) else outcome.reason
        if isinstance(outcome, Failure) and outcome.usage is not None:
            with self._holding.lock:
                self._holding.finished.usages.append(outcome.usage)
        self._process.reporter.failed(self._run_id, claim.call, reason, retried=False)
        usage = outcome.usage if isinstance(outcome, Failure) else None
        self._observing.ends(claim, "failed", error=reason, usage=usage)
        log.info(
            "call.shadow_dropped",
            what="asking a second time has failed, the call itself goes on",
            run=self._run_id,
            call=claim.call,
            error=reason,
        )

    def _return(self, claim: Claim, outcome: Returned) -> None:
        """The call is ready again. Why is told once, by what watches the engine."""
        back = [(claim.call, claim.fence)]
        holder, is_loss = self._holding.claimant, outcome.is_loss
        groups = self._process.ledger.hand_back(self._run_id, back, holder=holder, is_loss=is_loss)
        self._process.reporter.failed(self._run_id, claim.call, outcome.reason, retried=True)
        self._observing.ends(claim, "returned", error="EngineGone")
        log.info(
            "call.returned",
            what="engine gone, the call runs again",
            run=self._run_id,
            call=claim.call,
            error=outcome.reason,
        )
        self._process.publish(self._run_id, self._plan, groups)

    def _skip(self, claim: Claim, reason: str, ending: Ending) -> None:
        self._finish(claim, self._process.payloads.skipped(reason), skipped=True, ending=ending)

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
        steps = self._plan.steps(call)
        kind: DoneKind = "skipped" if skipped else "done"
        with self._holding.lock:
            self._holding.finished.done.append(
                Done(
                    claim.call,
                    claim.fence,
                    envelope,
                    kind,
                    self._plan.raised(call),
                    ending.marks,
                    ending.fields,
                    ending.flushes,
                )
            )
            if ending.publication is not None:
                self._holding.finished.publications[claim.call] = ending.publication
            if usage is not None:
                self._holding.finished.usages.append(usage)
            self._holding.finished.joins.update((step.name, step) for step in steps)
            if call.item is None:
                self._holding.finished.values[claim.call] = (str(call.node), envelope)

    def _expand(self, claim: Claim, size: int) -> None:
        number = CallId(claim.call).node
        queue = self._plan.plan.nodes[number].queue
        calls = [f"{number}.{item}" for item in range(size)]
        close = self._plan.close_of(number)
        keep = self._holding.keep(calls or close[1])

        def expand(keep: int) -> Advance:
            if keep:
                self._process.assure_alive()
            return self._process.ledger.expand(
                self._run_id,
                claim,
                holder=self._holding.claimant,
                join=f"n{number}",
                items=[(queue, calls)] if calls else [],
                size=size,
                close=close,
                keep=keep,
                serves=self._process.serves,
            )

        try:
            answer = expand(keep)
        except (RedisConnectionError, RedisTimeoutError):
            answer = self._holding.again(expand)
        if size:
            header = answer.ready
            self._holding.send(lambda: self._process.publish_chord(self._run_id, self._plan, header, close))
            answer = answer._replace(ready=[])
        self._holding.take(answer)

    def fail(self, claim: Claim, outcome: Failure) -> None:
        """Another attempt, the node's declared way out, or the end of the run. Also called by the watch."""
        node = self._plan.node(CallId(claim.call).node)
        failures = 0 if outcome.is_first else claim.failures
        pause = retry_pause(node, failures) if outcome.retryable else None
        if pause is None and self._plan.is_asked(claim.call):
            self._tell_mixture(claim, outcome.error)
        elif pause is None and node.plan.on_failure != "fail":
            self._end_in_spite(claim, node.plan, outcome.error)
        else:
            self._process.ledger.fail(
                self._run_id, claim, holder=self._holding.claimant, error=outcome.error, retry_s=pause
            )
        # From here on the server is not needed, so that nothing is told or noted twice where it was away.
        if outcome.usage is not None:
            with self._holding.lock:
                self._holding.finished.usages.append(outcome.usage)
        told = "failed" if pause is None else "retried"
        self._observing.ends(claim, told, error=outcome.error, usage=outcome.usage)
        if outcome.is_revoked:
            self._process.reporter.revoked(self._run_id, claim.call, outcome.error)
        else:
            self._process.reporter.failed(self._run_id, claim.call, outcome.error, retried=pause is not None)
        log.warning(
            "call.failed",
            what="call failed",
            run=self._run_id,
            node=node.name,
            call=claim.call,
            attempt=failures + 1,
            error=outcome.error,
            retry_s=pause,
        )

    def _tell_mixture(self, claim: Claim, error: str) -> None:
        """The failure is what the mixture hears."""
        execution = self._holding.execution
        heard = execution.in_spite(claim, error)
        ending = execution.endings.of_value(CallId(claim.call), heard)
        self._finish(claim, self._process.payloads.pack(self._run_id, heard), skipped=False, ending=ending)

    def _end_in_spite(self, claim: Claim, node: NodePlan, error: str) -> None:
        """The declared way out of a failure: skipped, or with its default. Where the claim is lost, another attempt
        decides."""
        endings, holder = self._holding.execution.endings, self._holding.claimant
        self._holding.execution.abandon(claim)
        try:
            if node.on_failure == "skip":
                self._skip(claim, error, endings.taken_back(claim, error, holder=holder))
            else:
                envelope = self._process.payloads.pack(self._run_id, node.default)
                ending = endings.replaced(claim, node.default, holder=holder)
                self._finish(claim, envelope, skipped=False, ending=ending)
        except ClaimLost as lost:
            log.info(
                "drive.stale",
                what="results refused, their claims were lost",
                run=self._run_id,
                error=str(lost),
            )
