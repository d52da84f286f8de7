"""Folds a run's events into the state of the run and of each of its nodes.

Pure: no server and no clock. An event costs what it names, whatever the size of the plan; only the end of the
run looks at every node once. Events that are gone (a stream keeps a bounded number) leave counts too low,
nothing worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, cast, get_args

import msgspec

from mosaic_queues.events import Event
from mosaic_queues.transitions import CallState, RunStatus, is_shadow
from mosaic_tasks.definition.plan import NodeKind, NodePlan, Plan
from mosaic_tasks.mixtures.recording import Record, Said

NodeState = Literal["waiting", "ready", "running", "done", "skipped", "failed", "cancelled", "cut"]
OVER: frozenset[NodeState] = frozenset({"done", "skipped", "failed", "cancelled", "cut"})
"""The states that a node does not leave; one that a mixture asks does, when it is asked again."""


class NodeView(NamedTuple):
    """What is known of one node.

    Attributes:
        state: `waiting` for producers; `ready` in its queue or paused before another attempt; `running` while
            its call runs, a fan-out from its expansion on, a mailbox from its first batch on; `cancelled`: the run
            ended, or the node ran again, before it was over; `cut`: its mixture did not need it any more.
        calls: how many calls it has: 1, or the items of a fan-out (0 until they are known), or as many as its mixture
            made.
        calls_done: finished ones, `calls_skipped` of them skipped.
        calls_running: those that a process holds now, the opening and closing call of a fan-out too.
        attempts: starts of its calls; what a process handed back unstarted does not count, nor does a mailbox that
            goes on.
        retries: failed attempts that were followed by another; `losses` counts attempts whose process died.
        retry_at_ms: when the next attempt is due, while one is scheduled.
        ready_ms: when its first call became ready. `started_ms`: first start; `claimed_ms`: latest start.
        holder: the process that started a call last.
        error: of the last failed attempt.
        tokens: input and output tokens that engines counted. `cost_usd`: what they cost, as far as known.
        epoch: 0, or the number of the latest epoch in which it ran again.
        grows: a fan-out whose list is not complete: `calls` are those so far.
        is_idle: its mailbox waits for chunks, and none of its calls runs or is to run.
        tags: what the workflow says about it for people and programs.
        target: where the router sent a call last; empty: nowhere yet, or it decides nothing here.
        route: why.
        hedges: how many calls took long and were asked a second time; `hedge` is where the last one was.
        overtakes: how many of these were answered there first.
        asked_by: the mixture whose expert, verifier or aggregator it is.
        calls_cut: those that its mixture did not need any more.
        record: what a mixture came to.
    """

    name: str
    kind: NodeKind
    state: NodeState
    calls: int
    calls_done: int
    calls_skipped: int
    calls_running: int
    attempts: int
    retries: int
    losses: int
    retry_at_ms: int | None
    ready_ms: int | None
    started_ms: int | None
    claimed_ms: int | None
    ended_ms: int | None
    queue: str
    holder: str
    error: str
    tokens: tuple[int, int]
    cached_tokens: int
    cost_usd: float
    epoch: int = 0
    grows: bool = False
    is_idle: bool = False
    tags: tuple[str, ...] = ()
    target: str = ""
    route: str = ""
    hedges: int = 0
    hedge: str = ""
    overtakes: int = 0
    asked_by: str = ""
    calls_cut: int = 0
    record: Record | None = None

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return self.state in OVER

    def running_ms(self, now_ms: int) -> int | None:
        """Milliseconds from its first start to its end, or to now; None when it never started."""
        if self.started_ms is None:
            return None
        return max((self.ended_ms or now_ms) - self.started_ms, 0)


class RunView(NamedTuple):
    """What is known of a run; the nodes are in the plan's order.

    Attributes:
        begun_ms: when it was opened, or went on after an earlier end.
    """

    run_id: str
    name: str
    status: RunStatus
    opened_ms: int | None
    begun_ms: int | None
    closed_ms: int | None
    error: str
    nodes: tuple[NodeView, ...]

    @property
    def epoch(self) -> int:
        """0, or the number of the latest epoch in which some of its nodes ran again."""
        return max((node.epoch for node in self.nodes), default=0)

    def counts(self) -> dict[NodeState, int]:
        """How many nodes of the workflow are in each state that occurs."""
        return state_counts(self.nodes)


def project(plan: Plan, events: Iterable[Event], *, run_id: str = "") -> RunView:
    """The state of a run after `events`."""
    progress = Progress(plan, run_id=run_id)
    for event in events:
        progress.apply(event)
    return progress.view()


class Progress:
    """The state of a run, event by event.

    Attributes:
        status: of the run; `running` until its `closed` event, and again when nodes run again.
        error: why it failed or was cancelled.
        begun_ms: when it was opened, or went on after an earlier end.
    """

    def __init__(self, plan: Plan, *, run_id: str = "") -> None:
        self.plan, self.run_id = plan, run_id
        self.status: RunStatus = "running"
        self.error = ""
        self.opened_ms: int | None = None
        self.begun_ms: int | None = None
        self.closed_ms: int | None = None
        self._nodes = [_Node(node) for node in plan.nodes]
        self._asked: dict[int, list[int]] = {}  # by mixture
        for number, node in enumerate(plan.nodes):
            if node.asked_by is not None:
                self._asked.setdefault(node.asked_by, []).append(number)
        self._apply: dict[str, Callable[[_Node, str, Event], None]] = {
            "ready": self._ready,
            "routed": self._routed,
            "hedged": self._hedged,
            "overtaken": self._overtaken,
            "claimed": self._claimed,
            "done": self._finished,
            "skipped": self._finished,
            "expanded": self._expanded,
            "retry": self._retry,
            "failed": self._failed,
            "released": self._released,
            "lost": self._lost,
            "usage": self._used,
            "idle": self._idle,
            "redo": self._redone,
            "cut": self._cut,
        }

    def apply(self, event: Event) -> list[int]:
        """Takes the next event in; returns the numbers of the nodes that it touched."""
        if event.kind == "opened":
            self.opened_ms = self.begun_ms = event.at_ms
            return []
        if event.kind == "closed":
            return self._closed(event)
        if event.kind == "decided":
            return self._decided(event)
        touched: dict[int, None] = {}
        change = self._apply[event.kind]
        for call in event.calls:
            number = node_of(call)
            if is_shadow(call) and event.kind not in ("hedged", "usage"):
                continue  # the call itself is where it was
            change(self._nodes[number], call, event)
            touched[number] = None
        return list(touched)

    def view(self) -> RunView:
        """The whole state."""
        nodes = tuple(self.node(number) for number in range(len(self._nodes)))
        times = (self.opened_ms, self.begun_ms, self.closed_ms)
        return RunView(self.run_id, self.plan.name, self.status, *times, self.error, nodes)

    def node(self, number: int) -> NodeView:
        """The state of one node."""
        node, plan = self._nodes[number], self.plan.nodes[number]
        return NodeView(
            name=plan.name,
            kind=plan.kind,
            state=node.state(),
            calls=node.calls,
            calls_done=node.done,
            calls_skipped=node.skipped,
            calls_running=node.live["claimed"],
            attempts=node.attempts,
            retries=node.retries,
            losses=node.losses,
            retry_at_ms=node.retry_at_ms if node.live["delayed"] else None,
            ready_ms=node.ready_ms,
            started_ms=node.started_ms,
            claimed_ms=node.claimed_ms,
            ended_ms=node.ended_ms,
            queue=plan.queue,
            holder=node.holder,
            error=node.error,
            tokens=node.tokens,
            cached_tokens=node.cached_tokens,
            cost_usd=node.cost_usd,
            epoch=node.epoch,
            grows=node.grows and node.final is None,
            is_idle=bool(node.live["idle"]) and sum(node.live.values()) == node.live["idle"],
            tags=plan.tags,
            target=node.target,
            route=node.route,
            hedges=node.hedges,
            hedge=node.hedge,
            overtakes=node.overtakes,
            asked_by="" if plan.asked_by is None else self.plan.nodes[plan.asked_by].name,
            calls_cut=node.cut,
            record=node.record,
        )

    # -- one call of one event -----------------------------------------------------------------------------

    def _ready(self, node: _Node, call: str, event: Event) -> None:
        if node.states.get(call) == "idle":
            return  # a mailbox is woken without an event; this one's message was lost and is published again
        node.move(call, "ready")
        node.undo(call)
        node.ask(call)
        node.ready_ms = event.at_ms if node.ready_ms is None else node.ready_ms

    def _routed(self, node: _Node, call: str, event: Event) -> None:
        node.target, node.route = event.target, event.detail
        if event.pause_ms:
            node.move(call, "delayed")
            node.retry_at_ms = event.at_ms + event.pause_ms

    def _hedged(self, node: _Node, _call: str, event: Event) -> None:
        node.hedges, node.hedge = node.hedges + 1, event.target

    def _overtaken(self, node: _Node, call: str, event: Event) -> None:
        node.move(call, "claimed")
        node.holder, node.target = event.holder, node.hedge or node.target
        node.overtakes += 1

    def _claimed(self, node: _Node, call: str, event: Event) -> None:
        goes_on = node.move(call, "claimed") == "idle"
        node.undo(call)
        node.ask(call)
        node.ready_ms = event.at_ms if node.ready_ms is None else node.ready_ms
        node.started_ms = event.at_ms if node.started_ms is None else node.started_ms
        node.claimed_ms, node.holder = event.at_ms, event.holder
        node.attempts += self._counts(call) and not goes_on

    def _finished(self, node: _Node, call: str, event: Event) -> None:
        node.move(call, None)
        if self._counts(call):
            node.finish(call, skipped=event.kind == "skipped")
        node.rest(event.at_ms)
        if not is_item(call):
            self._end(node, call, "skipped" if event.kind == "skipped" else "done", event.at_ms)

    def _cut(self, node: _Node, call: str, event: Event) -> None:
        node.move(call, None)
        node.cut += 1
        node.rest(event.at_ms)

    def _expanded(self, node: _Node, call: str, event: Event) -> None:
        total = int(event.detail)
        # An expansion that adds nothing tells that the list is complete.
        node.grows = node.grows and total != node.calls
        if not node.grows:
            node.move(call, None)
        if total < node.calls:
            node.shrink(total)
        node.calls, node.expanded = total, True

    def _retry(self, node: _Node, call: str, event: Event) -> None:
        node.move(call, "delayed")
        node.retries += 1
        node.error, node.retry_at_ms = event.detail, event.at_ms + event.pause_ms

    def _failed(self, node: _Node, call: str, event: Event) -> None:
        node.move(call, None)
        node.error = event.detail
        self._end(node, call, "failed", event.at_ms)

    def _released(self, node: _Node, call: str, _event: Event) -> None:
        node.move(call, "ready")
        node.attempts -= self._counts(call)

    def _lost(self, node: _Node, call: str, _event: Event) -> None:
        node.move(call, "ready")
        node.losses += 1

    def _idle(self, node: _Node, call: str, _event: Event) -> None:
        node.move(call, "idle")
        node.grows = node.plan.grows

    def _redone(self, node: _Node, call: str, event: Event) -> None:
        fresh = _Node(node.plan)
        fresh.tokens, fresh.cost_usd, fresh.epoch = node.tokens, node.cost_usd, int(event.detail)
        fresh.cached_tokens = node.cached_tokens
        self._nodes[int(call)] = fresh
        if self.closed_ms is not None:
            self.begun_ms = event.at_ms
        self.status, self.closed_ms, self.error = "running", None, ""

    def _used(self, node: _Node, _call: str, event: Event) -> None:
        node.tokens = (node.tokens[0] + event.tokens[0], node.tokens[1] + event.tokens[1])
        node.cached_tokens += event.cached_tokens
        node.cost_usd += event.cost_usd or 0.0

    def _decided(self, event: Event) -> list[int]:
        """A mixture came to an end: whom it asked is over with it, and why an answer did not count is known."""
        number = node_of(event.calls[0])
        record = self._nodes[number].record = msgspec.json.decode(event.detail, type=Record)
        heard: dict[int, list[Said]] = {}
        for said in record.calls:
            heard.setdefault(node_of(said.call), []).append(said)
        asked = self._asked.get(number, [])
        for each in asked:
            self._nodes[each].conclude(event.at_ms, heard.get(each, ()))
        return [number, *asked]

    def _end(self, node: _Node, call: str, state: NodeState, at_ms: int) -> None:
        """A node is over, and with a mixture those that it asked."""
        node.end(state, at_ms)
        for each in self._asked.get(node_of(call), ()):
            self._nodes[each].conclude(at_ms)

    def _closed(self, event: Event) -> list[int]:
        status, _, self.error = event.detail.partition(": ")
        self.status, self.closed_ms = cast(RunStatus, status), event.at_ms
        left = [number for number, node in enumerate(self._nodes) if node.final is None]
        for number in left:
            node = self._nodes[number]
            if node.plan.asked_by is not None:
                node.conclude(event.at_ms)
            else:
                node.end("done" if status == "done" else "cancelled", event.at_ms)
        return left

    def _counts(self, call: str) -> bool:
        """Whether a call is one of those that `NodeView.calls` counts."""
        return is_item(call) or self.plan.nodes[node_of(call)].for_each is None


class _Node:
    """The counts of one node.

    Attributes:
        states: of its live calls; `live` counts them.
        finished: of a fan-out that grows, the items that are done and whether each was skipped: they may be undone.
    """

    __slots__ = (
        "attempts",
        "cached_tokens",
        "calls",
        "claimed_ms",
        "cost_usd",
        "cut",
        "done",
        "ended_ms",
        "epoch",
        "error",
        "expanded",
        "final",
        "finished",
        "grows",
        "hedge",
        "hedges",
        "holder",
        "live",
        "losses",
        "overtakes",
        "plan",
        "ready_ms",
        "record",
        "retries",
        "retry_at_ms",
        "route",
        "skipped",
        "started_ms",
        "states",
        "target",
        "tokens",
    )

    def __init__(self, plan: NodePlan) -> None:
        self.plan, self.grows = plan, plan.grows
        self.calls = 0 if plan.for_each or plan.asked_by is not None else 1
        self.cut = 0
        self.record: Record | None = None
        self.done = self.skipped = self.attempts = self.retries = self.losses = 0
        self.live: dict[CallState, int] = dict.fromkeys(get_args(CallState), 0)
        self.states: dict[str, CallState] = {}
        self.finished: dict[str, bool] = {}
        self.expanded = False
        self.final: NodeState | None = None
        self.retry_at_ms: int | None = None
        self.ready_ms: int | None = None
        self.started_ms: int | None = None
        self.claimed_ms: int | None = None
        self.ended_ms: int | None = None
        self.holder = self.error = self.target = self.route = self.hedge = ""
        self.hedges = self.overtakes = 0
        self.tokens, self.cached_tokens, self.cost_usd = (0, 0), 0, 0.0
        self.epoch = 0

    def state(self) -> NodeState:
        if self.final is not None:
            return self.final
        if self.live["claimed"] or self.expanded or (self.live["idle"] and self.started_ms is not None):
            return "running"
        if self._is_at_rest:
            return "done" if self.done else "cut"
        return "ready" if self.ready_ms is not None else "waiting"

    @property
    def _is_at_rest(self) -> bool:
        """Whether a mixture asked it, and waits for nothing of it now."""
        return self.plan.asked_by is not None and self.calls > 0 and not any(self.live.values())

    def ask(self, call: str) -> None:
        """Counts a call that a mixture made."""
        if self.plan.asked_by is not None:
            self.calls = max(self.calls, int(call.partition(".")[2]) + 1)
            self.ended_ms = None

    def rest(self, at_ms: int) -> None:
        """Notes when the last of the calls ended that a mixture made so far."""
        if self._is_at_rest:
            self.ended_ms = at_ms

    def conclude(self, at_ms: int, heard: Sequence[Said] = ()) -> None:
        """Its mixture, or the run, is over: it is not asked any more. `heard` is what its calls came to."""
        if self.final is not None:
            return
        state, ended_ms = self.state(), self.ended_ms
        if state not in OVER:
            state = "cancelled" if self.calls else "skipped"
        answers = [said for said in heard if not said.is_cut]
        self.error = next((why for said in reversed(answers) if (why := objection(said))), self.error)
        self.end("failed" if answers and all(said.failed for said in answers) else state, at_ms)
        self.ended_ms = ended_ms or self.ended_ms

    def move(self, call: str, state: CallState | None) -> CallState | None:
        """Notes the state of a call, None where it is not alive; returns the one before."""
        before = self.states.pop(call, None)
        if before is not None:
            self.live[before] -= 1
        if state is not None:
            self.states[call] = state
            self.live[state] += 1
        return before

    def finish(self, call: str, *, skipped: bool) -> None:
        """Counts a call that is done."""
        self.done += 1
        self.skipped += skipped
        if self.grows:
            self.finished[call] = skipped

    def undo(self, call: str) -> None:
        """Counts a call no more whose item was taken back."""
        skipped = self.finished.pop(call, None)
        if skipped is not None:
            self.done -= 1
            self.skipped -= skipped

    def shrink(self, total: int) -> None:
        """Forgets the items from `total` on: they were taken back."""
        for call in [*self.finished, *self.states]:
            if is_item(call) and int(call.partition(".")[2]) >= total:
                self.undo(call)
                self.move(call, None)

    def end(self, state: NodeState, at_ms: int) -> None:
        self.final = state
        self.live = dict.fromkeys(get_args(CallState), 0)
        self.states, self.finished = {}, {}
        if self.ready_ms is not None:
            self.ended_ms = at_ms


def state_counts(nodes: Iterable[NodeView]) -> dict[NodeState, int]:
    """How many nodes are in each state that occurs; whom mixtures ask is part of these."""
    counts: dict[NodeState, int] = {}
    for node in nodes:
        if not node.asked_by:
            counts[node.state] = counts.get(node.state, 0) + 1
    return counts


def told_hedges(node: NodeView) -> str:
    """What was asked a second time, and how often that came first; empty where nothing was."""
    if not node.hedges:
        return ""
    asked = "a call was" if node.hedges == 1 else f"{node.hedges} calls were"
    first = {0: "", 1: ", and one answered first there"}.get(
        node.overtakes, f", and {node.overtakes} answered first there"
    )
    return f"{asked} asked a second time, last at {node.hedge}{first}"


def objection(said: Said) -> str:
    """Why an answer does not count; empty where it does."""
    return said.failed or ", ".join(said.problems)


def node_of(call: str) -> int:
    """The number of the node whose call it is."""
    return int(call.partition(".")[0])


def nodes_of(plan: Plan, event: Event) -> list[str]:
    """The names of the nodes that an event is about, each once."""
    return list(dict.fromkeys(plan.nodes[node_of(call)].name for call in event.calls))


def is_item(call: str) -> bool:
    """Whether a call is that of an item of a fan-out, or one that a mixture made."""
    return call[-1].isdigit() and "." in call
