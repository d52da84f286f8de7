"""Says in sentences what each unfinished node of a run waits for, or how a finished run ended.

Pure: the run's state, its live calls, the live processes and the time in, sentences out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from mosaic_queues.ledger import LiveCall
from mosaic_queues.liveness import Process
from mosaic_tasks.definition.plan import NodePlan, Plan
from mosaic_tasks.inspection.progress import NodeView, RunView
from mosaic_tasks.inspection.wording import counted, duration, listed

SWEEP_S = 0.5


class Explanation(NamedTuple):
    """Why a node is not over; `node` is empty where the sentence is about the run."""

    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.node}: {self.text}" if self.node else self.text


def explain(
    plan: Plan,
    view: RunView,
    live_calls: Sequence[LiveCall],
    processes: Sequence[Process],
    *,
    now_ms: int,
    sweep_s: float = SWEEP_S,
) -> list[Explanation]:
    """What each node that is not over waits for: first the nodes whose calls live, then those behind them.

    Args:
        live_calls: the ledger's.
        processes: those that are alive.
        now_ms: the server's clock.
        sweep_s: pause between two sweeps of a worker.
    """
    if view.status != "running":
        return [Explanation("", ending(view))]
    by_node: dict[int, list[LiveCall]] = {}
    for call in live_calls:
        by_node.setdefault(int(call.call.partition(".")[0]), []).append(call)
    world = _World(processes, now_ms, sweep_s)
    active = [
        Explanation(view.nodes[number].name, _active(plan.nodes[number], view.nodes[number], calls, world))
        for number, calls in sorted(by_node.items())
    ]
    return active + list(_waiting(plan, view, by_node.keys()))


def ending(view: RunView) -> str:
    """How a finished run ended, in one line."""
    took = ""
    if view.opened_ms is not None and view.closed_ms is not None:
        took = f" after {duration(view.closed_ms - view.opened_ms)}"
    if view.status == "done":
        counts = view.counts()
        skipped = f", {counts['skipped']} skipped" if "skipped" in counts else ""
        return f"the run is done{took}: {counted(counts.get('done', 0), 'node')} done{skipped}"
    if view.status == "cancelled":
        return f"the run was cancelled{took}: {view.error or 'no reason given'}"
    failed = [repr(node.name) for node in view.nodes if node.state == "failed"]
    where = f" in node {listed(failed)}" if failed and failed[0] not in view.error else ""
    return f"the run failed{where}{took}: {view.error}"


class _World:
    """What is outside the run: who lives, who serves which queue, what time it is."""

    def __init__(self, processes: Sequence[Process], now_ms: int, sweep_s: float) -> None:
        self.now_ms, self.sweep_s = now_ms, sweep_s
        self.alive = {process.name for process in processes}
        self.has_sweeper = any(process.queues for process in processes)
        self.slots: dict[str, list[int]] = {}
        for process in processes:
            for queue in process.queues:
                self.slots.setdefault(queue, []).append(process.slots)

    def since(self, at_ms: int) -> str:
        return duration(self.now_ms - at_ms)


def _active(plan: NodePlan, node: NodeView, calls: Sequence[LiveCall], world: _World) -> str:
    """One clause for the calls in each state, fan-out progress before them."""
    clauses = [_items(node)] if plan.for_each is not None and node.calls else []
    ready = [call for call in calls if call.state == "ready"]
    delayed = [call for call in calls if call.state == "delayed"]
    claimed = [call for call in calls if call.state == "claimed"]
    if claimed:
        clauses += _claimed(plan, node, claimed, world)
    if ready:
        clauses.append(_ready(plan, node, ready, world))
    if delayed:
        clauses.append(_delayed(plan, node, delayed, world))
    return "; ".join(clauses)


def _items(node: NodeView) -> str:
    left = node.calls - node.calls_done
    return (
        f"{node.calls_done} of {counted(node.calls, 'item')} done, {left} left"
        if left
        else (f"all {counted(node.calls, 'item')} done")
    )


def _ready(plan: NodePlan, node: NodeView, calls: Sequence[LiveCall], world: _World) -> str:
    queue = calls[0].queue
    slots = world.slots.get(queue)
    waits = f"{_subject(plan, calls)} in queue {queue!r}"
    if slots is None:
        return f"{waits}, which no worker serves; start one with: mosaic worker --queues {queue}"
    published_ms = min(call.at_ms for call in calls)  # a call whose message was lost is published again
    since = world.since(published_ms if node.attempts or node.ready_ms is None else node.ready_ms)
    return (
        f"{waits} since {since}, which {counted(len(slots), 'worker')} with {counted(sum(slots), 'slot')} "
        f"{'serves' if len(slots) == 1 else 'serve'}: it starts when a slot is free"
    )


def _subject(plan: NodePlan, calls: Sequence[LiveCall]) -> str:
    if plan.for_each is None:
        return "it waits"
    if any(call.call.endswith(".c") for call in calls):
        return "collecting them waits"
    if not any("." in call.call for call in calls):
        return "reading its list waits"
    return f"{counted(len(calls), 'item')} {'waits' if len(calls) == 1 else 'wait'}"


def _delayed(plan: NodePlan, node: NodeView, calls: Sequence[LiveCall], world: _World) -> str:
    first = min(calls, key=lambda call: call.at_ms)
    left_ms = first.at_ms - world.now_ms
    due = f"is due in {duration(left_ms)}" if left_ms > 0 else f"is due since {duration(-left_ms)}"
    others = f" (and {len(calls) - 1} more)" if len(calls) > 1 else ""
    after = f", after: {node.error}" if node.error else ""
    sentence = f"{_attempt(plan, first)}{_item(first)}{others} {due}{after}"
    if not world.has_sweeper:
        sentence += f"; no worker is alive to start it: mosaic worker --queues {first.queue}"
    return sentence


def _attempt(plan: NodePlan, call: LiveCall) -> str:
    return f"attempt {call.failures + 1} of {plan.retry.attempts}"


def _item(call: LiveCall) -> str:
    _, dot, item = call.call.partition(".")
    return f" of item {item}" if dot and item != "c" else ""


def _claimed(plan: NodePlan, node: NodeView, calls: Sequence[LiveCall], world: _World) -> Iterator[str]:
    by_holder: dict[str, list[LiveCall]] = {}
    for call in calls:
        by_holder.setdefault(call.holder, []).append(call)
    for holder, held in by_holder.items():
        what = "it" if plan.for_each is None or not _item(held[0]) else counted(len(held), "item")
        if holder in world.alive:
            yield _running(plan, node, held, what, world)
        else:
            yield _orphaned(held, what, world)


def _running(plan: NodePlan, node: NodeView, held: Sequence[LiveCall], what: str, world: _World) -> str:
    since = f" since {world.since(node.claimed_ms)}" if node.claimed_ms is not None and what == "it" else ""
    again = f", {_attempt(plan, held[0])}" if held[0].failures else ""
    losses = max(call.losses for call in held)
    again += f", after {counted(losses, 'process', 'processes')} died with it" if losses else ""
    timeout = f", its timeout is {plan.timeout_s:g} s" if plan.timeout_s is not None else ""
    verb = "run" if len(held) > 1 else "runs"
    return f"{what} {verb} in process {held[0].holder}{since}{again}{timeout}"


def _orphaned(held: Sequence[LiveCall], what: str, world: _World) -> str:
    ran = "were" if len(held) > 1 else "was"
    dead = f"{what} {ran} running in process {held[0].holder}, which is dead"
    if world.has_sweeper:
        return f"{dead}; the sweeper of a live worker takes over within {world.sweep_s:g} s"
    return (
        f"{dead}, and no worker is alive to take over; start one with: mosaic worker --queues {held[0].queue}"
    )


def _waiting(plan: Plan, view: RunView, active: Container[int]) -> Iterator[Explanation]:
    """The nodes without live calls. Nodes with the same producers share one sentence."""
    sentences: dict[tuple[int, ...], str] = {}
    for number, node in enumerate(view.nodes):
        if node.is_over or number in active:
            continue
        deps = plan.nodes[number].deps
        if deps not in sentences:
            sentences[deps] = _producers([view.nodes[dep] for dep in deps])
        yield Explanation(node.name, sentences[deps])


def _producers(producers: Sequence[NodeView]) -> str:
    missing = [f"{node.name!r} ({node.state})" for node in producers if not node.is_over]
    return f"waits for {listed(missing)}" if missing else "becomes ready any moment"
