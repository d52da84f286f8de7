"""A mixture compiled: its experts, its verifier and its aggregator become nodes whose calls the mixture makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from mosaic_queues.errors import ConfigurationError
from mosaic_routing.pool import pool
from mosaic_routing.queues import POOL
from mosaic_tasks.definition.mixtures import ExpertSpec, JudgeSpec, MixtureSpec, fitted, named
from mosaic_tasks.definition.parts import AgentSpec
from mosaic_tasks.definition.plan import ITEM, AgentPlan, Edge, NodePlan, Ref
from mosaic_tasks.definition.templates import names_in
from mosaic_tasks.mixtures.mixture import ASKED_NAMES, QUOTING_NAMES, Expert, Limits, Mixture
from mosaic_tasks.mixtures.values import AnswerForm, Gate, Profile, Rules

AgentPlans = Callable[[AgentSpec, dict[str, Any] | None], AgentPlan]
"""An agent's plan from what is said of it and the schema of its answer."""
Queues = Callable[[AgentPlan], str]
USUAL_INPUT, USUAL_OUTPUT = 400, 250
"""Tokens that a question and an answer are taken to have until their lengths are known."""
UNMEASURED = 0.7
"""Quality of a model that nobody measured."""
AGGREGATING = 0.9
"""The same of one that is trusted to aggregate."""
ASK = "{% if ask %}\n\n{{ ask }}{% endif %}"
"""Behind a prompt that does not say itself where it wants what the mixture adds."""
SUPPORT = {
    "type": "object",
    "properties": {"support": {"type": "number", "minimum": 0, "maximum": 1}, "why": {"type": "string"}},
    "required": ["support"],
}
"""What a verifier answers."""


class Parts(NamedTuple):
    """What a mixture is compiled from.

    Attributes:
        node: its own node, with everything but the mixture.
        number: of that.
        first: the number of the first node that is added.
    """

    spec: MixtureSpec
    node: NodePlan
    number: int
    first: int
    schema: dict[str, Any] | None
    agents: AgentPlans
    queues: Queues


def mixed(parts: Parts) -> tuple[NodePlan, list[NodePlan]]:
    """The node of a mixture, and those that it asks."""
    spec, name = parts.spec, parts.node.name
    specs = experts_of(spec)
    asked = [
        _asked(parts, f"{name}.{e.name}", _expert_agent(spec, e), parts.schema, queue=e.queue) for e in specs
    ]
    synthesizer = verifier = None
    if spec.verifier is not None:
        verifier = parts.first + len(asked)
        asked.append(_asked(parts, f"{name}.verifier", _judge_agent(spec, spec.verifier), SUPPORT))
    if spec.aggregator.model is not None or spec.aggregator.requires is not None:
        synthesizer = parts.first + len(asked)
        asked.append(_asked(parts, f"{name}.aggregator", _judge_agent(spec, spec.aggregator), parts.schema))
    numbers = range(parts.first, parts.first + len(asked))
    mixture = _mixture(spec, specs, parts.first, synthesizer, verifier)
    node = msgspec.structs.replace(
        parts.node,
        mixture=mixture,
        deps=(*parts.node.deps, *numbers),
        edges=(*parts.node.edges, *(Edge(number, "answers", ((),)) for number in numbers)),
    )
    return node, asked


def experts_of(spec: MixtureSpec) -> list[ExpertSpec]:
    """The experts, named; those of a selection are models of the pool, the best first.

    Raises:
        ConfigurationError: the pool has none.
    """
    chosen = spec.select
    if chosen is None:
        return spec.named()
    found = pool().capable(chosen.capability, min_quality=chosen.quality)
    models = [model for model in found if not chosen.among or model in chosen.among]
    if not models:
        known = ", ".join(pool().capabilities) or "none"
        raise ConfigurationError(
            f"no model of the pool was measured in {chosen.capability!r}"
            + (f" with {chosen.quality:g} or more" if chosen.quality else "")
            + f"; the capabilities are: {known}"
        )
    return named([ExpertSpec(model=f"{POOL}:{model}") for model in models])


def _expert_agent(spec: MixtureSpec, expert: ExpertSpec) -> AgentSpec:
    system = expert.system if expert.system is not None else spec.system
    if expert.role and "role" not in names_in(system):
        system = f"{system}\n\nYou are {{{{ role }}}}.".strip()
    return AgentSpec(
        prompt=_with_ask(expert.prompt or spec.prompt or ""),
        system=system,
        model=expert.model,
        requires=expert.requires,
        temperature=_first(expert.temperature, spec.temperature),
        top_p=expert.top_p,
        max_tokens=_first(expert.max_tokens, spec.max_tokens),
        seed=expert.seed,
        adapter=expert.adapter,
    )


def _judge_agent(spec: MixtureSpec, judge: JudgeSpec) -> AgentSpec:
    prompts = (judge.prompt, spec.prompt, *(expert.prompt for expert in spec.experts))
    return AgentSpec(
        prompt=_with_ask(_first(*prompts)),
        system=judge.system,
        model=judge.model,
        requires=judge.requires,
        temperature=judge.temperature,
        max_tokens=judge.max_tokens,
    )


def _with_ask(prompt: str) -> str:
    """A prompt that says nowhere what it wants of the answers has it said behind."""
    return prompt if names_in(prompt) & {"ask", "answers", "open_points"} else prompt.rstrip() + ASK


def _asked(
    parts: Parts, name: str, agent: AgentSpec, schema: dict[str, Any] | None, *, queue: str | None = None
) -> NodePlan:
    plan = msgspec.structs.replace(parts.agents(agent, schema), logprobs=schema is not SUPPORT)
    node = parts.node
    return NodePlan(
        name=name,
        kind="agent",
        queue=queue or parts.queues(plan),
        bindings=node.bindings,
        deps=node.deps,
        names={**node.names, **{asked: Ref(ITEM, (asked,)) for asked in _told(agent)}},
        retry=node.retry,
        timeout_s=node.timeout_s,
        agent=plan,
        tags=node.tags,
        concurrent=True,
        edges=node.edges,
        asked_by=parts.number,
    )


def _told(agent: AgentSpec) -> list[str]:
    """What its calls are told by the mixture."""
    read = names_in(agent.prompt) | names_in(agent.system)
    return [name for name in ASKED_NAMES if name in read or name not in QUOTING_NAMES]


def _mixture(
    spec: MixtureSpec,
    experts: Sequence[ExpertSpec],
    first: int,
    synthesizer: int | None,
    verifier: int | None,
) -> Mixture:
    gate, answer = spec.gate, spec.answer
    return Mixture(
        experts=tuple(_expert(spec, each, first + place) for place, each in enumerate(experts)),
        form=AnswerForm(*(getattr(answer, name) for name in AnswerForm.__struct_fields__)),
        rules=Rules(spec.rules.pattern, spec.rules.entities, spec.rules.refusals),
        gate=Gate(gate.kind, gate.confidence, gate.window, gate.margin, gate.quorum, gate.worth, gate.second),
        waves=spec.waves,
        min_experts=spec.min_experts,
        rounds=spec.last_round,
        aggregator=spec.aggregator.kind,
        synthesizer=synthesizer,
        verifier=verifier,
        limits=Limits(spec.budget.usd, spec.budget.tokens, spec.deadline),
        whole=spec.is_whole,
        details=spec.details,
        capability=_capability(spec),
        most=spec.most_asked,
        explores=spec.select is not None,
        enough=spec.enough,
        aggregating=_profile(spec, "aggregator", spec.aggregator.model, unmeasured=AGGREGATING),
        diversity=spec.diversity,
        quoted_tokens=spec.quoted_tokens,
        calibration=fitted(spec.calibration) if spec.calibration is not None else None,
    )


def _expert(spec: MixtureSpec, expert: ExpertSpec, number: int) -> Expert:
    samples = expert.samples or spec.samples
    profile = msgspec.structs.replace(_profile(spec, expert.name, expert.model), offers=expert.offers)
    return Expert(expert.name, number, profile, expert.role, samples, expert.layer)


def _capability(spec: MixtureSpec) -> str:
    return spec.capability or (spec.select.capability if spec.select is not None else "")


def _profile(spec: MixtureSpec, called: str, model: str | None, *, unmeasured: float = UNMEASURED) -> Profile:
    """What the pool tells of a model; of one that is in no pool nothing is known."""
    scheme, _, name = (model or "").partition(":")
    known = pool().models.get(name) if scheme == POOL else None
    if known is None:
        return Profile(called, model=model or "", quality=unmeasured)
    measured = known.capabilities
    mean = sum(measured.values()) / len(measured) if measured else unmeasured
    quality = measured.get(_capability(spec)) or mean
    price = known.price
    usd = (USUAL_INPUT * price.input + USUAL_OUTPUT * price.output) / 1e6 if price is not None else 0.0
    return Profile(
        called,
        model=name,
        quality=quality,
        usd=usd,
        tokens=USUAL_INPUT + USUAL_OUTPUT,
        context_tokens=known.context_tokens,
    )


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def prompts_of(spec: MixtureSpec) -> Iterable[tuple[str, tuple[str | int, ...]]]:
    """The templates of a mixture, each with its place in it."""
    for field in ("prompt", "system"):
        if text := getattr(spec, field):
            yield text, (field,)
    for place, expert in enumerate(spec.experts):
        for field in ("prompt", "system"):
            if text := getattr(expert, field):
                yield text, ("experts", place, field)
    for part in ("aggregator", "verifier"):
        for field in ("prompt", "system"):
            if text := getattr(getattr(spec, part), field, None):
                yield text, (part, field)


__all__ = ["Parts", "experts_of", "mixed", "prompts_of"]
