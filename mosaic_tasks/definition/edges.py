"""Which nodes read which before those closed: the `edges` of a workflow, checked and made into the plan's.

A fan-out over a producer that gives its items one by one grows with it, without being asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from mosaic_queues.documents import path_text
from mosaic_tasks.definition.grammar import EdgeRule, Node
from mosaic_tasks.definition.plan import Batch, Edge, Path, Ref
from mosaic_tasks.definition.references import ReferenceSyntaxError, did_you_mean, parse, refs_in
from mosaic_tasks.definition.schemas import NoSuchPath, Schema, schema_at
from mosaic_tasks.definition.templates import TemplateProblem, names_in_expression
from mosaic_tasks.definition.tools import ToolSpec

Publishes = Literal["", "text", "item"]
SO_FAR = "so_far"
"""Under this name the templates of an agent that reads a stream see what it has answered already; empty at first."""
Report = Callable[..., None]
"""Takes a message and the place in the node."""


class NodeFacts(Protocol):
    """What is known of a node."""

    bindings: dict[str, Any]
    for_each: Ref | None
    names: dict[str, Ref]
    deps: tuple[int, ...]
    spec: ToolSpec | None
    agent_schema: Schema | None
    reads: list[tuple[Path, tuple[str, ...]]]


def publishes(node: Node, facts: NodeFacts) -> Publishes:
    """How a node gives its output while it runs."""
    if node.for_each is not None:
        return "item"
    if node.agent is not None:
        answers = any(rule.kind == "stream" for rule in node.edges.values())
        return "item" if answers and node.agent.output is not None else "text"
    if facts.spec is None:
        return ""
    if facts.spec.fold is not None:
        return "text" if facts.spec.fold.output == "text" else "item"
    return "item" if facts.spec.mode in ("generator", "async_generator") else ""


def batch_of(node: Node) -> Batch:
    """The plan's form of a node's `batch`."""
    rule = node.batch
    return Batch() if rule is None else Batch(rule.min_items, rule.max_items or 0, rule.max_wait)


class EdgeReader:
    """Reads the edges of all nodes of a workflow."""

    def __init__(self, nodes: Mapping[str, Node], facts: Sequence[NodeFacts]) -> None:
        self._nodes, self._facts = list(nodes.values()), facts
        self._ids = list(nodes)
        self._numbers = {name: number for number, name in enumerate(self._ids)}

    def edges(self, number: int, report: Report) -> dict[int, Edge]:
        """The edges of a node that do not wait for a closed producer; what is wrong is reported."""
        node, facts = self._nodes[number], self._facts[number]
        edges: dict[int, Edge] = {}
        for name, rule in node.edges.items():
            source = self._numbers.get(name)
            if source is None:
                report(f"no node {name!r}{did_you_mean(name, self._numbers)}", "edges", name)
            elif source not in facts.deps:
                report(f"this node reads nothing from {name!r}", "edges", name)
            elif rule.kind != "final":
                edge = self._edge(number, source, rule, partial(_report_edge, report, name))
                if edge is not None:
                    edges[source] = edge
        growing = self._growing(number)
        if growing is not None:
            edges[growing.source] = Edge(growing.source, "for_each", (growing.path,))
        self._check_consumer(number, edges, report)
        return edges

    def _edge(self, number: int, source: int, rule: EdgeRule, report: Callable[[str], None]) -> Edge | None:
        paths = self._paths(number, source, rule, report)
        if paths is None:
            return None
        if rule.kind == "fields":
            return self._fields_edge(number, source, paths, rule, report)
        for path in paths:
            if reason := self._no_stream(source, path):
                report(reason)
                return None
        if rule.by and not self._is_plain_text(source):
            report(f"{self._ids[source]!r} gives no text, so it has no sentences")
            return None
        return Edge(source, "stream", paths, rule.stable, rule.by)

    def _paths(
        self, number: int, source: int, rule: EdgeRule, report: Callable[[str], None]
    ) -> tuple[Path, ...] | None:
        """The declared parts, or those that the node reads."""
        if not rule.fields:
            return tuple(sorted(set(self._read_paths(number, source)), key=str))
        found = []
        for text in rule.fields:
            try:
                found.append(parse(f"${{x.{text}}}").path)
            except ReferenceSyntaxError:
                report(f"{text!r} is no part of an output; write `revenue` or `risk.level`")
                return None
        return tuple(found)

    def _read_paths(self, number: int, source: int) -> Iterable[Path]:
        facts = self._facts[number]
        for ref in refs_in(facts.bindings):
            if ref.source == source:
                yield ref.path
        if facts.for_each is not None and facts.for_each.source == source:
            yield facts.for_each.path
        for name in (name for name, ref in facts.names.items() if ref.source == source):
            parts = [tuple(steps) for _, (read, *steps) in facts.reads if read == name]
            yield from parts or [()]

    def _fields_edge(
        self,
        number: int,
        source: int,
        paths: tuple[Path, ...],
        rule: EdgeRule,
        report: Callable[[str], None],
    ) -> Edge | None:
        producer, facts = self._nodes[source], self._facts[source]
        if producer.agent is None or producer.for_each is not None:
            report(self._no_fields(source))
            return None
        if facts.agent_schema is None:
            report(f"{self._ids[source]!r} has no output schema, so its answer has no fields")
            return None
        for path in paths:
            if not path:
                report("name the fields: {fields: [...]}, since the node reads the whole output")
                return None
            try:
                schema_at(facts.agent_schema, path)
            except NoSuchPath as error:
                report(f"the output of {self._ids[source]!r} {error}")
                return None
        for read in self._read_paths(number, source):
            if not any(read[: len(path)] == path for path in paths):
                what = repr(path_text(read).lstrip(".")) if read else "the whole output"
                report(f"it reads {what}, which is none of the fields of this edge")
                return None
        return Edge(source, "fields", paths, rule.stable)

    def _no_fields(self, source: int) -> str:
        """Why the output of a node that is no single agent has no fields, and what to use instead."""
        name, gives = self._ids[source], publishes(self._nodes[source], self._facts[source])
        if gives:
            pieces = "a text" if gives == "text" else "its items one by one"
            return f"{name!r} gives {pieces}, not fields; use `{name}: stream`, and read the whole of it"
        return (
            f"{name!r} gives its output all at once; leave the edge out, since `fields` is for an agent with an "
            "output schema"
        )

    def _no_stream(self, source: int, path: Path) -> str | None:
        """Why a part of a producer's output cannot be read as a stream."""
        producer, facts, name = self._nodes[source], self._facts[source], self._ids[source]
        if producer.agent is not None and producer.for_each is None and facts.agent_schema is not None:
            try:
                part = schema_at(facts.agent_schema, path) if path else facts.agent_schema
            except NoSuchPath as error:
                return f"the output of {name!r} {error}"
            return (
                None
                if part.get("type") == "array"
                else f"{name!r}{path_text(path)} is no list, so it has no items"
            )
        if producer.tool is not None and facts.spec is None:
            return None  # tools are not imported here
        if not publishes(producer, facts):
            return f"{name!r} gives its output all at once; make it a generator, or read it when it closed"
        return f"{name!r} streams its whole output; read no part of it" if path else None

    def _growing(self, number: int) -> Ref | None:
        """The list of a fan-out that grows: its producer streams it, and nothing else of that producer is read."""
        node, ref = self._nodes[number], self._facts[number].for_each
        if ref is None or ref.source < 0 or self._ids[ref.source] in node.edges:
            return None
        if (
            self._no_stream(ref.source, ref.path)
            or publishes(self._nodes[ref.source], self._facts[ref.source]) == ""
        ):
            return None
        if self._is_plain_text(ref.source) or list(self._read_paths(number, ref.source)) != [ref.path]:
            return None
        whole = any(named.source == ref.source for named in self._facts[number].names.values())
        return None if whole or self._ids[ref.source] in node.after else ref

    def _is_plain_text(self, source: int) -> bool:
        producer = self._nodes[source]
        if producer.tool is not None and self._facts[source].spec is None:
            return True  # tools are not imported here
        return publishes(producer, self._facts[source]) == "text" and self._facts[source].agent_schema is None

    def _check_consumer(self, number: int, edges: Mapping[int, Edge], report: Report) -> None:
        node, facts = self._nodes[number], self._facts[number]
        streams = [edge for edge in edges.values() if edge.kind == "stream"]
        for name in _names_of_condition(node):
            edge = edges.get(self._numbers.get(name, -1))
            if edge is not None and edge.kind != "fields":
                report(
                    f"it decides on the whole node, so it cannot read {name!r}, which comes piece by piece",
                    "when",
                )
        is_fold = facts.spec is not None and facts.spec.fold is not None
        if is_fold and not streams and not node.edges:
            report("a fold reads a stream; say which: edges: {PRODUCER: stream}", "edges")
        if not streams:
            return
        if node.for_each is not None:
            report("a fan-out reads no other stream; its own list grows by itself", "edges")
        elif node.task is not None or (node.tool is not None and facts.spec is not None and not is_fold):
            report(f"{(node.tool or node.task)!r} cannot read a stream; {_instead(node)}", "edges")
        elif any(len(edge.paths) > 1 for edge in streams):
            report("it reads two parts of one producer as streams; read one, or the whole", "edges")


def _instead(node: Node) -> str:
    """What to do with a node that shall read a stream and cannot."""
    if node.task is not None:
        return "a Celery task waits for whole outputs: leave the edge out, or use a tool made by @fold"
    return (
        "make it a fold: write @fold above the function, which takes (state, ...) and returns (state, items)"
    )


def _names_of_condition(node: Node) -> Iterable[str]:
    try:
        return names_in_expression(node.when) if node.when else ()
    except TemplateProblem:  # told already
        return ()


def _report_edge(report: Report, name: str, message: str) -> None:
    report(message, "edges", name)


__all__ = ["SO_FAR", "EdgeReader", "Publishes", "batch_of", "publishes"]
