"""Asks an agent's engine in the name of a call: the one that the agent names, or the one to which the router sent it.

What was sent is counted at its target until it ends here, also where it ends without asking. Limits are kept around
the asking alone; a call that they hold up for longer than a moment goes back, so that the router may send it elsewhere,
and its place is free meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec
import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import EngineError, EngineGone, EngineRefused, MosaicError, ServerError
from mosaic_queues.transitions import route_of
from mosaic_routing.guards import GuardedCall, Limited, Need, Permit
from mosaic_routing.pool import pool
from mosaic_routing.serving import deployment_of
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.engines.protocol import Usage
from mosaic_tasks.engines.registry import engine_for
from mosaic_tasks.execution.agents import AgentAnswer, run_agent
from mosaic_tasks.execution.fleets import count_at
from mosaic_tasks.execution.hedged import first_answer
from mosaic_tasks.execution.outcomes import Work
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.sent import Sent, permit_of

log = structlog.get_logger(__name__)

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
        sent = await asyncio.to_thread(self._sent_here, work.claim.call)
        if sent is None or not sent.engine:
            raise EngineGone("nobody has said yet who answers it")
        options["priority"] = sent.level
        first = self._ask_sent(work, agent, names, sent, options)
        if not sent.is_provider or options.get("on_delta") or self._process.places is None:
            return await first
        second = partial(self._second, work, agent, names, sent, options)
        return await first_answer(first, second, after_s=sent.straggles_after_s)

    @asynccontextmanager
    async def counted(self, call: str) -> AsyncIterator[None]:
        """Around the whole work of a call, which may ask several times: then it is no load of its target any more."""
        try:
            yield
        finally:
            if self._plan.is_routed(call):
                await asyncio.shield(asyncio.to_thread(self.release, call))

    def sent(self, call: str) -> Sent | None:
        """Where a call was sent that this process claimed; None: that is not recorded."""
        raw = self._process.value(self._run_id, self._epoch, route_of(call))
        if raw is None:
            (raw,) = self._process.ledger.outputs(self._run_id, [route_of(call)])
        return None if raw is None else msgspec.msgpack.decode(raw, type=Sent)

    def _sent_here(self, call: str) -> Sent | None:
        sent = self.sent(call)
        if sent is not None:
            self.take_over(call, sent)
        return sent

    def take_over(self, call: str, sent: Sent) -> None:
        """A call that this worker took from the queue of another is its own load from now on."""
        facts = self._process.facts
        here = f"{deployment_of(facts.queues, sent.model) or sent.deployment}@{facts.hostname}"
        if not sent.is_provider and sent.decision.target != here:
            with suppress(ServerError):
                count_at(here, self._process.guards, permit_of(self._run_id, call), sent.decision)

    async def _second(
        self,
        work: Work,
        agent: AgentPlan,
        names: Mapping[str, Any],
        sent: Sent,
        options: Mapping[str, Any],
        elapsed_s: float,
    ) -> Coroutine[Any, Any, AgentAnswer] | None:
        """The same at another provider, where that is worth it."""
        places, call = self._process.places, work.claim.call
        assert places is not None
        try:
            other = await asyncio.to_thread(places.elsewhere, self._run_id, self._plan, call, sent, elapsed_s)
        except (RedisError, MosaicError) as error:  # the first one may still answer
            log.info(
                "call.not_hedged",
                what="whom else to ask cannot be said now",
                run=self._run_id,
                call=call,
                error=str(error),
            )
            return None
        if other is None:
            return None
        log.info(
            "call.hedged",
            what="an answer takes long, another provider is asked too",
            run=self._run_id,
            call=call,
            target=other.decision.target,
            after_s=round(elapsed_s, 3),
        )
        return self._ask_sent(work, agent, names, other, options)

    async def _ask_sent(
        self, work: Work, agent: AgentPlan, names: Mapping[str, Any], sent: Sent, options: Mapping[str, Any]
    ) -> AgentAnswer:
        agent = msgspec.structs.replace(
            agent, model=sent.engine, max_tokens=sent.max_tokens or agent.max_tokens
        )
        try:
            engine_for(sent.engine)
        except EngineRefused as error:  # another worker hosts it: the call was moved, or taken from its queue
            raise EngineGone(str(error)) from None
        permit = f"{permit_of(self._run_id, work.claim.call)}#{work.claim.fence}@{sent.decision.target}"
        try:
            async with self._process.guards.admit(
                self._need(sent), wait_s=HELD_UP_S, permit=permit, priority=sent.level
            ) as admitted:
                try:
                    answer = await run_agent(agent, names, **options)
                except EngineError as error:
                    if isinstance(error, EngineGone):
                        admitted.ended(
                            "none"
                        )  # its worker tells of that, and others of the deployment may live
                    if isinstance(error.usage, Usage):
                        error.usage = _charged(admitted, sent, error.usage)
                    raise
                usage = _charged(admitted, sent, answer.usage)
        except Limited as error:
            if self._process.places is not None:
                self._process.places.held_up(self._run_id, work.claim.call, sent, error)
            raise EngineGone(str(error)) from None
        self._learn(work, sent, answer)
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

    def _learn(self, work: Work, sent: Sent, answer: AgentAnswer) -> None:
        self._process.learning.observe(
            self._plan.learned_name(work.node.number),
            sent.model,
            chars=sent.chars,
            input_tokens=answer.usage.input_tokens,
            output_tokens=answer.usage.output_tokens,
        )

    def release(self, call: str) -> None:
        """The call is no load of its target any more. Should the server be away, that lapses by itself."""
        if self._plan.is_routed(call) and self._plan.asks(call):
            with suppress(ServerError):
                self._process.guards.release(permit_of(self._run_id, call))


def _charged(permit: Permit, sent: Sent, used: Usage) -> Usage:
    """Has a call pay for what it used, also where nothing came of it; the price is what the provider said, or the pool
    says."""
    cost = used.cost_usd or sent.cost(used.input_tokens, used.output_tokens)
    permit.used(tokens=used.input_tokens + used.output_tokens, dollars=cost)
    return msgspec.structs.replace(used, cost_usd=cost)


__all__ = ["Asking"]
