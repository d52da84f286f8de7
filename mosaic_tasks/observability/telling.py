"""The spans of a run, made of what is known of it: the run, its submission, attempts, decisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mosaic_queues.transitions import LiveCall, RunStanding
from mosaic_tasks.mixtures.recording import Record
from mosaic_tasks.observability import names
from mosaic_tasks.observability.current import Current
from mosaic_tasks.observability.ids import read_traceparent, span_of, trace_of
from mosaic_tasks.observability.spans import MOST_LINKS, Attribute, Link, Span

_NS_A_MS = 1_000_000
Attempt = tuple[str, int]
"""A call, and the fence of a claim of it."""


class CallFacts(NamedTuple):
    """What an attempt is told with.

    Attributes:
        kind: of its node, or `close` of what only collects.
        waited_s: from ready to claimed; None: it did not wait.
        read: attempts whose whole outputs it read.
    """

    kind: str
    queue: str
    waited_s: float | None = None
    read: Sequence[Attempt] = ()


def of_run(run_id: str, standing: RunStanding) -> list[Span]:
    """The root, once; and of a run whose nodes ran again after its end: that, below the root."""
    name, again, whole, spans = standing.name, standing.reopened_ms, span_of(run_id), list[Span]()
    if again is None or standing.is_untold:
        root = _to_the_end(run_id, standing, whole, None, f"run {name}", standing.created_ms)
        spans.append(root._replace(links=_links_to(standing.origin)))
    if again is not None:
        identity = span_of(run_id, "again", again)
        spans.append(_to_the_end(run_id, standing, identity, whole, f"rerun {name}", again))
    return spans


def _to_the_end(
    run_id: str, standing: RunStanding, identity: int, parent: int | None, name: str, start_ms: int
) -> Span:
    return Span(
        trace_of(run_id),
        identity,
        parent,
        name,
        start_ms * _NS_A_MS,
        (standing.ended_ms or start_ms) * _NS_A_MS,
        attributes={
            names.RUN: run_id,
            names.WORKFLOW: standing.name,
            names.STATUS: standing.status,
        },
        error="RunFailed" if standing.status == "failed" else "",
    )


def of_submission(run_id: str, workflow: str, origin: str, *, start_ns: int, end_ns: int) -> Span:
    """That a run was opened, in the course of the span `origin`."""
    attributes = {names.RUN: run_id, names.WORKFLOW: workflow}
    return Span(
        trace_of(run_id),
        span_of(run_id, "submit"),
        span_of(run_id),
        f"submit {workflow}",
        start_ns,
        end_ns,
        "producer",
        attributes,
        _links_to(origin),
    )


def of_attempt(call: Current, facts: CallFacts, outcome: str, *, end_ns: int, error: str = "") -> Span:
    """An attempt of a call that has ended."""
    attributes: dict[str, Attribute] = _named(call.run_id, call.node, call.call, call.number, outcome)
    attributes |= {names.KIND: facts.kind, names.QUEUE: facts.queue}
    if facts.waited_s is not None:
        attributes[names.WAITED_S] = facts.waited_s
    if call.chunks:
        attributes[names.CHUNKS] = call.chunks
    read = list(dict.fromkeys([*facts.read, *call.heard]))[:MOST_LINKS]
    return Span(
        call.trace,
        call.span,
        span_of(call.run_id),
        f"call {call.node}",
        call.began_ns,
        end_ns,
        "consumer",
        attributes,
        _links_within(call.run_id, read),
        error,
    )


def of_lost(run_id: str, call: LiveCall, node: str, *, now_ms: int) -> Span:
    """An attempt whose process died; the end is when that was found."""
    return Span(
        trace_of(run_id),
        span_of(run_id, call.call, call.fence),
        span_of(run_id),
        f"call {node}",
        call.at_ms * _NS_A_MS,
        now_ms * _NS_A_MS,
        "consumer",
        _named(run_id, node, call.call, call.failures + call.losses + 1, "lost"),
        error="CallLost",
    )


def of_decision(call: Current, record: Record, *, now_ns: int) -> Span:
    """What a mixture came to, below the attempt that decided; linked to the attempts that it heard."""
    attributes: dict[str, Attribute] = {
        names.NODE: call.node,
        names.BY: record.by,
        names.CONFIDENCE: record.confidence,
        names.ASKED: record.asked,
        names.CUT: record.cut,
        names.UNASKED: record.unasked,
        names.ROUNDS: record.rounds,
        names.SAVED_TOKENS: record.saved_tokens,
    }
    return Span(
        call.trace,
        span_of(call.run_id, call.call, call.fence, "decided"),
        call.span,
        f"decide {call.node}",
        call.began_ns,
        now_ns,
        attributes=attributes,
        links=_links_within(call.run_id, call.heard),
        error="" if record.by else "Undecided",
    )


def _named(run_id: str, node: str, call: str, number: int, outcome: str) -> dict[str, Attribute]:
    return {
        names.RUN: run_id,
        names.NODE: node,
        names.CALL: call,
        names.ATTEMPT: number,
        names.OUTCOME: outcome,
    }


def _links_within(run_id: str, attempts: Iterable[Attempt]) -> list[Link]:
    trace = trace_of(run_id)
    return [(trace, span_of(run_id, *attempt)) for attempt in attempts]


def _links_to(origin: str) -> list[Link]:
    found = read_traceparent(origin)
    return [found[:2]] if found else []


__all__ = ["Attempt", "CallFacts", "of_attempt", "of_decision", "of_lost", "of_run", "of_submission"]
