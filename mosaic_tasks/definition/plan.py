"""The compiled form of a workflow: what workers read.

Nodes are numbered by position. The set of producers that a node waits for is its *join*; nodes with the
same set share one. A closing node raises the counters of its joins (`NodePlan.raises`); a join whose counter
reaches its size releases its members. The last join, `Plan.end`, waits for all sinks: when it fires the run is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

NodeKind = Literal["tool", "task", "agent"]
OnFailure = Literal["fail", "skip", "default"]

INPUTS = -1
"""Source of a `Ref` to the run's inputs."""
ITEM = -2
"""Source of a `Ref` to the item of a `for_each` call."""


class Ref(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ref"):
    """A value read from elsewhere: `source` is a node number, `INPUTS` or `ITEM`; `path` walks into it."""

    source: int
    path: tuple[str | int, ...] = ()


class Retry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Attempts and the pause between them: `delay_s * factor**(attempt - 1)`, capped, with full jitter of 20 %."""

    attempts: int = 1
    delay_s: float = 1.0
    factor: float = 2.0
    max_delay_s: float = 60.0


class AgentPlan(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Prompt templates (Jinja source), output JSON Schema and sampling of an agent."""

    prompt: str
    system: str = ""
    model: str | None = None
    output_schema: dict[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


class NodePlan(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One node.

    Attributes:
        name: unique in the workflow.
        target: `module:function` of a tool, the name of a Celery task, empty for an agent.
        queue: the Celery queue that serves it.
        bindings: arguments by name: literals, `Ref`s encoded by `encode_ref`, and lists or dicts of those.
        deps: numbers of the nodes it waits for, ascending.
        for_each: the list to fan out over, or None.
        item_name: the name under which templates see the item of a fan-out call; bindings hold it as a `Ref`.
        when: a sandboxed Jinja expression over input and node names; false skips the node.
        names: the names that `when` and the agent's templates read, each with its `Ref`.
        concurrent: its calls wait more than they work, and run together on an event loop (agents, coroutines).
        raises: the joins that this node raises when it closes.
    """

    name: str
    kind: NodeKind
    queue: str
    target: str = ""
    bindings: dict[str, Any] = {}
    deps: tuple[int, ...] = ()
    for_each: Ref | None = None
    item_name: str = "item"
    when: str | None = None
    names: dict[str, Ref] = {}
    retry: Retry = Retry()
    timeout_s: float | None = None
    on_failure: OnFailure = "fail"
    default: Any = None
    agent: AgentPlan | None = None
    output_schema: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()
    concurrent: bool = False
    raises: tuple[int, ...] = ()


class Join(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """`members` are ready once `size` producers closed."""

    size: int
    members: tuple[int, ...]


class Plan(msgspec.Struct, frozen=True, gc=False):
    """A linked workflow: see the module's first lines."""

    name: str
    nodes: tuple[NodePlan, ...]
    joins: tuple[Join, ...]
    roots: tuple[int, ...]
    output: int
    inputs_schema: dict[str, Any] = {}

    @property
    def end(self) -> int:
        """Number of the join that ends the run."""
        return len(self.joins) - 1

    def encode(self) -> bytes:
        """The plan as msgpack; equal plans have equal bytes."""
        return _encoder.encode(self)

    @staticmethod
    def decode(data: bytes) -> Plan:
        """The plan from `encode`."""
        return _decoder.decode(data)


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(Plan)

_REF = "$ref"


def encode_ref(ref: Ref) -> dict[str, Any]:
    """A `Ref` as it stands inside `NodePlan.bindings`: `{"$ref": [source, *path]}`."""
    return {_REF: [ref.source, *ref.path]}


def decode_ref(value: Any) -> Ref | None:
    """The `Ref` that `encode_ref` wrote, or None for any other value."""
    if type(value) is dict and len(value) == 1 and _REF in value:
        source, *path = value[_REF]
        return Ref(source, tuple(path))
    return None


def plan_hash(data: bytes) -> str:
    """Content hash of an encoded plan, 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def link(
    name: str, nodes: Sequence[NodePlan], *, output: int, inputs_schema: dict[str, Any] | None = None
) -> Plan:
    """Joins the nodes by their `deps` and returns the plan. Costs O(nodes + edges)."""
    members: dict[tuple[int, ...], list[int]] = {}
    for number, node in enumerate(nodes):
        if node.deps:
            members.setdefault(node.deps, []).append(number)
    consumed = {dep for deps in members for dep in deps}
    sinks = tuple(number for number in range(len(nodes)) if number not in consumed)
    joins = [Join(len(deps), tuple(waiting)) for deps, waiting in members.items()]
    joins.append(Join(len(sinks), ()))
    raises = _raises([*members, sinks], len(nodes))
    return Plan(
        name=name,
        nodes=tuple(
            msgspec.structs.replace(node, raises=tuple(raised))
            for node, raised in zip(nodes, raises, strict=True)
        ),
        joins=tuple(joins),
        roots=tuple(number for number, node in enumerate(nodes) if not node.deps),
        output=output,
        inputs_schema=inputs_schema or {},
    )


def _raises(producers: Iterable[tuple[int, ...]], nodes: int) -> list[list[int]]:
    """For each node the joins that count it."""
    raises: list[list[int]] = [[] for _ in range(nodes)]
    for join, deps in enumerate(producers):
        for dep in deps:
            raises[dep].append(join)
    return raises
