"""Asks an agent's engine in the name of a call: the one that the agent names, or the one to which the router sent it.

What was sent is counted at its target until it ends here. Limits are kept around the asking alone; a call that they
hold up for longer than a moment goes back, so that the router may send it elsewhere, and its place is free meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from mosaic_queues.errors import EngineGone, EngineRefused, ServerError
from mosaic_routing.guards import GuardedCall, Limited, Need
from mosaic_routing.pool import pool
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.engines.registry import engine_for
from mosaic_tasks.execution.agents import AgentAnswer, run_agent
from mosaic_tasks.execution.outcomes import Work
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.sent import Sent, permit_of, sent_of

HELD_UP_S = 1.0
"""A call that limits hold up for longer gives its place to another."""


class Asking:
    """Asks for the calls of one run, in one epoch."""

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan, *, epoch: int) -> None:
        self._process, self._run_id, self._plan, self._epoch = process, run_id, plan, epoch

    async def ask(
        self, work: Work, agent: AgentPlan, names: Mapping[str, Any], **options: Any
    ) -> AgentAnswer:
        """The answer; see `run_agent` for the options and errors.

        Raises:
            EngineGone: the call is to be sent elsewhere.
            BudgetSpent: what it may cost is not left.
        """
        options = {
            "timeout_s": work.node.plan.timeout_s,
            "priority": self._plan.plan.priority,
            **options,
        }
        if not self._plan.is_routed(work.claim.call):
            return await run_agent(agent, names, **options)
        sent = await asyncio.to_thread(sent_of, self._process, self._run_id, self._epoch, work.claim.call)
        if sent is None or not sent.engine:
            raise EngineGone("nobody has said yet who answers it")
        asked = msgspec.structs.replace(
            agent, model=sent.engine, max_tokens=sent.max_tokens or agent.max_tokens
        )
        try:
            return await self._ask_sent(work, asked, names, sent, options)
        finally:
            await asyncio.shield(asyncio.to_thread(self._release, work.claim.call))

    async def _ask_sent(
        self, work: Work, agent: AgentPlan, names: Mapping[str, Any], sent: Sent, options: Mapping[str, Any]
    ) -> AgentAnswer:
        try:
            engine_for(sent.engine)
        except EngineRefused as error:  # another worker hosts it: the call was moved, or taken from its queue
            raise EngineGone(str(error)) from None
        permit = f"{permit_of(self._run_id, work.claim.call)}#{work.claim.fence}"
        try:
            async with self._process.guards.admit(
                self._need(sent), wait_s=HELD_UP_S, permit=permit
            ) as admitted:
                try:
                    answer = await run_agent(agent, names, **options)
                except EngineGone:
                    admitted.ended("none")  # its worker tells of that, and others of the deployment may live
                    raise
                cost = self._cost(sent, answer)
                admitted.used(tokens=answer.usage.input_tokens + answer.usage.output_tokens, dollars=cost)
        except Limited as error:
            raise EngineGone(str(error)) from None
        self._learn(work, sent, answer)
        usage = msgspec.structs.replace(answer.usage, cost_usd=cost)
        return msgspec.structs.replace(answer, usage=usage)

    def _need(self, sent: Sent) -> Need:
        plan = self._plan.plan
        return pool().limits.need(
            GuardedCall(
                deployment=sent.deployment,
                model=sent.model,
                tenant=plan.tenant,
                run=self._run_id,
                tokens=int(sent.input_tokens + sent.output_tokens),
                dollars=sent.cost(sent.input_tokens, sent.output_tokens),
                run_dollars=plan.budget_usd,
            )
        )

    def _cost(self, sent: Sent, answer: AgentAnswer) -> float:
        """What the provider said, or what the pool says."""
        used = answer.usage
        return used.cost_usd or sent.cost(used.input_tokens, used.output_tokens)

    def _learn(self, work: Work, sent: Sent, answer: AgentAnswer) -> None:
        self._process.learning.observe(
            self._plan.learned_name(work.node.number),
            sent.model,
            chars=sent.chars,
            input_tokens=answer.usage.input_tokens,
            output_tokens=answer.usage.output_tokens,
        )

    def _release(self, call: str) -> None:
        """The call is no load of its target any more. Should the server be away, that lapses by itself."""
        with suppress(ServerError):
            self._process.guards.release(permit_of(self._run_id, call))


__all__ = ["Asking"]
