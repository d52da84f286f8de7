"""What calls will ask, as far as it can be told before they run: what the router decides by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mosaic_queues.errors import MosaicError
from mosaic_routing.affinity import fingerprints
from mosaic_routing.lengths import Length
from mosaic_routing.requirements import Requirement
from mosaic_routing.targets import Ask
from mosaic_tasks.execution.agents import question
from mosaic_tasks.execution.inputs import Inputs, SkippedError
from mosaic_tasks.execution.prepared import CallId, PreparedNode, PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.sent import permit_of, sent_of


class Expected(NamedTuple):
    """What a call will ask.

    Attributes:
        chars: of its prompt; 0: that is not known.
        length: of its answer.
        max_tokens: of its answer, as its agent says; None: no limit.
    """

    requirement: Requirement
    ask: Ask
    chars: int
    length: Length
    max_tokens: int | None


class Expectations:
    """Of calls of one run; each value that they share is read and decoded once."""

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan) -> None:
        self._process, self._run_id, self._plan = process, run_id, plan
        self._inputs = Inputs(process, run_id, plan, epoch=0)

    def of(self, call: str) -> Expected:
        """What this call will ask."""
        node = self._plan.node(CallId(call).node)
        agent = node.plan.agent
        requirement = (agent.requires if agent is not None else None) or Requirement()
        max_tokens = agent.max_tokens if agent is not None else None
        text = self._text(node, call)
        learning, name = self._process.learning, self._plan.learned_name(node.number)
        prompt_tokens = learning.prompt_tokens(name, chars=len(text))
        length = learning.answer(name, requirement.model, input_tokens=prompt_tokens)
        tokens = (prompt_tokens, min(length.mean, max_tokens or math.inf))
        ask = self._ask(call, requirement, text, tokens if self._plan.asks(call) else (0.0, 0.0))
        return Expected(requirement, ask, len(text), length, max_tokens)

    def _ask(self, call: str, requirement: Requirement, text: str, tokens: tuple[float, float]) -> Ask:
        """`tokens`: of its prompt and of its answer."""
        return Ask(
            call=permit_of(self._run_id, call),
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            prefix=fingerprints(text, block_chars=self._process.settings.prefix_chars),
            objective=self._plan.plan.objective,
            latency_s=requirement.latency_s or math.inf,
            near=self._machines(requirement.near),
        )

    def _machines(self, near: Sequence[str]) -> tuple[str, ...]:
        """Where the calls of these nodes went."""
        numbers = [number for number, node in enumerate(self._plan.plan.nodes) if node.name in near]
        found = sent_of(self._process.ledger, self._run_id, [str(number) for number in numbers])
        return tuple(dict.fromkeys(sent.machine for sent in found if sent is not None and sent.machine))

    def _text(self, node: PreparedNode, call: str) -> str:
        """The prompt; empty where it cannot be known yet, or cannot be formed, of which the call itself will tell."""
        named, agent, inputs = CallId(call), node.plan.agent, self._inputs
        if agent is None or named.reads or not self._plan.asks(call):
            return ""
        try:
            inputs.load(node.required + node.optional)
            early = inputs.early(node)
            item = None if named.item is None else inputs.item(named.own, node, named.item, early)
            _, names = inputs.given(node, item, early)
            return "\n".join(message.content for message in question(agent, names))
        except (MosaicError, SkippedError):
            return ""


__all__ = ["Expectations", "Expected"]
