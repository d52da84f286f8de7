"""Beginnings of prompts: which are warmed, how often, and by whom."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from mosaic_queues.errors import EngineOverloaded
from mosaic_tasks import Workflow, compile_workflow
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.engines.protocol import EngineRequest, Events, Finished, Message, Usage
from mosaic_tasks.engines.registry import close_engines, host
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.warming import WORTH_CHARS, Warmer, beginning

LONG = "Rules. " * WORTH_CHARS


class Warming:
    """An engine with a prefix cache that notes what it warms."""

    name = "vllm"

    def __init__(self, error: Exception | None = None) -> None:
        self.warmed: list[tuple[Message, ...]] = []
        self._error = error

    async def warm(self, messages: Sequence[Message]) -> None:
        self.warmed.append(tuple(messages))
        if self._error is not None:
            raise self._error

    async def stream(self, _request: EngineRequest) -> Events:
        yield Finished("stop", Usage())

    async def aclose(self) -> None:
        """Nothing is open."""


def test_a_beginning_is_the_static_system_message_and_the_text_before_the_first_expression() -> None:
    agent = AgentPlan(prompt=f"{LONG}Facts: {{{{ facts }}}} and more", system="Be short.")
    assert beginning(agent) == (Message("system", "Be short."), Message("user", f"{LONG}Facts: "))


def test_behind_a_system_message_that_differs_nothing_is_shared() -> None:
    agent = AgentPlan(prompt=LONG, system=f"{LONG}You write for {{{{ reader }}}}.")
    assert beginning(agent) == (Message("system", f"{LONG}You write for "),)


@pytest.mark.parametrize("prompt", ["Short {{ x }}", f"{{{{ x }}}}{LONG}", ""])
def test_a_short_beginning_is_none(prompt: str) -> None:
    assert beginning(AgentPlan(prompt=prompt)) == ()


def plan() -> PreparedPlan:
    asks: dict[str, Any] = {"prompt": f"{LONG}{{{{ first }}}}", "model": "vllm:m"}
    nodes = {
        "first": {"agent": {"prompt": "Begin.", "model": "vllm:m"}},
        "second": {"agent": asks},
        "third": {"agent": {**asks, "model": "vllm:elsewhere"}},
        "fourth": {"agent": {**asks, "model": "extractive"}},
    }
    nodes["last"] = {"agent": {"prompt": "{{ second }}{{ third }}{{ fourth }}"}}
    workflow = Workflow.from_data({"name": "w", "nodes": nodes, "output": "last"})
    return PreparedPlan("hash", compile_workflow(workflow))


def warm(engine: Warming, *numbers: int) -> None:
    async def run() -> None:
        started: list[Coroutine[Any, Any, None]] = []
        host(engine, "m")
        warmer = Warmer(started.append)
        for number in numbers:
            warmer.while_running(plan(), number)
        for each in started:
            await each
        await close_engines()

    asyncio.run(run())


def test_while_a_node_runs_the_agents_that_follow_are_warmed_where_they_are_hosted() -> None:
    engine = Warming()
    warm(engine, 0)
    assert engine.warmed == [(Message("user", LONG),)]


def test_what_was_warmed_a_moment_ago_is_not_warmed_again() -> None:
    engine = Warming()
    warm(engine, 0, 0, 0)
    assert len(engine.warmed) == 1


def test_a_node_that_no_agent_reads_warms_nothing() -> None:
    engine = Warming()
    warm(engine, 4)
    assert engine.warmed == []


def test_an_engine_that_is_busy_costs_nothing_but_the_warmth() -> None:
    engine = Warming(EngineOverloaded("it restarts"))
    warm(engine, 0)
    assert len(engine.warmed) == 1
