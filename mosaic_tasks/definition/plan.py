"""The compiled form of a workflow: what workers read.

Nodes are numbered by position. The set of producers, and of parts of producers' outputs, that a node waits for is its
*join*; nodes with the same set share one. A closing node raises the counters of its joins (`NodePlan.raises`), a part
that is complete those that wait for it (`NodePlan.announces`); a join whose counter reaches its size releases its
members. The last join, `Plan.end`, waits for all sinks: when it fires the run is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from mosaic_routing.requirements import Requirement
from mosaic_routing.targets import Objective
from mosaic_tasks.mixtures.mixture import Mixture

NodeKind = Literal["tool", "task", "agent", "mixture"]
OnFailure = Literal["fail", "skip", "default"]

INPUTS = -1
"""Source of a `Ref` to the run's inputs."""
ITEM = -2
"""Source of a `Ref` to the item of a `for_each` call."""


class Ref(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ref"):
    """A value read from elsewhere: `source` is a node number, `INPUTS` or `ITEM`; `path` walks into it."""

    source: int
    path: tuple[str | int, ...] = ()


Path = tuple[str | int, ...]
EdgeKind = Literal["fields", "stream", "for_each", "answers"]


class Edge(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How a node reads a producer that has not closed: parts of its output, or pieces as they come. No edge: when it
    closed.

    Attributes:
        kind: `answers`: those of an expert, as a mixture reads them.
        paths: the parts; of `for_each` exactly one, the list; the empty path is the whole output.
        stable: it starts when the producer closed all the same.
        by: of a text's `stream`: it is read sentence by sentence.
    """

    source: int
    kind: EdgeKind
    paths: tuple[Path, ...]
    stable: bool = False
    by: Literal["", "sentence"] = ""


class Batch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How many chunks a mailbox takes at once: none or less than `min_items` only after `max_wait_s` or at the end."""

    min_items: int = 1
    max_items: int = 0
    max_wait_s: float = 0.0


class Retry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Attempts and the pause between them: `delay_s * factor**(attempt - 1)`, capped, with full jitter of 20 %."""

    attempts: int = 1
    delay_s: float = 1.0
    factor: float = 2.0
    max_delay_s: float = 60.0


class AgentPlan(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Prompt templates (Jinja source), output JSON Schema and sampling of an agent.

    Attributes:
        requires: what a deployment needs to answer for it, where the router picks one; its `model` is then no engine's.
        logprobs: the probabilities of its tokens are of use.
    """

    prompt: str
    system: str = ""
    model: str | None = None
    output_schema: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    adapter: str = ""
    requires: Requirement | None = None
    logprobs: bool = False


class NodePlan(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One node.

    Attributes:
        name: unique in the workflow.
        target: `module:function` of a tool, the name of a Celery task, empty for an agent.
        queue: the Celery queue that serves it.
        bindings: arguments by name: literals, `Ref`s encoded by `encode_ref`, and lists or dicts of those.
        deps: numbers of the nodes that it reads or comes after, ascending; `edges` tells which it need not wait for.
        for_each: the list to fan out over, or None.
        when: a sandboxed Jinja expression over input and node names; false skips the node.
        names: the names that `when` and the agent's templates read, each with its `Ref`.
        concurrent: its calls wait more than they work, and run together on an event loop (agents, coroutines).
        raises: the joins that this node raises when it closes.
        edges: by producer, how it is read before it closed.
        batch: of a node that reads pieces.
        publishes: its chunks are published: `text` or `item`; empty: it gives all at its end.
        announces: the parts of its output that joins wait for.
        mixture: whom it asks, and what becomes of the answers.
        asked_by: the mixture whose expert, verifier or aggregator it is: its calls are made by that one alone.
    """

    name: str
    kind: NodeKind
    queue: str
    target: str = ""
    bindings: dict[str, Any] = {}
    deps: tuple[int, ...] = ()
    for_each: Ref | None = None
    when: str | None = None
    names: dict[str, Ref] = {}
    retry: Retry = Retry()
    timeout_s: float | None = None
    on_failure: OnFailure = "fail"
    default: Any = None
    agent: AgentPlan | None = None
    tags: tuple[str, ...] = ()
    concurrent: bool = False
    raises: tuple[int, ...] = ()
    edges: tuple[Edge, ...] = ()
    batch: Batch = Batch()
    publishes: Literal["", "text", "item"] = ""
    announces: tuple[tuple[Path, tuple[int, ...]], ...] = ()
    mixture: Mixture | None = None
    asked_by: int | None = None

    @property
    def is_mailbox(self) -> bool:
        """Whether it reads pieces as they come: again and again, or a call an item."""
        return any(edge.kind != "fields" for edge in self.edges)

    @property
    def grows(self) -> bool:
        """Whether its fan-out grows while its producer still runs."""
        return any(edge.kind == "for_each" for edge in self.edges)

    def waits_for(self) -> tuple[Wait, ...]:
        """What it waits for before it starts: whole outputs first, then parts of outputs."""
        early = {edge.source for edge in self.edges if not edge.stable}
        whole = tuple((source, None) for source in self.deps if source not in early)
        parts = tuple(
            (edge.source, path)
            for edge in self.edges
            if edge.kind == "fields" and not edge.stable
            for path in edge.paths
        )
        return whole + parts


Wait = tuple[int, Path | None]
"""A producer, and the part of its output or None for all of it."""


class Join(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """`members` are ready once `size` producers closed, or parts of them are complete."""

    size: int
    members: tuple[int, ...]


class Plan(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A linked workflow: see the module's first lines.

    Attributes:
        priority: of its calls in queues and engines: 0 is the most urgent, 9 gives way to everything else.
        objective: what routing cares for most.
        deadline_s: a run that takes longer fails.
        budget_usd: its calls may cost so much together.
        tenant: on whose account.
    """

    name: str
    nodes: tuple[NodePlan, ...]
    joins: tuple[Join, ...]
    roots: tuple[int, ...]
    output: int
    inputs_schema: dict[str, Any] = {}
    priority: int = 0
    objective: Objective = "latency"
    deadline_s: float | None = None
    budget_usd: float | None = None
    tenant: str = ""

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
    members: dict[tuple[Wait, ...], list[int]] = {}
    for number, node in enumerate(nodes):
        if node.asked_by is None and (waits := node.waits_for()):
            members.setdefault(waits, []).append(number)
    last = tuple((number, None) for number in sinks(nodes))
    joins = [Join(len(waits), tuple(waiting)) for waits, waiting in members.items()]
    joins.append(Join(len(last), ()))
    raised: dict[Wait, list[int]] = {}
    for join, waits in enumerate([*members, last]):
        for wait in waits:
            raised.setdefault(wait, []).append(join)
    announced: dict[int, list[tuple[Path, tuple[int, ...]]]] = {}
    for (source, path), numbers in raised.items():
        if path is not None:
            announced.setdefault(source, []).append((path, tuple(numbers)))
    return Plan(
        name=name,
        nodes=tuple(
            msgspec.structs.replace(
                node,
                raises=tuple(raised.get((number, None), ())),
                announces=tuple(announced.get(number, ())),
            )
            for number, node in enumerate(nodes)
        ),
        joins=tuple(joins),
        roots=tuple(
            number for number, node in enumerate(nodes) if node.asked_by is None and not node.waits_for()
        ),
        output=output,
        inputs_schema=inputs_schema or {},
    )


def sinks(nodes: Sequence[NodePlan]) -> list[int]:
    """The nodes that nobody reads to their end: the run waits for them itself."""
    read: set[int] = set()
    for node in nodes:
        parts = {edge.source for edge in node.edges if edge.kind == "fields" and not edge.stable}
        read |= set(node.deps) - parts
    return [number for number in range(len(nodes)) if number not in read]
