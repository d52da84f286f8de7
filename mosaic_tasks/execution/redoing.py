"""Which nodes run again when some do: those, and all that depends on them. Pure: a plan in, what the ledger needs
out."""

from __future__ import annotations

from collections.abc import Iterable

from mosaic_queues.transitions import MAILBOX, Redo, Release
from mosaic_tasks.definition.plan import Wait, sinks
from mosaic_tasks.execution.prepared import PreparedPlan, stream_name


def redo_of(plan: PreparedPlan, first: Iterable[int]) -> Redo:
    """What running `first` again comes to. Costs O(plan)."""
    again = _dependants(plan, set(first))
    joins = []
    for number, join in enumerate(plan.plan.joins):
        is_end = number == plan.plan.end
        members = tuple(member for member in join.members if member in again)
        if members or is_end:
            waits = _end_waits(plan) if is_end else plan.plan.nodes[members[0]].waits_for()
            kept = [_output_name(wait) for wait in waits if wait[0] not in again]
            joins.append((str(number), join.size, kept, plan.by_queue(members)))
    roots: list[Release] = plan.by_queue(tuple(number for number in plan.plan.roots if number in again))
    boxes = [
        (f"{number}.{MAILBOX}", list(plan.node(number).streams))
        for number in sorted(again)
        if plan.plan.nodes[number].is_mailbox
    ]
    return Redo(sorted(again), joins, roots, boxes)


def _dependants(plan: PreparedPlan, again: set[int]) -> set[int]:
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(plan.plan.nodes):
        for dep in node.deps:
            readers.setdefault(dep, []).append(number)
        if node.asked_by is not None:
            readers.setdefault(node.asked_by, []).append(number)  # a mixture asks anew
    waiting = list(again)
    while waiting:
        fresh = set(readers.get(waiting.pop(), ())) - again
        again |= fresh
        waiting.extend(fresh)
    return again


def _end_waits(plan: PreparedPlan) -> list[Wait]:
    return [(number, None) for number in sinks(plan.plan.nodes)]


def _output_name(wait: Wait) -> str:
    source, path = wait
    return str(source) if path is None else stream_name(source, path)
