"""On what terms a run is executed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from mosaic_queues.errors import ConfigurationError, DefinitionError, InputError
from mosaic_queues.settings import settings
from mosaic_routing.queues import ROUTED
from mosaic_routing.requirements import Requirement
from mosaic_tasks import Flow, Workflow, agent, compile_workflow, submit
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.definition.terms import MOST_USD, Terms, without_terms
from mosaic_tasks.execution.prepared import PreparedPlan


def plan(extra: str = "") -> Plan:
    text = f"name: w\n{extra}nodes:\n  a: {{agent: {{prompt: x, model: 'pool:sage'}}}}\noutput: a\n"
    return compile_workflow(Workflow.from_yaml(text, source="w.yaml"))


def test_what_is_not_said_is_as_the_workflow_says() -> None:
    given = plan("objective: cost\ndeadline: 5m\nbudget: 0.5\n")
    assert (given.objective, given.deadline_s, given.budget_usd) == ("cost", 300.0, 0.5)
    assert Terms().of(given) is given
    changed = Terms(priority="batch", objective="throughput", deadline_s=9, budget_usd=0, tenant="acme").of(
        given
    )
    assert (changed.priority, changed.objective, changed.deadline_s) == (9, "throughput", 9)
    assert (changed.budget_usd, changed.tenant) == (0, "acme")
    assert without_terms(changed) == without_terms(given)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"priority": 10}, "10"),
        ({"priority": "soon"}, "soon"),
        ({"objective": "fame"}, "'fame' is no objective; give one of: latency, throughput, cost"),
        ({"deadline_s": 0}, "a deadline of 0 s is none"),
        ({"deadline_s": math.nan}, "a deadline of nan s is none"),
        ({"budget_usd": -1.0}, "a budget of -1.0 US dollars is none; give a number from 0"),
        ({"budget_usd": 1e30}, "a budget of 1e.30 US dollars is none"),
        ({"budget_usd": math.inf}, "a budget of inf US dollars is none"),
        ({"tenant": "a b"}, "'a b' is no name of a tenant"),
    ],
)
def test_terms_that_make_no_sense_are_refused(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Terms(**terms).of(plan())


@pytest.mark.parametrize("budget", ["1_000_000_001", ".inf", ".nan", "-1"])
def test_a_file_has_no_budget_that_its_terms_may_not_have(budget: str) -> None:
    with pytest.raises(DefinitionError, match="budget"):
        plan(f"budget: {budget}\n")
    assert plan(f"budget: {MOST_USD}\n").budget_usd == MOST_USD


def test_an_agent_of_the_pool_is_placed_by_the_router() -> None:
    node = plan().nodes[0]
    assert node.queue == ROUTED
    assert node.agent is not None
    assert node.agent.requires == Requirement(model="sage")


def test_what_an_agent_requires_survives_writing_and_reading() -> None:
    flow = Flow("w", objective="cost", budget=1, deadline="1m")
    requires = {"capability": "math", "min_quality": 0.5, "formats": "fp8", "memory": {"base_gb": 3}}
    flow.output(flow.agent(agent("x", requires=requires)))
    workflow = flow.build()
    again = Workflow.from_yaml(workflow.to_yaml())
    assert again == workflow
    compiled = compile_workflow(again).nodes[0].agent
    assert compiled is not None
    assert compiled.requires is not None
    assert compiled.requires.formats == ("fp8",)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            "prompt: x, model: 'openai:m', requires: {capability: math}",
            "'openai:m' says who answers, and `requires`",
        ),
        (
            "prompt: x, requires: {capabilty: math}",
            "a requirement has no field 'capabilty'; did you mean 'capability'",
        ),
        ("prompt: x, requires: [math]", "is no requirement; write for example"),
        ("prompt: x, requires: {near: aa}", "no node 'aa'"),
    ],
)
def test_a_requirement_that_cannot_be_used_is_told(written: str, message: str) -> None:
    text = f"name: w\nnodes:\n  a: {{agent: {{{written}}}}}\noutput: a\n"
    with pytest.raises(DefinitionError, match=message):
        compile_workflow(Workflow.from_yaml(text, source="w.yaml"))


def test_the_shape_of_a_plan_tells_who_waits_for_a_node() -> None:
    text = (
        "name: w\nnodes:\n  a: {agent: {prompt: x}}\n  b: {agent: {prompt: '{{ a }}'}}\n"
        "  c: {agent: {prompt: '{{ a }} {{ b }}'}}\noutput: c\n"
    )
    prepared = PreparedPlan("hash", compile_workflow(Workflow.from_yaml(text)))
    assert [prepared.fan_out(number) for number in range(3)] == [2, 1, 0]
    assert [prepared.depth(number) for number in range(3)] == [3, 2, 1]


def test_a_pool_that_cannot_be_read_is_told_before_a_run_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_MODELS", str(tmp_path / "none.yaml"))
    settings.cache_clear()
    workflow = Workflow.from_yaml(
        "name: w\nnodes:\n  a: {agent: {prompt: x, model: 'pool:sage'}}\noutput: a\n"
    )
    with pytest.raises(ConfigurationError, match=r"none\.yaml"):
        submit(workflow)
    settings.cache_clear()
