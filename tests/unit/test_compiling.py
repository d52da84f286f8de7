"""A workflow becomes the plan that workers read."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from mosaic_routing.queues import provider_of, queue_for
from mosaic_tasks.definition.collector import collector_paused
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.definition.plan import INPUTS, ITEM, Plan, Ref, Retry
from mosaic_tasks.definition.workflow import Workflow

TEXT = """
name: w
inputs: {repo: {type: string, default: "."}, days: integer}
defaults: {timeout: 10s, on_failure: skip}
nodes:
  sections:
    for_each: "${people.people}"
    as: person
    agent: {system: "{{ inputs.repo }}", prompt: "{{ person.name }} {{ notes }} {{ commits.total }}"}
    with: {notes: "${people.total}"}
    when: commits.total > 0
    on_failure: {default: 5}
  commits: {tool: "made_tools:read_commits", with: {repo: "${inputs.repo}"}, tags: [git]}
  people: {tool: "made_tools:by_person", with: {commits: "${commits.items}"}, on_failure: fail}
  tell: {task: app.tell, queue: slow, with: {x: "${sections}"}, after: [commits], retry: 4}
output: tell
"""


def compiled(text: str = TEXT, **options: Any) -> Plan:
    return compile_workflow(Workflow.from_yaml(text), **options)


def test_nodes_stand_in_the_order_of_the_file_with_their_dependencies() -> None:
    plan = compiled()
    assert [node.name for node in plan.nodes] == ["sections", "commits", "people", "tell"]
    assert [node.deps for node in plan.nodes] == [(1, 2), (), (1,), (0, 1)]
    assert (plan.roots, plan.output) == ((1,), 3)
    assert plan.inputs_schema["required"] == ["days"]


def test_an_agent_knows_its_names_bindings_and_items() -> None:
    node = compiled().nodes[0]
    assert node.for_each == Ref(2, ("people",))
    assert node.bindings == {"notes": {"$ref": [2, "total"]}}
    assert node.names == {"inputs": Ref(INPUTS), "person": Ref(ITEM), "commits": Ref(1)}
    assert node.when == "commits.total > 0"
    assert (node.on_failure, node.default) == ("default", 5)


def test_options_come_from_the_node_then_its_tool_then_the_defaults() -> None:
    sections, commits, people, tell = compiled().nodes
    assert [node.timeout_s for node in (sections, commits, people, tell)] == [10, 10, 30, 10]
    assert people.retry == Retry(attempts=2)
    assert tell.retry == Retry(attempts=4)
    assert [commits.on_failure, people.on_failure] == ["skip", "fail"]
    assert commits.tags == ("git",)
    assert compiled(import_tools=False).nodes[2].retry == Retry()


def test_queues_follow_kind_and_model() -> None:
    assert [node.queue for node in compiled().nodes] == ["mosaic.cpu", "mosaic.cpu", "mosaic.cpu", "slow"]
    routed = compiled(default_model="openai:gpt-5").nodes[0]
    assert routed.queue == "mosaic.api.openai"
    assert routed.agent is not None
    assert routed.agent.model == "openai:gpt-5"


@pytest.mark.parametrize(
    ("kind", "model", "queue"),
    [
        ("tool", None, "mosaic.cpu"),
        ("task", "openai:x", "mosaic.cpu"),
        ("agent", None, "mosaic.cpu"),
        ("agent", "extractive", "mosaic.cpu"),
        ("agent", "openai:gpt-5", "mosaic.api.openai"),
    ],
)
def test_each_kind_has_a_queue(kind: Any, model: str | None, queue: str) -> None:
    assert queue_for(kind, model) == queue
    assert provider_of(None) == "extractive"


def test_a_plan_survives_its_bytes_and_is_made_once() -> None:
    workflow = Workflow.from_yaml(TEXT)
    plan = compile_workflow(workflow)
    assert Plan.decode(plan.encode()) == plan
    assert compile_workflow(workflow) is plan
    assert compile_workflow(workflow, default_model="openai:x") is not plan


def test_the_output_model_of_an_agent_becomes_a_schema() -> None:
    plan = compiled("name: w\nnodes: {a: {agent: {prompt: x, output: 'made_tools:Section'}}}\noutput: a")
    agent = plan.nodes[0].agent
    assert agent is not None
    assert agent.output_schema is not None
    assert set(agent.output_schema["properties"]) == {"title", "body"}


def wide(size: int) -> str:
    nodes = [
        f"  n{n}: {{tool: 'made_tools:anything', with: {{a: '${{n{n // 2}.x}}', b: 3}}}}"
        for n in range(1, size)
    ]
    everything = ", ".join(f"'${{n{number}}}'" for number in range(size))
    end = f"  end: {{tool: 'made_tools:anything', with: {{all: [{everything}]}}}}"
    return "\n".join(["name: w", "nodes:", "  n0: {tool: 'made_tools:anything'}", *nodes, end, "output: end"])


def function_calls(work: Callable[[], object]) -> int:
    """How many functions `work` calls, those in C included."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def test_the_work_of_loading_and_compiling_grows_as_the_nodes_do() -> None:
    compiled(wide(10))  # what is made once
    small, large = (function_calls(partial(compiled, wide(size))) for size in (500, 2_000))
    assert large < 4.4 * small


def test_ten_thousand_nodes_compile() -> None:
    assert len(compiled(wide(10_000)).nodes) == 10_001


def test_the_collector_is_paused_only_while_building() -> None:
    with collector_paused(), collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
