"""Which nodes read which before those closed, and what is told about edges that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from mosaic_queues.errors import DefinitionError
from mosaic_tasks import Workflow, fold
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.definition.plan import Edge

TOOLS = "tests.integration.stream_tools"
SCHEMA = {
    "type": "object",
    "properties": {
        "revenue": {"type": "integer"},
        "warnings": {"type": "array", "items": {"type": "string"}},
    },
}


def tool(name: str, **options: Any) -> dict[str, Any]:
    return {"tool": f"{TOOLS}:{name}", "with": options.pop("with_", {}), **options}


NUMBERS = tool("numbers", with_={"n": 3})
ALL_AT_ONCE = tool("both", with_={"a": 1, "b": 2})
EXTRACT = {"agent": {"prompt": "Extract.", "output": SCHEMA, "model": "extractive"}}
PROSE = {"agent": {"prompt": "Write.", "model": "extractive"}}


def edges(producer: dict[str, Any], reader: dict[str, Any]) -> tuple[Edge, ...]:
    """The edges of a reader of `producer`."""
    nodes = {"producer": producer, "reader": reader}
    made = Workflow.from_data({"name": "w", "nodes": nodes, "output": "reader"})
    return compile_workflow(made).nodes[1].edges


def totals(edge: Any = "stream", value: str = "${producer}") -> dict[str, Any]:
    return tool("totals", with_={"values": value}, edges={"producer": edge})


def told(edge: Any, value: str = "${producer}") -> dict[str, Any]:
    return tool("told", with_={"x": value}, edges={"producer": edge})


def reads_as_task() -> dict[str, Any]:
    return {"task": "my.task", "with": {"x": "${producer}"}, "edges": {"producer": "stream"}}


def each(value: str = "${producer}", **options: Any) -> dict[str, Any]:
    return tool("told", for_each=value, with_={"x": "${item}"}, **options)


def test_a_fold_reads_a_generator_piece_by_piece() -> None:
    assert edges(NUMBERS, totals()) == (Edge(0, "stream", ((),)),)


def test_fields_are_those_that_the_node_reads() -> None:
    assert edges(EXTRACT, told("fields", "${producer.revenue}")) == (Edge(0, "fields", (("revenue",),)),)


@pytest.mark.parametrize(
    ("producer", "reader", "grows"),
    [
        (NUMBERS, each(), True),
        (EXTRACT, each("${producer.warnings}"), True),
        (ALL_AT_ONCE, each(), False),
        (NUMBERS, each(edges={"producer": "final"}), False),
        (NUMBERS, each(after=["producer"]), False),
    ],
)
def test_a_fan_out_grows_by_itself_over_what_comes_piece_by_piece(
    producer: dict[str, Any], reader: dict[str, Any], grows: bool
) -> None:
    assert [edge.kind for edge in edges(producer, reader)] == ["for_each"] * grows


@pytest.mark.parametrize(
    ("producer", "reader", "message"),
    [
        (ALL_AT_ONCE, totals(), "'producer' gives its output all at once; make it a generator"),
        (NUMBERS, tool("totals", with_={"values": "${producer}"}), "a fold reads a stream; say which"),
        (
            NUMBERS,
            told("stream"),
            "'tests.integration.stream_tools:told' cannot read a stream; make it a fold: write @fold",
        ),
        (NUMBERS, reads_as_task(), "'my.task' cannot read a stream; a Celery task waits for whole outputs"),
        (
            NUMBERS,
            told("fields", "${producer[0]}"),
            "'producer' gives its items one by one, not fields; use `producer: stream`",
        ),
        (
            ALL_AT_ONCE,
            told("fields", "${producer[0]}"),
            "all at once; leave the edge out, since `fields` is for",
        ),
        (PROSE, told("fields", "${producer.x}"), "has no output schema, so its answer has no fields"),
        (EXTRACT, told("fields"), "name the fields"),
        (EXTRACT, totals(value="${producer.revenue}"), "'producer'.revenue is no list, so it has no items"),
        (NUMBERS, totals(value="${producer[0]}"), "'producer' streams its whole output; read no part of it"),
        (
            NUMBERS,
            tool("numbers", with_={"n": 1}, edges={"producer": "stream"}),
            "this node reads nothing from",
        ),
        (
            NUMBERS,
            tool("numbers", with_={"n": 1}, edges={"producr": "stream"}),
            "no node 'producr'.*producer",
        ),
    ],
)
def test_an_edge_that_cannot_be_is_told(
    producer: dict[str, Any], reader: dict[str, Any], message: str
) -> None:
    with pytest.raises(DefinitionError, match=message):
        edges(producer, reader)


def test_a_field_that_is_read_must_be_one_of_the_edge() -> None:
    nodes = {
        "extract": EXTRACT,
        "reader": tool(
            "both",
            with_={"a": "${extract.revenue}", "b": "${extract.warnings}"},
            edges={"extract": {"fields": ["revenue"]}},
        ),
    }
    with pytest.raises(
        DefinitionError, match="it reads 'warnings', which is none of the fields of this edge"
    ):
        compile_workflow(Workflow.from_data({"name": "w", "nodes": nodes, "output": "reader"}))


def test_a_template_waits_for_the_field_that_it_reads_not_for_what_is_around_it() -> None:
    nested = {
        "type": "object",
        "properties": {"risk": {"type": "object", "properties": {"level": {}, "more": {}}}},
    }
    extract = {"agent": {"prompt": "Extract.", "output": nested, "model": "extractive"}}
    asked = {"agent": {"prompt": "{{ producer.risk.level }}", "model": "extractive"}}
    for edge in ("fields", {"fields": ["risk.level"]}):
        found = edges(extract, {**asked, "edges": {"producer": edge}})
        assert found == (Edge(0, "fields", (("risk", "level"),)),)


def test_a_template_that_reads_the_whole_beside_a_field_has_no_fields() -> None:
    asked = {
        "agent": {"prompt": "{{ extract }} and {{ extract.revenue }}", "model": "extractive"},
        "edges": {"extract": "fields"},
    }
    with pytest.raises(DefinitionError, match="since the node reads the whole output"):
        compile_workflow(
            Workflow.from_data(
                {"name": "w", "nodes": {"extract": EXTRACT, "asked": asked}, "output": "asked"}
            )
        )


def test_a_fold_of_no_known_output_is_refused() -> None:
    with pytest.raises(
        DefinitionError, match="a fold has no output 'string'; it is one of items, text, state"
    ):
        fold(output="string")  # type: ignore[call-overload]
