"""A plan made ready for running: what each node reads, what its closing releases, how its calls are named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from graphlib import TopologicalSorter

from mosaic_queues.documents import path_text
from mosaic_queues.errors import DefinitionError
from mosaic_queues.transitions import CLOSE, MAILBOX, SHADOW, Group, JoinStep, Release, is_shadow, shadowed
from mosaic_routing.queues import ROUTED
from mosaic_tasks.definition.plan import ITEM, AgentPlan, NodePlan, Path, Plan
from mosaic_tasks.definition.references import Label, label_in, prepare, refs_in
from mosaic_tasks.definition.templates import names_in, names_in_expression
from mosaic_tasks.definition.tools import ToolSpec, resolve_tool
from mosaic_tasks.execution.sharing import Lengths

_CALL = re.compile(rf"[0-9]{{1,9}}(\.([0-9]{{1,9}}|{CLOSE}|{MAILBOX}))?({re.escape(SHADOW)})?")


class CallId:
    """A call id taken apart: `"17"`, `"17.3"` (item 3), `"17.c"` (the close of the fan-out) or `"17.m"` (the mailbox of
    a node that reads streams).

    Attributes:
        own: the call itself, also of a shadow, which is the same call a second time.
    """

    __slots__ = ("closes", "is_shadow", "item", "node", "own", "reads")

    def __init__(self, call: str) -> None:
        self.own, self.is_shadow = shadowed(call), is_shadow(call)
        node, _, rest = self.own.partition(".")
        self.node = int(node)
        self.closes = rest == CLOSE
        self.reads = rest == MAILBOX
        self.item = int(rest) if rest.isdigit() else None


def stream_name(source: int, path: Path = ()) -> str:
    """The name of the stream of a node, or of a part of its output; parts that are waited for are kept under such names
    too."""
    return f"{source}:{path_text(path).lstrip('.')}" if path else str(source)


class PreparedNode:
    """A node with what its execution asks again and again.

    Attributes:
        arguments: gives the call's arguments from a lookup of sources.
        required: numbers of the producers without whose whole output it cannot run.
        fields: by producer, the parts of its output that it reads instead.
        streams: by name, the producers and paths that it reads piece by piece.
        optional: producers that only its condition names.
    """

    def __init__(self, number: int, plan: NodePlan, label: Label) -> None:
        self.number, self.plan, self.name = number, plan, plan.name
        self.arguments = prepare(plan.bindings, label)
        conditional = names_in_expression(plan.when) if plan.when else frozenset()
        asked = names_in(plan.agent.prompt) | names_in(plan.agent.system) if plan.agent else frozenset()
        named = {ref.source for name, ref in plan.names.items() if name in asked or name not in conditional}
        bound = {ref.source for ref in refs_in(plan.bindings)}
        fanned = {plan.for_each.source} if plan.for_each else set()
        self.fields = {edge.source: edge.paths for edge in plan.edges if edge.kind == "fields"}
        self.streams = {
            stream_name(edge.source, path): (edge.source, path)
            for edge in plan.edges
            if edge.kind != "fields"
            for path in edge.paths
        }
        whole = {ref.source for ref in plan.names.values()} | bound | fanned
        early = {ITEM, *(edge.source for edge in plan.edges)}
        self.required = tuple(sorted((named | bound | fanned) - early))
        self.optional = tuple(sorted(whole - set(self.required) - early))

    @cached_property
    def tool(self) -> ToolSpec:
        """The function behind a tool node."""
        return resolve_tool(self.plan.target)

    @property
    def is_async(self) -> bool:
        """Whether its calls run together on an event loop."""
        if self.plan.kind != "tool":
            return self.plan.kind == "agent"
        try:
            return self.tool.is_async
        except DefinitionError:
            return False


class PreparedPlan:
    """A plan with its nodes prepared on demand.

    Attributes:
        label: names a source in messages.
    """

    def __init__(self, plan_hash: str, plan: Plan) -> None:
        self.hash, self.plan = plan_hash, plan
        self.label = label_in(plan)
        self._nodes: dict[int, PreparedNode] = {}
        self._joins: dict[int, JoinStep] = {}

    def node(self, number: int) -> PreparedNode:
        """The node with this number."""
        node = self._nodes.get(number)
        if node is None:
            node = self._nodes[number] = PreparedNode(number, self.plan.nodes[number], self.label)
        return node

    def join(self, number: int) -> JoinStep:
        """What a join releases, grouped by queue."""
        step = self._joins.get(number)
        if step is None:
            join = self.plan.joins[number]
            members = None if number == self.plan.end else self.by_queue(join.members)
            step = self._joins[number] = JoinStep(str(number), join.size, members)
        return step

    def knows(self, call: str) -> bool:
        """Whether the plan can have such a call; messages may come from anywhere."""
        return _CALL.fullmatch(call) is not None and int(call.partition(".")[0]) < len(self.plan.nodes)

    def by_queue(self, numbers: tuple[int, ...]) -> list[Release]:
        """The first call of each node, grouped by its queue; mailboxes with the streams that they read."""
        groups: dict[str, list[str]] = {}
        boxes: dict[str, dict[str, list[str]]] = {}
        for number in numbers:
            node = self.plan.nodes[number]
            calls = groups.setdefault(node.queue, [])
            if node.is_mailbox:
                if node.mixture is None:  # that one begins by asking
                    boxes.setdefault(node.queue, {})[f"{number}.{MAILBOX}"] = list(self.node(number).streams)
                calls.append(f"{number}.{MAILBOX}")
            else:
                calls.append(str(number))
        return [
            (queue, calls, boxes[queue]) if queue in boxes else (queue, calls)
            for queue, calls in groups.items()
        ]

    def close_of(self, number: int) -> Group:
        """The call that closes a fan-out, with its queue."""
        return (self.plan.nodes[number].queue, [f"{number}.{CLOSE}"])

    def steps(self, call: CallId) -> list[JoinStep]:
        """The joins that a finished call raises."""
        if self.plan.nodes[call.node].asked_by is not None:
            return []
        if call.item is not None:
            return [JoinStep(f"n{call.node}", 0, [self.close_of(call.node)])]
        node = self.plan.nodes[call.node]
        announced = [join for _, joins in node.announces for join in joins]
        return [self.join(number) for number in (*node.raises, *dict.fromkeys(announced))]

    def raised(self, call: CallId) -> list[str]:
        """The names of the joins that a finished call raises by itself, whatever parts of it are waited for."""
        if self.plan.nodes[call.node].asked_by is not None:
            return []
        if call.item is not None:
            return [f"n{call.node}"]
        return [str(join) for join in self.plan.nodes[call.node].raises]

    def announced(self, number: int) -> dict[Path, list[JoinStep]]:
        """By part of a node's output, the joins that wait for it."""
        return {
            path: [self.join(join) for join in joins] for path, joins in self.plan.nodes[number].announces
        }

    def agents_after(self, number: int) -> list[AgentPlan]:
        """The agents that wait for a node."""
        return self._agents_after.get(number, [])

    def readers(self, stream: str) -> list[str]:
        """The mailboxes that read a stream."""
        return self._readers.get(stream, [])

    def streamed_paths(self, number: int) -> list[Path]:
        """The parts of a node's output that somebody reads piece by piece."""
        return self._streamed.get(number, [])

    def ended_paths(self, number: int) -> list[Path]:
        """The parts of a node's output whose streams end with it: those that somebody reads, and what it publishes."""
        node, streamed = self.plan.nodes[number], self.streamed_paths(number)
        whole: list[Path] = [()] if node.publishes and node.for_each is None and () not in streamed else []
        return whole + streamed

    @cached_property
    def _agents_after(self) -> dict[int, list[AgentPlan]]:
        after: dict[int, list[AgentPlan]] = {}
        for node in self.plan.nodes:
            if node.agent is not None:
                for source in node.deps:
                    after.setdefault(source, []).append(node.agent)
        return after

    @cached_property
    def _readers(self) -> dict[str, list[str]]:
        readers: dict[str, list[str]] = {}
        for number, node in enumerate(self.plan.nodes):
            for stream in self.node(number).streams if node.edges else ():
                readers.setdefault(stream, []).append(f"{number}.{MAILBOX}")
        return readers

    @cached_property
    def _streamed(self) -> dict[int, list[Path]]:
        streamed: dict[int, list[Path]] = {}
        for number, node in enumerate(self.plan.nodes):
            for source, path in self.node(number).streams.values() if node.edges else ():
                if path not in streamed.setdefault(source, []):
                    streamed[source].append(path)
        return streamed

    def length_key(self, call: str) -> tuple[str, str]:
        """The kind of call whose lengths are measured together: by what it runs."""
        number, _, rest = call.partition(".")
        node = self.plan.nodes[int(number)]
        return (node.target or f"agent:{node.name}", rest if rest == CLOSE else "")

    def is_routed(self, call: str) -> bool:
        """Whether the router decides where such a call goes."""
        return self.plan.nodes[int(call.partition(".")[0])].queue == ROUTED

    def asks(self, call: str) -> bool:
        """Whether such a call asks an agent itself; one that opens, grows or closes a fan-out of them does not."""
        named = CallId(call)
        node = self.plan.nodes[named.node]
        return node.agent is not None and (named.item is not None or node.for_each is None)

    def is_asked(self, call: str) -> bool:
        """Whether a mixture made such a call."""
        return self.plan.nodes[int(call.partition(".")[0])].asked_by is not None

    @cached_property
    def has_routed(self) -> bool:
        """Whether the router places any of its calls."""
        return any(node.queue == ROUTED for node in self.plan.nodes)

    @cached_property
    def has_recalls(self) -> bool:
        """Whether claims of its calls may end while they run and the run goes on: what is asked twice, or asked no
        more."""
        return self.has_routed or any(node.mixture is not None for node in self.plan.nodes)

    def learned_name(self, number: int) -> str:
        """Under which name the lengths of a node's prompts and answers are learned."""
        return f"{self.plan.name}/{self.plan.nodes[number].name}"

    def fan_out(self, number: int) -> int:
        """How many nodes read a node's output."""
        return self._shape[0][number]

    def depth(self, number: int) -> int:
        """Nodes on the longest way from a node to the run's end, itself included."""
        return self._shape[1][number]

    @cached_property
    def _shape(self) -> tuple[list[int], list[int]]:
        fan_out, depth = [0] * len(self.plan.nodes), [1] * len(self.plan.nodes)
        for number in self._backwards():
            for source in self.plan.nodes[number].deps:
                fan_out[source] += 1
                depth[source] = max(depth[source], depth[number] + 1)
        return fan_out, depth

    def _backwards(self) -> Iterator[int]:
        """The nodes, each after those that read it."""
        graph = {number: node.deps for number, node in enumerate(self.plan.nodes)}
        return reversed(list(TopologicalSorter(graph).static_order()))

    def is_concurrent(self, call: str) -> bool:
        """Whether such calls run together on an event loop."""
        number, _, rest = call.partition(".")
        return self.plan.nodes[int(number)].concurrent and rest != CLOSE

    def expected_length(self, lengths: Lengths, call: str) -> float | None:
        """How long such a call takes, in seconds; None when never measured here."""
        return lengths.get(self.length_key(call))


__all__ = ["CallId", "PreparedNode", "PreparedPlan", "stream_name"]
