"""Asks an agent's engine in the name of a call: the one that the agent names, or the one to which the router sent it.

What was sent is counted at its target until it ends here, also where it ends without asking. Limits are kept around
the asking alone; a call that they hold up for longer than a moment goes back, so that the router may send it elsewhere,
and its place is free meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import structlog

from mosaic_queues.errors import CallTimeout, EngineError, EngineGone, EngineRefused, ServerError
from mosaic_queues.transitions import Claim, route_of
from mosaic_routing.guards import GuardedCall, Limited, Need, Permit
from mosaic_routing.pool import pool
from mosaic_routing.serving import deployment_of
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.engines.protocol import CHARS_PER_TOKEN, Usage, approx_tokens
from mosaic_tasks.engines.registry import configured, engine_for
from mosaic_tasks.execution.agents import AgentAnswer, question, run_agent
from mosaic_tasks.execution.outcomes import Work
from mosaic_tasks.execution.placing.fleets import count_at
from mosaic_tasks.execution.placing.hedged import watched
from mosaic_tasks.execution.placing.told_limits import telling_limits
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.sent import Sent, Straggler, lease_of, permit_of
from mosaic_tasks.observability import figures

log = structlog.get_logger(__name__)

HELD_UP_S = 1.0
"""A call that limits hold up for longer gives its place to another."""


class Asking:
    """Asks for the calls of one run, in one epoch."""

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan, *, epoch: int) -> None:
        self._process, self._run_id, self._plan, self._epoch = process, run_id, plan, epoch
        self._broken_off: dict[Claim, tuple[str, Usage]] = {}

    def spent(self, claim: Claim) -> tuple[str, Usage] | None:
        """What a call that was broken off has used of which engine, as far as is known; told once."""
        return self._broken_off.pop(claim, None)

    async def ask(
        self, work: Work, agent: AgentPlan, names: Mapping[str, Any], **options: Any
    ) -> AgentAnswer:
        """The answer; see `run_agent` for the options and errors.

        Raises:
            EngineGone: the call is to be sent elsewhere; of a shadow, it is of no use.
            BudgetSpent: what it may cost is not left.
        """
        options = {
            "timeout_s": work.node.plan.timeout_s,
            "priority": self._plan.plan.priority,
            **options,
        }
        if not self._plan.is_routed(work.claim.call):
            return await self._ask_named(work, agent, names, options)
        sent = await asyncio.to_thread(self._sent_here, work.claim)
        if sent is None or not sent.engine:
            raise EngineGone("nobody has said yet who answers it")
        options["priority"] = sent.level
        heard = Heard(options.get("on_delta"))
        answer = self._ask_sent(work, agent, names, sent, heard, options)
        if self._process.places is None or work.call.is_shadow or work.call.reads:
            return await answer
        self._process.places.begins()

        def look(elapsed_s: float) -> Awaitable[bool]:
            return asyncio.to_thread(self._hedge, work, sent, heard, elapsed_s)

        return await watched(answer, look, after_s=sent.straggles_after_s)

    @asynccontextmanager
    async def counted(self, claim: Claim) -> AsyncIterator[None]:
        """Around the whole work of a call, which may ask several times: then it is no load of its target any more."""
        try:
            yield
        finally:
            if self._plan.is_routed(claim.call):
                await asyncio.shield(asyncio.to_thread(self.release, claim))

    def sent(self, call: str) -> Sent | None:
        """Where a call was sent that this process claimed; None: that is not recorded."""
        raw = self._process.value(self._run_id, self._epoch, route_of(call))
        if raw is None:
            (raw,) = self._process.ledger.outputs(self._run_id, [route_of(call)])
        return None if raw is None else msgspec.msgpack.decode(raw, type=Sent)

    def _sent_here(self, claim: Claim) -> Sent | None:
        sent = self.sent(claim.call)
        return None if sent is None else self.take_over(claim, sent)

    def take_over(self, claim: Claim, sent: Sent) -> Sent:
        """A call that this worker took from the queue of another is its own load from now on, and passes the limits, at
        the price, of what answers here."""
        facts = self._process.facts
        if sent.hedges.endswith(f"@{facts.hostname}"):
            raise EngineGone("the call itself runs in this worker, asking here a second time is of no use")
        deployment = deployment_of(facts.queues, sent.model) or sent.deployment
        here = f"{deployment}@{facts.hostname}"
        if sent.is_provider or sent.decision.target == here:
            return sent
        with suppress(ServerError):
            count_at(
                here,
                self._process.guards,
                self._run_id,
                claim.call,
                fence=claim.fence,
                decision=sent.decision,
            )
        price = next((each.price for each in pool().deployments if each.name == deployment), None)
        return sent.taken_to(here, deployment, price=price)

    def _hedge(self, work: Work, sent: Sent, heard: Heard, elapsed_s: float) -> bool:
        """Has a call that takes long asked a second time elsewhere. False: it is not worth that now."""
        places, call = self._process.places, work.claim.call
        assert places is not None
        straggler = Straggler(work.claim, work.holder, sent, elapsed_s, heard.tokens / elapsed_s)
        try:
            target = places.hedge(self._run_id, self._plan, straggler)
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer may still come
            log.warning(
                "call.not_hedged",
                what="where else to ask cannot be said now",
                run=self._run_id,
                call=call,
                error=str(error),
            )
            return False
        if target:
            self._process.observer.tallies.add(figures.HEDGES)
            log.info(
                "call.hedged",
                what="an answer takes long, another target is asked too",
                run=self._run_id,
                call=call,
                target=target,
                after_s=round(elapsed_s, 3),
            )
        return bool(target)

    async def _ask_named(
        self, work: Work, agent: AgentPlan, names: Mapping[str, Any], options: Mapping[str, Any]
    ) -> AgentAnswer:
        """Asks the engine that the agent names."""
        heard = Heard(options.get("on_delta"))
        try:
            return await run_agent(agent, names, **{**options, "on_delta": heard.hear})
        except (asyncio.CancelledError, CallTimeout):
            read = sum(approx_tokens(message.content) for message in question(agent, names))
            self._broken_off[work.claim] = configured(agent.model), Usage(read, heard.tokens, estimated=True)
            raise

    async def _ask_sent(
        self,
        work: Work,
        agent: AgentPlan,
        names: Mapping[str, Any],
        sent: Sent,
        heard: Heard,
        options: Mapping[str, Any],
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
                    began_s = time.monotonic()
                    async with telling_limits(self._process.guards, admitted):
                        answer = await run_agent(agent, names, **{**options, "on_delta": heard.hear})
                    self._process.learning.observe_service(sent.deployment, time.monotonic() - began_s)
                except EngineError as error:
                    if isinstance(error, EngineGone):
                        admitted.ended(
                            "none"
                        )  # its worker tells of that, and others of the deployment may live
                    if isinstance(error.usage, Usage):
                        error.usage = _charged(admitted, sent, error.usage)
                    raise
                except (asyncio.CancelledError, CallTimeout):
                    self._broken_off[work.claim] = sent.engine, _charged(admitted, sent, heard.usage(sent))
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

    def release(self, claim: Claim) -> None:
        """The call is no load of its target any more. Should the server be away, that lapses by itself."""
        if self._plan.is_routed(claim.call) and self._plan.asks(claim.call):
            with suppress(ServerError):
                self._process.guards.release(lease_of(self._run_id, claim.call, claim.fence))


class Heard:
    """Hears an answer as it comes: of one that is broken off, nobody tells what it used."""

    def __init__(self, on_delta: Callable[[str], None] | None) -> None:
        self._on_delta, self._chars = on_delta, 0

    def hear(self, piece: str) -> None:
        """The answer goes on."""
        self._chars += len(piece)
        if self._on_delta is not None:
            self._on_delta(piece)

    @property
    def tokens(self) -> int:
        """So many were heard, about."""
        return -(-self._chars // CHARS_PER_TOKEN)

    def usage(self, sent: Sent) -> Usage:
        """Its prompt, as predicted, and what was heard."""
        return Usage(round(sent.input_tokens), self.tokens, estimated=True)


def _charged(permit: Permit, sent: Sent, used: Usage) -> Usage:
    """Has a call pay for what it used, also where nothing came of it; the price is what the provider said, or the pool
    says."""
    cost = used.cost_usd or sent.cost(used.input_tokens, used.output_tokens)
    permit.used(tokens=used.input_tokens + used.output_tokens, dollars=cost)
    return msgspec.structs.replace(used, cost_usd=cost)


__all__ = ["Asking", "Heard"]
