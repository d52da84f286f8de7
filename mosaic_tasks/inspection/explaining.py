"""Says in sentences what each unfinished node of a run waits for, or how a finished run ended.

Pure: the run's state, its live calls, what its streams hold, the live processes and the time in, sentences out.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from mosaic_queues.documents import path_text
from mosaic_queues.liveness import LiveProcess
from mosaic_queues.transitions import MAILBOX, LiveCall, is_shadow
from mosaic_routing.inventory import EngineReport
from mosaic_routing.queues import ROUTED
from mosaic_routing.serving import hosted_model, worker_commands
from mosaic_tasks.definition.plan import Edge, NodePlan, Path, Plan, Wait
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.execution.prepared import stream_name
from mosaic_tasks.inspection.decisions import asking, in_full
from mosaic_tasks.inspection.progress import NodeView, RunView, node_of, told_hedges
from mosaic_tasks.inspection.said import NOTHING, Said
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
    processes: Sequence[LiveProcess],
    *,
    now_ms: int,
    said: Said = NOTHING,
    engines: Sequence[EngineReport] = (),
    sweep_s: float = SWEEP_S,
) -> list[Explanation]:
    """What each node that is not over waits for: first the nodes whose calls live, then those behind them. Then what
    each mixture came to.

    Args:
        live_calls: the ledger's.
        processes: those that are alive.
        now_ms: the server's clock.
        said: what the streams hold that the nodes read.
        engines: those that workers host.
        sweep_s: pause between two sweeps of a worker.
    """
    if view.status != "running":
        return [Explanation("", ending(view)), *_decisions(plan, view)]
    by_node = _by_node(call for call in live_calls if not is_shadow(call.call))
    shadows = _by_node(call for call in live_calls if is_shadow(call.call))
    world, producers = _World(processes, engines, now_ms, sweep_s), _Producers(plan, view, said)
    active = [
        Explanation(
            view.nodes[number].name,
            _active(plan.nodes[number], view.nodes[number], calls, world, producers)
            + _again(view.nodes[number], shadows.get(number, ()), world),
        )
        for number, calls in sorted(by_node.items())
    ]
    return [*active, *_waiting(plan, view, by_node.keys(), producers), *_decisions(plan, view)]


def _by_node(calls: Iterable[LiveCall]) -> dict[int, list[LiveCall]]:
    found: dict[int, list[LiveCall]] = {}
    for call in calls:
        found.setdefault(node_of(call.call), []).append(call)
    return found


def _decisions(plan: Plan, view: RunView) -> Iterator[Explanation]:
    """What mixtures came to, but for a failure that is the run's own and told with it."""
    for node, seen in zip(plan.nodes, view.nodes, strict=True):
        if node.mixture is None or seen.record is None:
            continue
        failure = seen.record.failure
        if not failure or failure not in view.error:
            yield Explanation(seen.name, in_full(node.mixture, seen.record))


ASKING = "mosaic worker --queues mosaic.api.PROVIDER, or mosaic worker --class CLASS --model SPEC"
"""What starts a worker to which the router can send calls."""


def serving_command(unserved: Sequence[str], served: Iterable[str]) -> str:
    """The command that starts a worker for these queues, and the hosted model that was perhaps meant."""
    hosted = [model for queue in served if (model := hosted_model(queue))]
    wanted = [model for queue in unserved if (model := hosted_model(queue))]
    commands = [worker_commands(named)] if (named := [queue for queue in unserved if queue != ROUTED]) else []
    if ROUTED in unserved:
        commands.append(ASKING)
    return " and ".join(commands) + "".join(did_you_mean(model, hosted) for model in dict.fromkeys(wanted))


def ending(view: RunView) -> str:
    """How a finished run ended, in one line."""
    took = f" in epoch {view.epoch}" if view.epoch else ""
    if view.begun_ms is not None and view.closed_ms is not None:
        took += f" after {duration(view.closed_ms - view.begun_ms)}"
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

    def __init__(
        self,
        processes: Sequence[LiveProcess],
        engines: Sequence[EngineReport],
        now_ms: int,
        sweep_s: float,
    ) -> None:
        self.now_ms, self.sweep_s, self._engines = now_ms, sweep_s, engines
        self.alive = {process.name for process in processes}
        self.has_sweeper = any(process.queues for process in processes)
        self.slots: dict[str, list[int]] = {}
        for process in processes:
            for queue in process.queues:
                self.slots.setdefault(queue, []).append(self._slots(process, queue))

    def _slots(self, process: LiveProcess, queue: str) -> int:
        """How many calls of a queue a process runs at once: of a model that it hosts, what its engine has room for."""
        hosted = [each for each in self._engines if each.holder == process.name and queue in each.queues]
        return sum(each.running + each.slots for each in hosted) if hosted else process.slots

    def since(self, at_ms: int) -> str:
        return duration(self.now_ms - at_ms)

    def absent(self, queue: str) -> str:
        """Why no engine of this queue takes a call; empty where one does, or where none is hosted."""
        found = [report for report in self._engines if queue in report.queues]
        if any(report.state == "ready" for report in found):
            return ""
        return listed([f"the engine of {each.holder} is {each.state} ({each.phase})" for each in found])


def _active(
    plan: NodePlan, node: NodeView, calls: Sequence[LiveCall], world: _World, producers: _Producers
) -> str:
    """One clause for the calls in each state, fan-out progress before them."""
    clauses = [_items(node)] if plan.for_each is not None and (node.calls or node.grows) else []
    ready = [call for call in calls if call.state == "ready"]
    delayed = [call for call in calls if call.state == "delayed"]
    claimed = [call for call in calls if call.state == "claimed"]
    if claimed:
        clauses += _claimed(plan, claimed, world)
    clauses += _ready(plan, node, ready, world)
    if delayed:
        clauses.append(_delayed(plan, node, delayed, world))
    if any(call.state == "idle" for call in calls):
        clauses.append(producers.chunks(plan) if plan.mixture is None else producers.asked(plan))
    if node.route:
        clauses.append(
            f"sent to {node.route}" if node.target else f"the router has no place for it: {node.route}"
        )
    return "; ".join(clauses)


def _again(node: NodeView, shadows: Sequence[LiveCall], world: _World) -> str:
    """What is asked a second time, and how often that came first."""
    clauses = [told] if (told := told_hedges(node)) else []
    if shadows:
        since = world.since(min(call.at_ms for call in shadows))
        clauses.append(f"of these {counted(len(shadows), 'goes', 'go')} on, since {since}")
    return "".join(f"; {clause}" for clause in clauses)


def _items(node: NodeView) -> str:
    left = node.calls - node.calls_done
    if node.grows:
        done = (
            f"{node.calls_done} of {counted(node.calls, 'item')} so far done"
            if node.calls
            else "no item so far"
        )
        return f"{done}, its list still grows"
    if left:
        return f"{node.calls_done} of {counted(node.calls, 'item')} done, {left} left"
    return f"all {counted(node.calls, 'item')} done"


QUEUES_TOLD = 3
"""The router spreads the calls of a node over many queues; the fullest are named."""


def _ready(plan: NodePlan, node: NodeView, calls: Sequence[LiveCall], world: _World) -> list[str]:
    by_queue: dict[str, list[LiveCall]] = {}
    for call in calls:
        by_queue.setdefault(call.queue, []).append(call)
    fullest = sorted(by_queue.values(), key=len, reverse=True)
    clauses = [_in_queue(plan, node, held, world) for held in fullest[:QUEUES_TOLD]]
    if others := fullest[QUEUES_TOLD:]:
        more = counted(sum(map(len, others)), "more call")
        clauses.append(f"{more} in {counted(len(others), 'other queue')}")
    return clauses


def _in_queue(plan: NodePlan, node: NodeView, calls: Sequence[LiveCall], world: _World) -> str:
    queue = calls[0].queue
    slots = world.slots.get(queue)
    if queue == ROUTED:
        return f"{_subject(plan, calls)} until the router has said where to"
    waits = f"{_subject(plan, calls)} in queue {queue!r}"
    if slots is None and plan.queue == ROUTED and world.has_sweeper:
        return f"{waits}, which no worker serves any more; a live worker has it sent elsewhere"
    if slots is None:
        command = serving_command([queue if plan.queue != ROUTED else ROUTED], world.slots)
        return f"{waits}, which no worker serves; start one with: {command}"
    if absent := world.absent(queue):
        return f"{waits}: {absent}"
    published_ms = min(call.at_ms for call in calls)  # a call whose message was lost is published again
    since = world.since(published_ms if node.attempts or node.ready_ms is None else node.ready_ms)
    return (
        f"{waits} since {since}, which {counted(len(slots), 'worker')} with {counted(sum(slots), 'slot')} "
        f"{'serves' if len(slots) == 1 else 'serve'}: it starts when a slot is free"
    )


def _subject(plan: NodePlan, calls: Sequence[LiveCall]) -> str:
    if plan.asked_by is not None and len(calls) > 1:
        return f"{counted(len(calls), 'call')} wait"
    if plan.for_each is None:
        return "it waits"
    items = [call for call in calls if _item(call)]
    if items:
        return f"{counted(len(items), 'item')} {'waits' if len(items) == 1 else 'wait'}"
    return f"{'collecting them' if calls[0].call.endswith('.c') else 'reading its list'} waits"


def _delayed(plan: NodePlan, node: NodeView, calls: Sequence[LiveCall], world: _World) -> str:
    first = min(calls, key=lambda call: call.at_ms)
    left_ms = first.at_ms - world.now_ms
    due = f"is due in {duration(left_ms)}" if left_ms > 0 else f"is due since {duration(-left_ms)}"
    others = f" (and {len(calls) - 1} more)" if len(calls) > 1 else ""
    after = f", after: {node.error}" if node.error else ""
    item = _item(first) if plan.asked_by is None else ""
    sentence = f"{_attempt(plan, first)}{item}{others} {due}{after}"
    if not world.has_sweeper:
        sentence += f"; no worker is alive to start it: {serving_command([first.queue], ())}"
    return sentence


def _attempt(plan: NodePlan, call: LiveCall) -> str:
    return f"attempt {call.failures + 1} of {plan.retry.attempts}"


def _item(call: LiveCall) -> str:
    _, dot, item = call.call.partition(".")
    return f" of item {item}" if dot and item.isdigit() else ""


def _claimed(plan: NodePlan, calls: Sequence[LiveCall], world: _World) -> Iterator[str]:
    by_holder: dict[tuple[str, bool], list[LiveCall]] = {}
    for call in calls:
        by_holder.setdefault((call.holder, bool(_item(call))), []).append(call)
    for (holder, _), held in by_holder.items():
        what = _held(plan, held)
        if holder in world.alive:
            yield _running(plan, held, what, world)
        else:
            yield _orphaned(plan, held, what, world)


def _held(plan: NodePlan, held: Sequence[LiveCall]) -> str:
    if plan.asked_by is not None and len(held) > 1:
        return counted(len(held), "call")
    return "it" if plan.for_each is None or not _item(held[0]) else counted(len(held), "item")


def _running(plan: NodePlan, held: Sequence[LiveCall], what: str, world: _World) -> str:
    since = f" since {world.since(held[0].at_ms)}" if what == "it" else ""
    again = f", {_attempt(plan, held[0])}" if held[0].failures else ""
    losses = max(call.losses for call in held)
    again += f", after {counted(losses, 'process', 'processes')} died with it" if losses else ""
    timeout = f", its timeout is {plan.timeout_s:g} s" if plan.timeout_s is not None else ""
    verb = "run" if len(held) > 1 else _verb(plan, held[0])
    return f"{what} {verb} in process {held[0].holder}{since}{again}{timeout}"


def _verb(plan: NodePlan, call: LiveCall) -> str:
    if not call.call.endswith(f".{MAILBOX}"):
        return "runs"
    if plan.mixture is not None:
        return "reads the answers"
    return "reads its list" if plan.grows else "reads its streams"


def _orphaned(plan: NodePlan, held: Sequence[LiveCall], what: str, world: _World) -> str:
    ran = "were" if len(held) > 1 else "was"
    dead = f"{what} {ran} running in process {held[0].holder}, which is dead"
    if world.has_sweeper:
        return f"{dead}; the sweeper of a live worker takes over within {world.sweep_s:g} s"
    return f"{dead}, and no worker is alive to take over; start one with: {serving_command([plan.queue], ())}"


def _waiting(
    plan: Plan, view: RunView, active: Container[int], producers: _Producers
) -> Iterator[Explanation]:
    """The nodes without live calls. Nodes that wait for the same share one sentence."""
    sentences: dict[tuple[Wait, ...], str] = {}
    for number, node in enumerate(view.nodes):
        if node.is_over or node.asked_by or number in active:
            continue
        waits = plan.nodes[number].waits_for()
        if waits not in sentences:
            sentences[waits] = producers.missing(waits)
        yield Explanation(node.name, sentences[waits])


class _Producers:
    """What nodes wait for: whole outputs, parts of them, or chunks."""

    def __init__(self, plan: Plan, view: RunView, said: Said) -> None:
        self._plan, self._nodes, self._said = plan, view.nodes, said

    def missing(self, waits: Sequence[Wait]) -> str:
        """What is not there yet of what a node waits for before it starts."""
        whole = [self._nodes[source] for source, path in waits if path is None]
        open_ones = [f"{node.name!r} ({node.state})" for node in whole if not _has_closed(node)]
        clauses = [f"waits for {listed(open_ones)}"] if open_ones else []
        parts: dict[int, list[Path]] = {}
        for source, path in waits:
            if path is not None and stream_name(source, path) not in self._said.announced:
                parts.setdefault(source, []).append(path)
        clauses += [self._parts(source, paths) for source, paths in parts.items()]
        return "; ".join(clauses) or "becomes ready any moment"

    def _parts(self, source: int, paths: Sequence[Path]) -> str:
        producer = self._nodes[source]
        named = listed([repr(_named(path)) for path in paths])
        announced = [
            _named(path)
            for path, _ in self._plan.nodes[source].announces
            if stream_name(source, path) in self._said.announced
        ]
        state = f"is {producer.state} and has announced {listed(announced, most=20) or 'nothing yet'}"
        return (
            f"waits for the field{'s' if len(paths) > 1 else ''} {named} of {producer.name!r}, which {state}"
        )

    def chunks(self, reader: NodePlan) -> str:
        """What the idle mailbox of a node waits for."""
        sources = [
            self._stream(edge, path)
            for edge in reader.edges
            if edge.kind != "fields" and not _has_closed(self._nodes[edge.source])
            for path in edge.paths
        ]
        least = reader.batch.min_items
        batch = f"; it reads at least {counted(least, self._unit(reader))} at a time" if least > 1 else ""
        return (
            f"waits for chunks of {listed(sources)}{batch}"
            if sources
            else "reads the end of its streams any moment"
        )

    def asked(self, reader: NodePlan) -> str:
        """What the idle mailbox of a mixture waits for."""
        assert reader.mixture is not None
        return asking(reader.name, reader.mixture, self._nodes)

    def _stream(self, edge: Edge, path: Path) -> str:
        producer = self._nodes[edge.source]
        return (
            f"{producer.name + path_text(path)!r} ({producer.state}, {self._size(edge.source, path)} so far)"
        )

    def _size(self, source: int, path: Path) -> str:
        node, plan = self._nodes[source], self._plan.nodes[source]
        if plan.for_each is not None:
            return counted(node.calls_done, "item")
        return counted(self._said.sizes.get(stream_name(source, path), 0), self._noun(source, path))

    def _noun(self, source: int, path: Path) -> str:
        """What a stream consists of."""
        plan = self._plan.nodes[source]
        is_text = plan.publishes == "text" and plan.for_each is None and not path
        return "character" if is_text else "item"

    def _unit(self, reader: NodePlan) -> str:
        """What the batches of a node are counted in."""
        units = {
            edge.by or self._noun(edge.source, path)
            for edge in reader.edges
            if edge.kind != "fields"
            for path in edge.paths
        }
        return units.pop() if len(units) == 1 else "piece"


def _has_closed(node: NodeView) -> bool:
    return node.state in ("done", "skipped")


def _named(path: Path) -> str:
    return path_text(path).lstrip(".")
