"""Sends calls that the router is to place: renders what they will ask, decides where they go, and records that.

A call of a node in the queue `mosaic.routed` is nobody's until it is recorded where it goes. If this process dies
before, the sweeper finds it there; if it dies between that and publishing, the sweeper finds no message and sends it
again, to wherever is best by then. A decision looks into no queue: what targets have before them is counted in the
server, as calls are sent and as they end.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, get_args

import msgspec
import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import ConfigurationError, MosaicError
from mosaic_queues.events import read_events
from mosaic_queues.transitions import Group, LiveCall, Route, is_shadow, route_of, shadow_of
from mosaic_routing.affinity import Memory, fingerprints
from mosaic_routing.gates import LONGEST_S, predicted_s, room, turn_s
from mosaic_routing.guards import Limited, Query
from mosaic_routing.guards.budgets import MICROS
from mosaic_routing.hedging import Hedges, hedge_after_s, is_worth_hedging
from mosaic_routing.lengths import Length
from mosaic_routing.queues import ROUTED, hosting_queues
from mosaic_routing.requirements import Requirement
from mosaic_routing.router import Policy, PolicyName, route
from mosaic_routing.service import ServerService
from mosaic_routing.targets import Ask, Decision, Target
from mosaic_tasks.execution.agents import question
from mosaic_tasks.execution.fleets import Fleet, Fleets, count_at
from mosaic_tasks.execution.held_up import HeldUp
from mosaic_tasks.execution.inputs import Inputs, SkippedError
from mosaic_tasks.execution.order import Order
from mosaic_tasks.execution.prepared import CallId, PreparedNode, PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.relief import Relief
from mosaic_tasks.execution.sent import Sent, Straggler, lease_of, permit_of
from mosaic_tasks.execution.turns import Turns

log = structlog.get_logger(__name__)

NOWHERE_S, NOWHERE_MOST_S = 0.5, 5.0
"""A call that nothing can take now is looked at again within these."""


class _Run(NamedTuple):
    """What the calls of a run share that are placed together.

    Attributes:
        inputs: each value is read and decoded once for all of them.
        budget: US dollars that the run may still cost.
        deadline_s: until the run's.
    """

    id: str
    plan: PreparedPlan
    inputs: Inputs
    budget: float = math.inf
    deadline_s: float = math.inf


class Dispatcher:
    """Places the calls of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._memory = Memory()
        self._policy = policy_of(process.settings.routing_policy)
        self._lock = threading.Lock()
        self._fleet: Fleet | None = None
        self._hedges = Hedges()
        self._relief = Relief()
        self._held_up = HeldUp()

    @cached_property
    def _fleets(self) -> Fleets:
        return Fleets(self._process.client, self._process.ledger.keys, self._process.guards)

    @cached_property
    def _turns(self) -> Turns:
        return Turns(self._process, self._fleets)

    @cached_property
    def _order(self) -> Order:
        return Order(ServerService(self._process.client, self._process.ledger.keys))

    def dispatch(self, run_id: str, plan: PreparedPlan, calls: Sequence[str]) -> dict[int, list[Group]]:
        """Decides and records where calls go. Returns those to be published, by the priority of their messages; the
        others wait, or somebody has them.

        Where that cannot be done now, they stay where they are, and the sweeper tries again.
        """
        try:
            return self._dispatch(run_id, plan, calls)
        except (RedisError, MosaicError) as error:
            log.warning(
                "dispatch.failed",
                what="calls are placed later",
                run=run_id,
                calls=len(calls),
                error=str(error),
            )
            return {}

    def _dispatch(self, run_id: str, plan: PreparedPlan, calls: Sequence[str]) -> dict[int, list[Group]]:
        self._process.learning.share()
        fleet = self._fleets.now()
        budget, deadline_s = self._left_of_budget(run_id, plan), self._left_s(run_id, plan)
        run = _Run(run_id, plan, Inputs(self._process, run_id, plan, epoch=0), budget, deadline_s)
        with self._lock:
            if fleet is not self._fleet:
                self._fleet = fleet
                self._memory.retain({target.name for target in fleet.targets})
            decided = {call: self._decide(run, call, fleet) for call in calls}
        placed = {call: sent for call, sent in decided.items() if sent.decision.target}
        for call, level in self._order.levels(run_id, plan, placed, deadline_s=deadline_s).items():
            decided[call] = msgspec.structs.replace(decided[call], level=level)
        routes = [self._route(call, sent, fleet) for call, sent in decided.items()]
        groups: dict[int, dict[str, list[str]]] = {}
        queues = {route.call: route.queue for route in routes}
        for call, fence in self._process.ledger.route(run_id, routes).items():
            groups.setdefault(decided[call].level, {}).setdefault(queues[call], []).append(call)
            if plan.asks(call):
                decision = decided[call].decision
                count_at(decision.target, self._process.guards, run_id, call, fence=fence, decision=decision)
        return {level: list(by_queue.items()) for level, by_queue in groups.items()}

    def begins(self) -> None:
        """A call is asked here; of so many, some may be asked a second time elsewhere."""
        with self._lock:
            self._hedges = self._hedges.with_call()

    def hedge(self, run_id: str, plan: PreparedPlan, straggler: Straggler) -> str:
        """Has a call that takes long asked a second time, where that is worth it. Returns the target; empty: not now.

        Raises:
            RedisError: the server is away.
            MosaicError: it cannot be said what the call asks.
        """
        fleet, sent, shadow = self._fleets.now(), straggler.sent, shadow_of(straggler.claim.call)
        run = _Run(run_id, plan, Inputs(self._process, run_id, plan, epoch=0))
        requirement, ask, _, length = self._asked(run, shadow)
        fit = fleet.fit(requirement)
        ask = msgspec.structs.replace(
            ask,
            targets=fit.deployments,
            excluded=_beside(fleet, sent.decision.target),
            output_tokens=length.p95,
        )
        decision = route(ask, fleet.snapshot(requirement.capability), policy=self._policy)
        if not self._is_worth(straggler, decision):
            return ""
        target = fleet.target(decision.target)
        other = self._sent(decision, target, ask, chars=sent.chars, max_tokens=sent.max_tokens)
        other = msgspec.structs.replace(
            other, level=sent.level, is_bound=target.deployment in fit.bound, hedges=sent.decision.target
        )
        self._send_shadow(run, straggler, self._route(shadow, other, fleet), other)
        return decision.target

    def _is_worth(self, straggler: Straggler, elsewhere: Decision) -> bool:
        """Whether it is asked a second time; then that is counted."""
        with self._lock:
            is_worth = is_worth_hedging(
                elapsed_s=straggler.elapsed_s,
                after_s=straggler.sent.straggles_after_s,
                elsewhere=elsewhere,
                here_tokens_s=straggler.tokens_s,
                hedges=self._hedges,
            )
            if is_worth:
                self._hedges = self._hedges.with_hedge()
            return is_worth

    def _send_shadow(self, run: _Run, straggler: Straggler, shadow: Route, sent: Sent) -> None:
        claim, decision = straggler.claim, sent.decision
        if not self._process.ledger.hedge(run.id, claim, shadow, holder=straggler.holder):
            return
        self._process.publish_placed(run.id, run.plan, {sent.level: [(shadow.queue, [shadow.call])]})
        guards = self._process.guards
        count_at(decision.target, guards, run.id, shadow.call, fence=claim.fence, decision=decision)

    def held_up(self, run_id: str, call: str, sent: Sent, error: Limited) -> None:
        """Limits did not let a call through where it was sent: it goes where it was not yet, or waits."""
        self._held_up.note(permit_of(run_id, call), sent.decision.target, error)

    def _left_of_budget(self, run_id: str, plan: PreparedPlan) -> float:
        """US dollars that the run may still cost."""
        budget = plan.plan.budget_usd
        if budget is None:
            return math.inf
        ((spent, reserved),) = self._process.guards.read(
            Query(accounts=((f"run:{run_id}", "total"),))
        ).accounts
        return budget - (spent + reserved) / MICROS

    def _left_s(self, run_id: str, plan: PreparedPlan) -> float:
        """Until the run's deadline."""
        deadline_s = plan.plan.deadline_s
        if deadline_s is None:
            return math.inf
        (standing,) = self._process.ledger.standings([run_id])
        began_ms = standing.since_ms if standing else self._process.now_ms()
        return max((began_ms - self._process.now_ms()) / 1000 + deadline_s, 0.0)

    def _decide(self, run: _Run, call: str, fleet: Fleet) -> Sent:
        requirement, ask, chars, length = self._asked(run, call)
        hedges = self._hedged(run.id, call)
        relieved = self._relief.relieved(requirement, self._most_tokens(run.plan, call), fleet.load)
        requirement = relieved.requirement
        fit = fleet.fit(requirement)
        if fit.lacks:
            return Sent(Decision(wait_s=NOWHERE_MOST_S, reasons=(fit.lacks,)), is_unserved=True)
        snapshot = fleet.snapshot(requirement.capability)
        ask = msgspec.structs.replace(
            ask,
            targets=fit.deployments,
            budget=run.budget,
            deadline_s=run.deadline_s,
            excluded=(*self._held_up.targets(ask.call), *_beside(fleet, hedges)),
            full=self._full(fleet, ask) if run.plan.asks(call) else (),
        )
        decision = route(ask, snapshot, policy=self._policy, memory=self._memory)
        decision = msgspec.structs.replace(decision, reasons=(*decision.reasons, *relieved.sentences))
        if not (decision.target or decision.wait_s or ask.excluded) and run.budget < math.inf:
            # Where nothing will be cheap enough the call is to fail, and to say so: whoever runs it does.
            ask = msgspec.structs.replace(ask, budget=math.inf)
            decision = route(ask, snapshot, policy=self._policy, memory=self._memory)
        if not decision.target:
            return self._nowhere(fleet, ask, decision)
        if not run.plan.asks(call):
            return self._sent(decision, fleet.target(decision.target), ask, chars=0, max_tokens=None)
        fleet.sent(decision)
        self._memory.note(decision.target, ask.prefix, work_tokens=decision.work_tokens)
        target = fleet.target(decision.target)
        sent = self._sent(decision, target, ask, chars=chars, max_tokens=relieved.max_tokens, p95=length.p95)
        return msgspec.structs.replace(sent, is_bound=target.deployment in fit.bound, hedges=hedges)

    def _hedged(self, run_id: str, call: str) -> str:
        """Of a shadow, where the call itself is; it came back from where it was sent, as there was no room."""
        if not is_shadow(call):
            return ""
        (raw,) = self._process.ledger.outputs(run_id, [route_of(call)])
        return msgspec.msgpack.decode(raw, type=Sent).hedges if raw is not None else ""

    def _nowhere(self, fleet: Fleet, ask: Ask, decision: Decision) -> Sent:
        """Nowhere now; of a call that limits held up for as long as they say, where targets are full until its turn."""
        stop = self._held_up.end(ask.call)
        if stop is not None:
            return Sent(Decision(wait_s=stop.left_s, reasons=(stop.reason, *decision.reasons)))
        full = tuple(name for name in ask.full if fleet.target(name).deployment in ask.targets)
        if not (full and decision.wait_s):
            return Sent(decision)
        turns_s = (turn_s(fleet.gates[name], self._service_s(fleet.target(name), ask)) for name in full)
        return Sent(msgspec.structs.replace(decision, wait_s=min(turns_s)), waits_for=full)

    def _full(self, fleet: Fleet, ask: Ask) -> tuple[str, ...]:
        """Targets that have as many calls before them as their limits let run soon."""
        return tuple(
            name
            for name, gates in fleet.gates.items()
            if not room(gates, self._service_s(fleet.target(name), ask))
        )

    def _service_s(self, target: Target, ask: Ask) -> float:
        """How long a call runs at a target: as calls of its deployment did of late, or as predicted."""
        known = self._process.learning.service_s(target.deployment)
        return predicted_s(target, ask) if known is None else known

    def early(self, delayed: Mapping[str, Sequence[LiveCall]]) -> Mapping[str, Sequence[str]]:
        """By run, calls that wait for their turn at full targets, for as many as there is room now."""
        return self._turns.early(delayed)

    def _sent(
        self,
        decision: Decision,
        target: Target,
        ask: Ask,
        *,
        chars: int,
        max_tokens: int | None,
        p95: float = math.inf,
    ) -> Sent:
        after_s = hedge_after_s(decision, target, output_tokens=ask.output_tokens, p95=p95)
        return Sent(
            decision,
            deployment=target.deployment,
            engine=target.engine,
            machine=target.machine,
            input_tokens=ask.input_tokens,
            output_tokens=ask.output_tokens,
            input_price=target.input_price,
            output_price=target.output_price,
            chars=chars,
            max_tokens=max_tokens,
            straggles_after_s=after_s,
        )

    def _most_tokens(self, plan: PreparedPlan, call: str) -> int | None:
        agent = plan.plan.nodes[CallId(call).node].agent
        return None if agent is None else agent.max_tokens

    # -- what a call will ask ------------------------------------------------------------------------------------------

    def _asked(self, run: _Run, call: str) -> tuple[Requirement, Ask, int, Length]:
        """What a call will ask, as far as it can be told before it runs; the characters of its prompt, and how long its
        answer will be."""
        plan = run.plan
        node = plan.node(CallId(call).node)
        agent = node.plan.agent
        requirement = (agent.requires if agent is not None else None) or Requirement()
        text = self._text(run, node, call)
        learning, name = self._process.learning, plan.learned_name(node.number)
        prompt_tokens = learning.prompt_tokens(name, chars=len(text))
        length = learning.answer(name, requirement.model, input_tokens=prompt_tokens)
        most = (agent.max_tokens if agent is not None else None) or math.inf
        asks = plan.asks(call)
        ask = Ask(
            call=permit_of(run.id, call),
            input_tokens=prompt_tokens if asks else 0.0,
            output_tokens=min(length.mean, most) if asks else 0.0,
            prefix=fingerprints(text, block_chars=self._process.settings.prefix_chars),
            objective=plan.plan.objective,
            latency_s=requirement.latency_s or math.inf,
            near=self._machines(run.id, plan, requirement.near),
        )
        return requirement, ask, len(text), length

    def _machines(self, run_id: str, plan: PreparedPlan, near: Sequence[str]) -> tuple[str, ...]:
        """Where the calls of these nodes went."""
        numbers = [number for number, node in enumerate(plan.plan.nodes) if node.name in near]
        found = self._process.ledger.outputs(run_id, [route_of(str(number)) for number in numbers])
        sent = [msgspec.msgpack.decode(raw, type=Sent) for raw in found if raw is not None]
        return tuple(dict.fromkeys(each.machine for each in sent if each.machine))

    def _text(self, run: _Run, node: PreparedNode, call: str) -> str:
        """The prompt; empty where it cannot be known yet, or cannot be formed, of which the call itself will tell."""
        named, agent, inputs = CallId(call), node.plan.agent, run.inputs
        if agent is None or named.reads or not run.plan.asks(call):
            return ""
        try:
            inputs.load(node.required + node.optional)
            early = inputs.early(node)
            item = None if named.item is None else inputs.item(named.own, node, named.item, early)
            _, names = inputs.given(node, item, early)
            return "\n".join(message.content for message in question(agent, names))
        except (MosaicError, SkippedError):
            return ""

    # -- what is recorded ----------------------------------------------------------------------------------------------

    def _route(self, call: str, sent: Sent, fleet: Fleet) -> Route:
        decision = sent.decision
        reason = "; ".join(decision.reasons)
        if decision.target:
            queue = _queue(fleet.target(decision.target), sent)
            return Route(call, queue, decision.target, reason, 0, sent.encode())
        most_s = LONGEST_S if sent.waits_for else NOWHERE_MOST_S
        wait_s = min(max(decision.wait_s, NOWHERE_S), most_s)
        # What is kept stays the same as long as nothing but the time changes: then nothing is told again.
        kept = msgspec.structs.replace(sent, decision=msgspec.structs.replace(decision, wait_s=0.0))
        return Route(call, ROUTED, "", reason, int(wait_s * 1000), kept.encode())


def _beside(fleet: Fleet, name: str) -> tuple[str, ...]:
    """A target, and those that the same worker or provider answers for."""
    here = fleet.find(name)
    return tuple(target.name for target in fleet.targets if here is not None and target.queue == here.queue)


def _queue(target: Target, sent: Sent) -> str:
    """That of its worker, from which others of its model take what waits; of all of its class, where only those may."""
    return hosting_queues(target.gpu_class, target.model)[-1] if sent.is_bound else target.queue


def release_sent(process: Process, run_id: str) -> None:
    """Takes the calls of a run that is over from the backlogs of their targets."""
    events = read_events(process.client, process.ledger.keys, run_id)
    sent = {
        call: event.fence for event in events if event.kind in ("routed", "hedged") for call in event.calls
    }
    for call, fence in sent.items():
        process.guards.release(lease_of(run_id, call, fence))


def policy_of(name: str) -> Policy:
    """How targets are chosen.

    Raises:
        ConfigurationError: there is no such policy.
    """
    known: tuple[PolicyName, ...] = get_args(PolicyName)
    for each in known:
        if each == name:
            return Policy(name=each)
    raise ConfigurationError(f"MOSAIC_ROUTING_POLICY={name!r} is no policy; there are: {', '.join(known)}")


def equip(process: Process) -> None:
    """Gives a process its dispatcher."""
    process.places = Dispatcher(process)


__all__ = ["Dispatcher", "equip", "policy_of", "release_sent"]
