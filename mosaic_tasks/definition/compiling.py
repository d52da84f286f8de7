"""A workflow into the plan that workers read."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from mosaic_routing.queues import POOL, ROUTED, queue_for
from mosaic_routing.requirements import Requirement
from mosaic_tasks.definition.collector import collector_paused
from mosaic_tasks.definition.edges import batch_of
from mosaic_tasks.definition.grammar import Defaults, FailureRule, Node, RetryRule
from mosaic_tasks.definition.mixing import Parts, mixed
from mosaic_tasks.definition.parts import AgentSpec
from mosaic_tasks.definition.plan import AgentPlan, NodePlan, Plan, Retry, link
from mosaic_tasks.definition.tools import ToolOptions
from mosaic_tasks.definition.validation import Facts
from mosaic_tasks.definition.workflow import Workflow

_NO_OPTIONS = ToolOptions()
_FAIL = FailureRule.model_validate("fail")
_ONCE = Retry()


def compile_workflow(
    workflow: Workflow, *, default_model: str | None = None, import_tools: bool = True
) -> Plan:
    """The plan of a workflow; made once for each workflow object.

    What a node does not say is taken from its tool's decorator, then from the workflow's `defaults`.

    Args:
        workflow: the workflow, checked here.
        default_model: model of the agents for which the workflow names none; decides their queue too.
        import_tools: False: tools are not imported here; arguments, types and decorators stay unseen.

    Raises:
        DefinitionError: with all problems of the workflow.
    """
    key = (default_model, import_tools)
    plan = workflow._plans.get(key)
    if plan is None:
        with collector_paused():
            plan = workflow._plans[key] = _compiled(workflow, default_model, import_tools)
    return plan


def _compiled(workflow: Workflow, default_model: str | None, import_tools: bool) -> Plan:
    analysis = workflow.analysed(import_tools=import_tools)
    defaults = workflow.defaults
    model = defaults.model or default_model
    nodes = [
        _node_plan(name, node, facts, defaults, model)
        for (name, node), facts in zip(workflow.nodes.items(), analysis.facts, strict=True)
    ]
    output = list(workflow.nodes).index(workflow.output)
    for number, (node, facts) in enumerate(zip(workflow.nodes.values(), analysis.facts, strict=True)):
        if node.mixture is not None:
            parts = Parts(
                node.mixture,
                nodes[number],
                number=number,
                first=len(nodes),
                schema=facts.agent_schema,
                agents=partial(_agent_plan, model=model),
                queues=partial(_queue, node.model_copy(update={"queue": None}), _NO_OPTIONS, defaults),
            )
            nodes[number], asked = mixed(parts)
            nodes += asked
    linked = link(workflow.name, nodes, output=output, inputs_schema=workflow.inputs_schema)
    return msgspec.structs.replace(
        linked, objective=workflow.objective, deadline_s=workflow.deadline, budget_usd=workflow.budget
    )


def _node_plan(name: str, node: Node, facts: Facts, defaults: Defaults, model: str | None) -> NodePlan:
    options = facts.spec.options if facts.spec is not None else _NO_OPTIONS
    failure = node.on_failure or defaults.on_failure or _FAIL
    agent = _agent_plan(node.agent, facts.agent_schema, model) if node.agent is not None else None
    return NodePlan(
        name=name,
        kind=node.kind,
        queue=_queue(node, options, defaults, agent),
        target=node.tool or node.task or "",
        bindings=facts.bindings,
        deps=facts.deps,
        for_each=facts.for_each,
        when=node.when,
        names=facts.names,
        retry=_retry(node.retry or options.retry or defaults.retry),
        timeout_s=_first(node.timeout, options.timeout_s, defaults.timeout),
        on_failure=failure.action,
        default=failure.default,
        agent=agent,
        tags=node.tags,
        concurrent=agent is not None or (facts.spec is not None and facts.spec.is_async),
        edges=tuple(facts.edges[source] for source in sorted(facts.edges)),
        batch=batch_of(node),
        publishes=facts.publishes,
    )


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _queue(node: Node, options: ToolOptions, defaults: Defaults, agent: AgentPlan | None) -> str:
    if agent is not None and agent.requires is not None:
        return node.queue or ROUTED
    named = node.queue or options.queue or defaults.queue
    return named or queue_for("agent" if agent is not None else "tool", agent.model if agent else None)


def _retry(rule: RetryRule | None) -> Retry:
    return _ONCE if rule is None else Retry(rule.attempts, rule.delay, rule.factor, rule.max_delay)


def _agent_plan(agent: AgentSpec, schema: dict[str, Any] | None, model: str | None) -> AgentPlan:
    return AgentPlan(
        prompt=agent.prompt,
        system=agent.system,
        model=agent.model or model,
        output_schema=schema,
        temperature=agent.temperature,
        top_p=agent.top_p,
        max_tokens=agent.max_tokens,
        seed=agent.seed,
        stop=agent.stop,
        adapter=agent.adapter,
        requires=_requirement(agent, agent.model or model),
    )


def _requirement(agent: AgentSpec, model: str | None) -> Requirement | None:
    """What the router goes by; None: the agent says itself which engine it asks."""
    engine, _, name = (model or "").partition(":")
    if agent.requires is None and engine != POOL:
        return None
    wanted = agent.requires or Requirement()
    return msgspec.structs.replace(wanted, model=name) if engine == POOL and name else wanted


__all__ = ["compile_workflow"]
