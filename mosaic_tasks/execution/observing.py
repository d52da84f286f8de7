"""What an execution tells of its calls to those who watch many runs: when each began, how it ended, what it read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mosaic_queues.transitions import EPOCH, Claim, Usage, fence_of
from mosaic_tasks.execution.prepared import CallId, PreparedNode, PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.observability import figures
from mosaic_tasks.observability.current import Current, current
from mosaic_tasks.observability.telling import Attempt, CallFacts

_FIRST_FENCE = 1


class Observing:
    """Of the calls of one run in one thread, or on one host."""

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan) -> None:
        self._process, self._run_id, self._plan = process, run_id, plan
        self._observer = process.observer
        self._calls: dict[Claim, Current] = {}
        self._waited_s: dict[str, float] = {}

    def waited(self, waited_ms: Mapping[str, int]) -> None:
        """These calls were claimed, after they had been ready for so long."""
        for call, ms in waited_ms.items():
            seconds = max(ms, 0) / 1000
            self._observer.tallies.observe(figures.QUEUED, seconds, self._queue(call))
            if self._observer.tracer is not None:
                self._waited_s[call] = seconds

    def begins(self, claim: Claim) -> None:
        """An attempt begins."""
        node = self._plan.plan.nodes[CallId(claim.call).node].name
        number = claim.failures + claim.losses + 1
        self._calls[claim] = Current(
            self._observer.means, self._run_id, node=node, call=claim.call, fence=claim.fence, number=number
        )

    def of(self, claim: Claim) -> Current | None:
        """The attempt that has begun."""
        return self._calls.get(claim)

    def goes_on_as(self, claim: Claim, other: Claim) -> None:
        """A shadow took its call over."""
        own = self._calls.get(claim)
        if own is not None:
            self.begins(other)
            self._calls[other].began_ns = own.began_ns

    def ends(self, claim: Claim, outcome: str, *, error: str = "", usage: Usage | None = None) -> None:
        """An attempt ended; what it used is told once for each claim."""
        if usage is not None:
            self._observer.used(usage)
        call = self._calls.pop(claim, None)
        if call is None:
            return
        self._observer.ended(call, self._facts(claim), outcome, error=error)
        if self._observer.tracer is not None and outcome == "done":
            self._remember(claim)

    def _facts(self, claim: Claim) -> CallFacts:
        call = CallId(claim.call)
        node = self._plan.node(call.node)
        kind = "close" if call.closes else node.plan.kind
        if self._observer.tracer is None:
            return CallFacts(kind, node.plan.queue)
        waited_s = self._waited_s.pop(claim.call, None)
        return CallFacts(kind, node.plan.queue, waited_s, list(self._read(node, claim)))

    def _queue(self, call: str) -> str:
        return self._plan.plan.nodes[CallId(call).node].queue

    # -- whose outputs were read ---------------------------------------------------------------------------------------

    def _remember(self, claim: Claim) -> None:
        """By which claim an output was made, for those that read it in this process."""
        call = CallId(claim.call)
        name = str(call.node) if call.closes or call.reads else claim.call
        if claim.fence != _FIRST_FENCE or name != claim.call:
            epoch, told = claim.fence // EPOCH, f"{claim.call}#{claim.fence}".encode()
            self._process.remember_value(self._run_id, epoch, fence_of(name), told)

    def _read(self, node: PreparedNode, claim: Claim) -> Iterable[Attempt]:
        """The attempts that made the outputs which a call reads as a whole; those of streams say so in their chunks."""
        epoch = claim.fence // EPOCH
        for source in sorted({*node.required, *node.optional, *node.fields}):
            if source < 0:
                continue
            told = self._process.value(self._run_id, epoch, fence_of(str(source)))
            yield _attempt(told) if told is not None else (self._closing(source), _FIRST_FENCE)

    def _closing(self, source: int) -> str:
        """The call that records the output of a node, where nothing else is known."""
        plan = self._plan.plan.nodes[source]
        if plan.for_each is not None:
            return self._plan.close_of(source)[1][0]
        return f"{source}.m" if plan.is_mailbox else str(source)


def _attempt(told: bytes) -> Attempt:
    call, _, fence = told.decode().partition("#")
    return call, int(fence)


def heard_of(calls: Sequence[str], fences: Sequence[bytes | None]) -> None:
    """The current call reads the outputs of these calls.

    Args:
        fences: what the outputs hold under their `fence_of`; empty: nobody asked.
    """
    reader = current()
    if reader is not None:
        for call, told in zip(calls, fences, strict=False):
            reader.hear(*(_attempt(told) if told else (call, _FIRST_FENCE)))


def with_fences(process: Process, outputs: Sequence[str]) -> list[str]:
    """Names of outputs, and where this process traces, those under which it says who made them."""
    if process.observer.tracer is None:
        return list(outputs)
    return [*outputs, *(fence_of(name) for name in outputs)]


__all__ = ["Observing", "heard_of", "with_fences"]
