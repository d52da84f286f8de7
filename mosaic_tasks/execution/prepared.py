"""A plan made ready for running: what each node reads, what its closing releases, how its calls are named."""

from __future__ import annotations

import re
from functools import cached_property

from mosaic_queues.errors import DefinitionError
from mosaic_queues.ledger import JoinStep
from mosaic_tasks.definition.plan import ITEM, NodePlan, Plan
from mosaic_tasks.definition.references import Label, label_in, prepare, refs_in
from mosaic_tasks.definition.templates import names_in, names_in_expression
from mosaic_tasks.definition.tools import ToolSpec, resolve_tool
from mosaic_tasks.execution.sharing import Lengths

INPUTS_CALL = "in"
"""Under this name the outputs hold the inputs of the run."""
CLOSE = "c"


_CALL = re.compile(r"[0-9]{1,9}(\.([0-9]{1,9}|c))?")


class CallId:
    """A call id taken apart: `"17"`, `"17.3"` (item 3) or `"17.c"` (the close of the fan-out)."""

    __slots__ = ("closes", "item", "node")

    def __init__(self, call: str) -> None:
        node, _, rest = call.partition(".")
        self.node = int(node)
        self.closes = rest == CLOSE
        self.item = int(rest) if rest and not self.closes else None


class PreparedNode:
    """A node with what its execution asks again and again.

    Attributes:
        arguments: gives the call's arguments from a lookup of sources.
        required: numbers of the producers without whose output it cannot run.
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
        self.required = tuple(sorted((named | bound | fanned) - {ITEM}))
        self.optional = tuple(
            sorted({ref.source for ref in plan.names.values()} - set(self.required) - {ITEM})
        )

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

    def by_queue(self, numbers: tuple[int, ...]) -> list[tuple[str, list[str]]]:
        """The first call of each node, grouped by its queue."""
        groups: dict[str, list[str]] = {}
        for number in numbers:
            groups.setdefault(self.plan.nodes[number].queue, []).append(str(number))
        return list(groups.items())

    def steps(self, call: CallId) -> list[JoinStep]:
        """The joins that a finished call raises."""
        if call.item is not None:
            queue = self.plan.nodes[call.node].queue
            return [JoinStep(f"n{call.node}", 0, [(queue, [f"{call.node}.{CLOSE}"])])]
        return [self.join(number) for number in self.plan.nodes[call.node].raises]

    def length_key(self, call: str) -> tuple[str, str]:
        """The kind of call whose lengths are measured together: by what it runs."""
        number, _, rest = call.partition(".")
        node = self.plan.nodes[int(number)]
        return (node.target or f"agent:{node.name}", rest if rest == CLOSE else "")

    def is_concurrent(self, call: str) -> bool:
        """Whether such calls run together on an event loop."""
        number, _, rest = call.partition(".")
        return self.plan.nodes[int(number)].concurrent and rest != CLOSE

    def expected_length(self, lengths: Lengths, call: str) -> float | None:
        """How long such a call takes, in seconds; None when never measured here."""
        return lengths.get(self.length_key(call))


__all__ = ["CLOSE", "INPUTS_CALL", "CallId", "PreparedNode", "PreparedPlan"]
