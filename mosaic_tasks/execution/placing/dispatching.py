"""Sends calls that the router is to place: decides where they go by what they are expected to ask, and records that.

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
from mosaic_queues.transitions import Group, LiveCall, Route, is_shadow, shadow_of
from mosaic_routing.affinity import Memory
from mosaic_routing.ceilings import LONGEST_S, predicted_s, room, turn_s
from mosaic_routing.degrading import Changed
from mosaic_routing.guards import Limited, Query
from mosaic_routing.guards.budgets import MICROS
from mosaic_routing.hedging import Hedges, hedge_after_s, is_worth_hedging
from mosaic_routing.queues import ROUTED, hosting_queues
from mosaic_routing.router import Policy, PolicyName, route
from mosaic_routing.service import ServerService
from mosaic_routing.snapshot import Snapshot
from mosaic_routing.targets import Ask, Decision, Target
from mosaic_tasks.execution.placing.expected import Expectations
from mosaic_tasks.execution.placing.fleets import Fleet, Fleets, count_at
from mosaic_tasks.execution.placing.held_up import HeldUp
from mosaic_tasks.execution.placing.order import Order
from mosaic_tasks.execution.placing.relief import Relief
from mosaic_tasks.execution.placing.turns import Turns
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.sent import Sent, Straggler, lease_of, permit_of, sent_of

log = structlog.get_logger(__name__)

NOWHERE_S, NOWHERE_MOST_S = 0.5, 5.0
"""A call that nothing can take now is looked at again within these."""


class _Run(NamedTuple):
    """What the calls of a run share that are placed together.

    Attributes:
        expectations: of what they will ask.
        budget: US dollars that the run may still cost.
        deadline_s: until the run's.
    """

    id: str
    plan: PreparedPlan
    expectations: Expectations
    budget: float
    deadline_s: float


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
        expectations = Expectations(self._process, run_id, plan)
        budget, deadline_s = self._left_of_budget(run_id, plan), self._left_s(run_id, plan)
        run, fleet = _Run(run_id, plan, expectations, budget, deadline_s), self._fleets.now()
        decided = self._decided(run, calls, fleet)
        placed = {call: sent for call, sent in decided.items() if sent.decision.target}
        for call, level in self._order.levels(run_id, plan, placed, deadline_s=deadline_s).items():
            decided[call] = msgspec.structs.replace(decided[call], level=level)
        return self._recorded(run, decided, fleet)

    def _decided(self, run: _Run, calls: Sequence[str], fleet: Fleet) -> dict[str, Sent]:
        with self._lock:
            if fleet is not self._fleet:
                self._fleet = fleet
                self._memory.retain({target.name for target in fleet.targets})
            return {call: self._decide(run, call, fleet) for call in calls}

    def _recorded(self, run: _Run, decided: Mapping[str, Sent], fleet: Fleet) -> dict[int, list[Group]]:
        """Those that are to be published, by level."""
        routes = {call: self._route(call, sent, fleet) for call, sent in decided.items()}
        groups: dict[int, dict[str, list[str]]] = {}
        for call, fence in self._process.ledger.route(run.id, list(routes.values())).items():
            level, decision = decided[call].level, decided[call].decision
            groups.setdefault(level, {}).setdefault(routes[call].queue, []).append(call)
            if run.plan.asks(call):
                count_at(decision.target, self._process.guards, run.id, call, fence=fence, decision=decision)
        return {level: list(by_queue.items()) for level, by_queue in groups.items()}

    def fewer_experts(self, experts: int, *, least: int) -> Changed:
        """How many experts a mixture asks that begins now, of so many without load; where none is known, all."""
        try:
            fleet = self._fleets.now()
            with self._lock:
                return self._relief.fewer_experts(experts, least, fleet.load)
        except (RedisError, MosaicError) as error:
            what = "the load is not known; a mixture asks as many experts as it says"
            log.warning("load.unknown", what=what, error=str(error))
            return Changed(model="", experts=experts, output_tokens=0)

    def early(self, delayed: Mapping[str, Sequence[LiveCall]]) -> Mapping[str, Sequence[str]]:
        """By run, calls that wait for their turn at full targets, for as many as there is room now."""
        return self._turns.early(delayed)

    def held_up(self, run_id: str, call: str, sent: Sent, error: Limited) -> None:
        """Limits did not let a call through where it was sent: it goes where it was not yet, or waits."""
        self._held_up.note(permit_of(run_id, call), sent.decision.target, error)

    # -- asked a second time -------------------------------------------------------------------------------------------

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
        expected = Expectations(self._process, run_id, plan).of(shadow)
        fit = fleet.fit(expected.requirement)
        ask = msgspec.structs.replace(
            expected.ask,
            targets=fit.deployments,
            excluded=_beside(fleet, sent.decision.target),
            output_tokens=expected.length.p95,
        )
        decision = route(ask, fleet.snapshot(expected.requirement.capability), policy=self._policy)
        if not self._is_worth(straggler, decision):
            return ""
        target = fleet.target(decision.target)
        other = _sent(decision, target, ask, chars=sent.chars, max_tokens=sent.max_tokens)
        other = msgspec.structs.replace(
            other, level=sent.level, is_bound=target.deployment in fit.bound, hedges=sent.decision.target
        )
        self._send_shadow(run_id, plan, straggler, self._route(shadow, other, fleet), other)
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

    def _send_shadow(
        self, run_id: str, plan: PreparedPlan, straggler: Straggler, shadow: Route, sent: Sent
    ) -> None:
        claim, decision, guards = straggler.claim, sent.decision, self._process.guards
        # Before it is there: from then on the call may end, and whoever ends it gives the load of both back.
        count_at(decision.target, guards, run_id, shadow.call, fence=claim.fence, decision=decision)
        if self._process.ledger.hedge(run_id, claim, shadow, holder=straggler.holder):
            self._process.publish_placed(run_id, plan, {sent.level: [(shadow.queue, [shadow.call])]})
        else:
            guards.release(lease_of(run_id, shadow.call, claim.fence))

    # -- what is decided -----------------------------------------------------------------------------------------------

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
        expected = run.expectations.of(call)
        relieved = self._relief.relieved(expected.requirement, expected.max_tokens, fleet.load)
        fit = fleet.fit(relieved.requirement)
        if fit.lacks:
            return Sent(Decision(wait_s=NOWHERE_MOST_S, reasons=(fit.lacks,)), is_unserved=True)
        asks, hedges = run.plan.asks(call), self._hedged(run.id, call)
        ask = self._limited(run, expected.ask, fleet, beside=_beside(fleet, hedges), asks=asks)
        ask = msgspec.structs.replace(ask, targets=fit.deployments)
        decision = self._routed(ask, fleet.snapshot(relieved.requirement.capability))
        decision = msgspec.structs.replace(decision, reasons=(*decision.reasons, *relieved.sentences))
        if not decision.target:
            return self._nowhere(fleet, ask, decision)
        target = fleet.target(decision.target)
        if not asks:
            return _sent(decision, target, ask, chars=0, max_tokens=None)
        fleet.sent(decision)
        self._memory.note(decision.target, ask.prefix, work_tokens=decision.work_tokens)
        p95, max_tokens = expected.length.p95, relieved.max_tokens
        sent = _sent(decision, target, ask, chars=expected.chars, max_tokens=max_tokens, p95=p95)
        return msgspec.structs.replace(sent, is_bound=target.deployment in fit.bound, hedges=hedges)

    def _limited(self, run: _Run, ask: Ask, fleet: Fleet, *, beside: tuple[str, ...], asks: bool) -> Ask:
        """With what its run and the limits still allow; `beside`: where it may not go, as it is asked there already."""
        return msgspec.structs.replace(
            ask,
            budget=run.budget,
            deadline_s=run.deadline_s,
            excluded=(*self._held_up.targets(ask.call), *beside),
            full=self._full(fleet, ask) if asks else (),
        )

    def _routed(self, ask: Ask, snapshot: Snapshot) -> Decision:
        """Where nothing will be cheap enough, what it would be otherwise: the call is to fail, and whoever runs it says
        so."""
        decision = route(ask, snapshot, policy=self._policy, memory=self._memory)
        if decision.target or decision.wait_s or ask.excluded or ask.budget == math.inf:
            return decision
        ask = msgspec.structs.replace(ask, budget=math.inf)
        return route(ask, snapshot, policy=self._policy, memory=self._memory)

    def _hedged(self, run_id: str, call: str) -> str:
        """Of a shadow, where the call itself is; it came back from where it was sent, as there was no room."""
        if not is_shadow(call):
            return ""
        (sent,) = sent_of(self._process.ledger, run_id, [call])
        return sent.hedges if sent is not None else ""

    def _nowhere(self, fleet: Fleet, ask: Ask, decision: Decision) -> Sent:
        """Nowhere now; of a call that limits held up for as long as they say, where targets are full until its turn."""
        stop = self._held_up.end(ask.call)
        if stop is not None:
            return Sent(Decision(wait_s=stop.left_s, reasons=(stop.reason, *decision.reasons)))
        full = tuple(name for name in ask.full if fleet.target(name).deployment in ask.targets)
        if not (full and decision.wait_s):
            return Sent(decision)
        turns_s = (turn_s(fleet.ceilings[name], self._service_s(fleet.target(name), ask)) for name in full)
        return Sent(msgspec.structs.replace(decision, wait_s=min(turns_s)), waits_for=full)

    def _full(self, fleet: Fleet, ask: Ask) -> tuple[str, ...]:
        """Targets that have as many calls before them as their limits let run soon."""
        return tuple(
            name
            for name, ceilings in fleet.ceilings.items()
            if not room(ceilings, self._service_s(fleet.target(name), ask))
        )

    def _service_s(self, target: Target, ask: Ask) -> float:
        """How long a call runs at a target: as calls of its deployment did of late, or as predicted."""
        known = self._process.learning.service_s(target.deployment)
        return predicted_s(target, ask) if known is None else known

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


def _sent(
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
