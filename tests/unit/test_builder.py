"""Workflows in Python are those of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_tools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_queues.errors import DefinitionError
from mosaic_tasks.definition.builder import Flow, Handle, item
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.definition.plan import plan_hash
from mosaic_tasks.definition.tools import agent
from mosaic_tasks.definition.workflow import Workflow

YAML = """
name: weekly-report
description: what happened
inputs:
  repo: {type: string, default: "."}
  tickets: {type: [string, "null"], default: null}
defaults: {timeout: 5m}
nodes:
  read_commits:
    tool: made_tools:read_commits
    with: {repo: "${inputs.repo}", since: "since ${inputs.tickets}"}
  people:
    tool: made_tools:by_person
    with: {commits: "${read_commits.items}"}
    retry: {attempts: 3, delay: 1s}
  sections:
    for_each: "${people.people}"
    as: person
    agent:
      system: You write short.
      prompt: Write about {{ person.name }}.
      output: made_tools:Section
      temperature: 0.2
    with: {notes: ["${person.name}", "${people.total}"]}
    on_failure: skip
    tags: [writing]
  report:
    tool: made_tools:anything
    when: people.total > 0
    after: [people]
    with: {sections: "${sections}", queue: x}
  told:
    task: reports.tell
    with: {text: "${report}"}
    detached: true
output: report
"""


def built() -> Workflow:
    flow = Flow("weekly-report", description="what happened", defaults={"timeout": "5m"})
    repo = flow.input("repo", str, default=".")
    tickets = flow.input("tickets", str | None, default=None)
    commits = flow.tool(made_tools.read_commits, repo=repo, since=f"since {tickets}")
    people = flow.tool(
        made_tools.by_person, id="people", commits=commits["items"], retry={"attempts": 3, "delay": 1}
    )
    sections = flow.agent(
        made_tools.section,
        id="sections",
        for_each=people["people"],
        as_="person",
        on_failure="skip",
        tags=["writing"],
        notes=(Handle("person")["name"], people["total"]),
    )
    report = flow.tool(
        "made_tools:anything",
        id="report",
        when="people.total > 0",
        after=[people],
        sections=sections,
        with_={"queue": "x"},
    )
    flow.task("reports.tell", id="told", text=report, detached=True)
    flow.output(report)
    return flow.build()


def test_python_and_yaml_give_the_same_workflow_and_the_same_plan() -> None:
    from_yaml, from_python = Workflow.from_yaml(YAML), built()
    assert from_python == from_yaml
    plans = [compile_workflow(workflow).encode() for workflow in (from_yaml, from_python)]
    assert plan_hash(plans[0]) == plan_hash(plans[1])
    assert Workflow.from_yaml(from_python.to_yaml()) == from_yaml


def test_edges_and_batches_are_those_of_files() -> None:
    flow = Flow("w")
    numbers = flow.tool("stream_tools:numbers", id="numbers", n=3)
    totals = flow.tool(
        "stream_tools:totals",
        values=numbers,
        edges={"numbers": "stream"},
        batch={"min_items": 2, "max_wait": "1s"},
    )
    flow.output(
        flow.agent(
            agent(prompt="{{ totals }}"), id="told", totals=totals, edges={"totals": {"kind": "final"}}
        )
    )
    written = """
name: w
nodes:
  numbers: {tool: "stream_tools:numbers", with: {n: 3}}
  totals:
    tool: stream_tools:totals
    with: {values: "${numbers}"}
    edges: {numbers: stream}
    batch: {min_items: 2, max_wait: 1}
  told:
    agent: {prompt: "{{ totals }}"}
    with: {totals: "${totals}"}
    edges: {totals: final}
output: told
"""
    assert flow.build() == Workflow.from_yaml(written)


def test_edges_take_nodes_as_other_arguments_do() -> None:
    flow = Flow("w")
    numbers = flow.tool("stream_tools:numbers", id="numbers", n=3)
    totals = flow.tool("stream_tools:totals", id="totals", values=numbers, edges={numbers: "stream"})
    flow.output(totals)
    assert flow.build().nodes["totals"].edges["numbers"].kind == "stream"
    with pytest.raises(DefinitionError, match="`edges` has a node twice: numbers, numbers"):
        flow.tool("stream_tools:totals", values=numbers, edges={numbers: "stream", "numbers": "final"})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"x": 10**30}, "field 'with.x': the value holds an int of 100 bits"),
        ({"x": {"a": ["\ud800"]}}, r"field 'with.x': the value\.a\[0\] holds a text with the lone surrogate"),
        ({"on_failure": {"default": 2**70}}, "field 'on_failure.default': the value holds an int of 71 bits"),
        ({"batch": {"min_items": 2**70}}, "field 'batch.min_items': the value holds an int of 71 bits"),
        ({"when": "'\udcff'"}, "field 'when': the value holds a text with the lone surrogate"),
        ({"tags": ["\udcff"]}, r"field 'tags': the value\[0\] holds a text with the lone surrogate"),
    ],
)
def test_a_literal_that_cannot_be_stored_is_told_with_node_and_field(
    options: dict[str, Any], told: str
) -> None:
    flow = Flow("w")
    flow.output(flow.task("t", id="a", **options))
    with pytest.raises(DefinitionError, match=f"node 'a', {told}"):
        compile_workflow(flow.build())


@pytest.mark.parametrize(
    ("option", "value"), [("seed", 10**30), ("max_tokens", 10**30), ("system", "\ud800")]
)
def test_an_agent_that_cannot_be_stored_is_told_with_node_and_field(option: str, value: Any) -> None:
    flow = Flow("w")
    flow.output(flow.agent(agent("p", **{option: value}), id="a"))
    with pytest.raises(DefinitionError, match=rf"node 'a', field 'agent\.{option}': the value holds"):
        compile_workflow(flow.build())


literals = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), literals, st.booleans()), min_size=1, max_size=8))
def test_any_flow_equals_its_file(steps: list[tuple[int, Any, bool]]) -> None:
    flow = Flow("w")
    handles: list[Any] = [flow.input("first", default=[])]
    for number, literal, fanned in steps:
        earlier = handles[number % len(handles)]
        data = literal if "${" not in repr(literal) else None
        each = (
            {"for_each": earlier, "value": [item, data]}
            if fanned and len(handles) > 1
            else {"value": [earlier]}
        )
        handles.append(flow.task("t", detached=True, data=data, **each))
    flow.output(handles[-1])
    workflow = flow.build()
    again = Workflow.from_yaml(workflow.to_yaml())
    assert again == workflow
    assert compile_workflow(again).encode() == compile_workflow(workflow).encode()


def test_ids_are_made_from_names_and_stay_unique() -> None:
    flow = Flow("w")
    names = [flow.tool(made_tools.report, sections=[]).name for _ in range(3)]
    assert names == ["report", "report_2", "report_3"]
    assert flow.task("my.app.Fetch-All").name == "fetch_all"
    with pytest.raises(DefinitionError, match="node 'report' is there twice"):
        flow.tool(made_tools.report, id="report")


@pytest.mark.parametrize("kind", ["tool", "task", "agent"])
def test_nodes_of_each_kind_take_the_options_of_files(kind: str) -> None:
    subject: Any = {
        "tool": made_tools.anything,
        "task": "t",
        "agent": made_tools.section,
    }[kind]
    flow = Flow("w")
    first = flow.task("t", id="first", detached=True)
    flow.output(
        getattr(flow, kind)(
            subject, id="x", for_each=first, as_="each", when="true", after=[first], retry=2, timeout="5m",
            on_failure="skip", tags=["a"], queue="q", detached=True, description="d", with_={"id": 1}, more=2,
        )
    )  # fmt: skip
    node = (
        flow.build()
        .nodes["x"]
        .model_dump(by_alias=True, exclude_defaults=True, exclude={"tool", "task", "agent"})
    )
    assert node.pop("retry") == {"attempts": 2}
    assert node == {
        "for_each": "${first}", "as": "each", "when": "true", "after": ("first",), "timeout": 300.0,
        "on_failure": "skip", "tags": ("a",), "queue": "q", "detached": True, "description": "d",
        "with": {"more": 2, "id": 1},
    }  # fmt: skip


def test_a_handle_is_a_reference() -> None:
    handle = Handle("people")["people"][0]["full name"]
    assert str(handle) == f"{handle}" == '${people.people[0]["full name"]}'
    with pytest.raises(TypeError):
        list(handle)  # type: ignore[call-overload]


def test_mistakes_in_python_are_told_without_a_file() -> None:
    flow = Flow("w")
    flow.output(flow.tool(made_tools.read_commits, repo="${rep}"))
    with pytest.raises(DefinitionError, match=r"node 'read_commits', field 'with\.repo': no node 'rep'"):
        compile_workflow(flow.build())


def test_what_no_workflow_can_hold_is_refused() -> None:
    flow = Flow("w")
    with pytest.raises(DefinitionError, match=r"no output; call flow\.output"):
        flow.build()
    with pytest.raises(DefinitionError, match="is a PosixPath, which a workflow cannot hold"):
        flow.task("t", where=Path("x"))
    with pytest.raises(DefinitionError, match="is a lambda, which workers cannot import"):
        flow.tool(lambda: None)
    flow.output(flow.task("t", id="a", retry="x"))
    with pytest.raises(DefinitionError, match="field 'retry"):
        flow.build()


def test_a_model_becomes_data() -> None:
    flow = Flow("w")
    flow.output(flow.task("t", person=made_tools.Person(name="Ann", commits=1)))
    assert flow.build().nodes["t"].arguments == {"person": {"name": "Ann", "commits": 1}}
