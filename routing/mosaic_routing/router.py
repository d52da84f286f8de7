"""Where a call goes: pure. First what must hold, then a score.

**What must hold.** A target that is closed (stale, breaker, limits), that was tried already, whose context is too
short, that would cost more than the budget or answer after the deadline is no candidate, whatever the policy. When all
are closed for now, the decision says when to look again; when none can serve the call at all, it says so.

**Score** of the policy `adaptive`, in seconds; the lowest wins:

    (latency + effort * (base + fill) * work + dollar_s * price) / quality

*Latency* is the wait until a slot is free (not backlog over throughput, see `snapshot.wait_s`), the prompt without what
the target has cached, and the answer at the target's speed. With a latency target, what exceeds it counts most.

*Work* is what the call takes from others: its tokens at the speed of the fastest target, weighted by how full the
target is. It is the same for fast and slow targets, while the latency that a fast one saves grows with the length of
the answer. So as the fast ones fill, short calls go to slow targets first, and long ones keep their place: that makes
the tail short in a fleet of unlike speeds.

*Near*: a machine that the call wants to share scores better by a fifth.

*Price* counts by the seconds that a dollar is worth to the run's objective. *Quality* divides: a wrong answer has to be
had again.

`benchmarks/routing_simulation.py` measures the policies on a virtual clock; the weights were chosen there, on the first
half of a production trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from operator import attrgetter
from typing import Literal, NamedTuple
from zlib import crc32

import msgspec

from mosaic_routing.affinity import Memory
from mosaic_routing.snapshot import Group, Row, Snapshot
from mosaic_routing.targets import Ask, Decision, Objective, Target

PolicyName = Literal[
    "adaptive",
    "round-robin",
    "least-outstanding",
    "two-choices",
    "random",
    "backlog",
    "speed",
    "affinity",
    "price",
    "quality",
]
"""`adaptive` is ours; the first three after it are the usual ones; the rest are its ingredients, each alone."""
NEAR = 0.8
"""The score of a target on a machine that the call wants to share, in the place of 1."""
_TOLD = 3
"""Targets that were left out of which the reasons tell; of the others, how many there are."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """What counts how much for an objective.

    Attributes:
        latency: of the predicted latency.
        effort: of the work that a call takes from others.
        base: work counts so much beside how full its target is.
        dollar_s: a dollar is worth so many seconds.
    """

    latency: float
    effort: float
    base: float
    dollar_s: float


WEIGHTS: dict[Objective, Weights] = {
    "latency": Weights(latency=1.0, effort=0.5, base=0.0, dollar_s=100.0),
    "throughput": Weights(latency=0.25, effort=1.0, base=1.0, dollar_s=1_000.0),
    "cost": Weights(latency=0.05, effort=0.05, base=0.0, dollar_s=100_000.0),
}
"""By objective of a run. A call of 1,000 tokens costs some 0.001 dollars: 0.1 s, 1 s and 100 s."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose among the candidates.

    Attributes:
        home: a prefix that nobody holds is worth so much of its time to read at its home on the ring, as far as
            prefixes are used again at all.
        retry_s: look again after so long when all targets are closed and none says for how long.
    """

    name: PolicyName = "adaptive"
    home: float = 1.0
    retry_s: float = 1.0


ADAPTIVE = Policy()
"""Ours, as it comes."""


class _Candidate(NamedTuple):
    row: Row
    latency_s: float
    price: float
    cached_tokens: float
    work_tokens: float


def route(
    ask: Ask,
    targets: Snapshot | Iterable[Target],
    *,
    policy: Policy = ADAPTIVE,
    memory: Memory | None = None,
) -> Decision:
    """Decides where a call goes; changes nothing.

    Whoever sends the call notes it: `snapshot.sent(decision)` and `memory.note(decision.target, ask.prefix,
    work_tokens=decision.work_tokens)`.

    Args:
        targets: a snapshot, to be made once for many calls; of anything else one is made for this call.
        memory: what this process sent where; None: nothing is known of prefixes, and `round-robin` has no turn.
    """
    snapshot = targets if isinstance(targets, Snapshot) else Snapshot(targets)
    group = snapshot.group(ask.targets)
    memory = memory or Memory()
    candidates = list(_candidates(ask, group, _cached(ask, group, memory)))
    if not candidates:
        return _nowhere(ask, group, retry_s=policy.retry_s)
    chosen = _CHOICES[policy.name](_Case(ask, group, candidates, policy, memory))
    return _decision(ask, group, candidates, chosen)


def _cached(ask: Ask, group: Group, memory: Memory) -> dict[str, float]:
    """Prompt tokens that targets hold; at least one is always read."""
    blocks = len(ask.prefix)
    if not blocks:
        return {}
    held = memory.cached(ask.prefix, targets=len(group.names))
    most = max(ask.input_tokens - 1.0, 0.0)
    return {name: min(ask.input_tokens * count / blocks, most) for name, count in held.items()}


def _candidates(ask: Ask, group: Group, cached: dict[str, float]) -> Iterator[_Candidate]:
    """Those for which all holds that must; the loop over targets, so it is written out."""
    inputs, outputs, tokens = ask.input_tokens, ask.output_tokens, ask.input_tokens + ask.output_tokens
    excluded, deadline_s, budget = (*ask.excluded, *ask.full), ask.deadline_s, ask.budget
    for row in group.rows:
        known = cached.get(row.name, 0.0) if cached else 0.0
        unread = inputs - known
        latency = row.wait_s + row.fixed_s + unread * row.input_s + outputs * row.output_s
        price = inputs * row.input_price + outputs * row.output_price
        fits = latency <= deadline_s and price <= budget and tokens <= row.context_tokens
        if fits and row.name not in excluded:
            yield _Candidate(row, latency, price, known, outputs + unread * row.per_input)


_LATENCY = attrgetter("latency_s")


class _Case(NamedTuple):
    """All that a choice goes by."""

    ask: Ask
    group: Group
    candidates: list[_Candidate]
    policy: Policy
    memory: Memory

    @property
    def chance(self) -> int:
        """The same for a call wherever it is decided."""
        return crc32(self.ask.call.encode())

    @property
    def turned(self) -> list[_Candidate]:
        """The candidates, beginning elsewhere for each call: of equal ones processes shall not all take the same."""
        start = self.chance % len(self.candidates)
        return self.candidates[start:] + self.candidates[:start]


def _adaptive(case: _Case) -> _Candidate:
    ask, weights = case.ask, WEIGHTS[case.ask.objective]
    effort, base, dollar_s = weights.effort * case.group.fastest_s, weights.base, weights.dollar_s
    bias = _bias(case)
    best, lowest, near = case.candidates[0], math.inf, ask.near
    for one in case.turned:
        row = one.row
        felt_s = _felt(one.latency_s + bias.get(row.name, 0.0), ask.latency_s)
        work = (base + row.fill) * one.work_tokens
        score = (weights.latency * felt_s + effort * work + dollar_s * one.price) / row.quality
        if near and row.target.machine in near:
            score *= NEAR
        if score < lowest:
            best, lowest = one, score
    return best


def _bias(case: _Case) -> dict[str, float]:
    """Seconds by which affinity changes what targets are worth, of the few where it does.

    A target that has its share of the work already gains nothing by what it has cached. A prompt of which nobody knows
    half is drawn to its home, so that what begins like it finds it there.
    """
    if not case.ask.prefix:
        return {}
    known = [one for one in case.candidates if one.cached_tokens]
    bias = {one.row.name: one.cached_tokens * one.row.input_s for one in known if _is_full(case, one)}
    unknown = case.ask.input_tokens - max((one.cached_tokens for one in known), default=0.0)
    if unknown > case.ask.input_tokens / 2:
        home, worth = _home(case), case.policy.home * case.memory.promise
        bias[home.row.name] = bias.get(home.row.name, 0.0) - worth * unknown * home.row.input_s
    return bias


def _is_full(case: _Case, one: _Candidate) -> bool:
    return case.memory.is_full(one.row.name, share=one.row.share, work_tokens=one.work_tokens)


def _home(case: _Case) -> _Candidate:
    """The first candidate on the ring that is within its share; where none is, the first."""
    by_name = {one.row.name: one for one in case.candidates}
    names = case.memory.preferred(case.ask.prefix, case.group.names)
    walk = (by_name[name] for name in names if name in by_name)
    first = next(walk)
    return next((one for one in chain((first,), walk) if not _is_full(case, one)), first)


def _felt(latency_s: float, wanted_s: float) -> float:
    """With a latency target, what exceeds it counts four times, and what does not a fifth."""
    if wanted_s == math.inf:
        return latency_s
    return 0.2 * latency_s + 4.0 * max(latency_s - wanted_s, 0.0)


def _round_robin(case: _Case) -> _Candidate:
    return case.candidates[case.memory.turn % len(case.candidates)]


def _two_choices(case: _Case) -> _Candidate:
    """The one with fewer requests, of two by chance (Mitzenmacher, 2001)."""
    count, chance = len(case.candidates), case.chance
    first, step = chance % count, 1 + (chance >> 16) % max(count - 1, 1)
    return min(case.candidates[first], case.candidates[(first + step) % count], key=_outstanding)


def _random(case: _Case) -> _Candidate:
    return case.candidates[case.chance % len(case.candidates)]


def _affinity(case: _Case) -> _Candidate:
    """The most cached tokens within the share; where that is not half of the prompt, the home."""
    half = case.ask.input_tokens / 2
    within = [one for one in case.turned if one.cached_tokens > half and not _is_full(case, one)]
    return max(within, key=lambda one: one.cached_tokens) if within else _home(case)


def _outstanding(one: _Candidate) -> float:
    return one.row.active


def _least(key: Callable[[_Candidate], float]) -> Callable[[_Case], _Candidate]:
    """The candidate with the lowest key."""
    return lambda case: min(case.turned, key=key)


_CHOICES: dict[PolicyName, Callable[[_Case], _Candidate]] = {
    "adaptive": _adaptive,
    "round-robin": _round_robin,
    "least-outstanding": _least(_outstanding),
    "two-choices": _two_choices,
    "random": _random,
    "backlog": _least(lambda one: one.row.backlog_tokens),
    "speed": _least(lambda one: one.latency_s + one.cached_tokens * one.row.input_s),
    "affinity": _affinity,
    "price": _least(lambda one: one.price),
    "quality": _least(lambda one: -one.row.quality),
}


def _decision(ask: Ask, group: Group, candidates: list[_Candidate], chosen: _Candidate) -> Decision:
    sooner = min(candidates, key=_LATENCY)
    return Decision(
        target=chosen.row.name,
        latency_s=chosen.latency_s,
        cost=chosen.price,
        work_tokens=chosen.work_tokens,
        cached_tokens=chosen.cached_tokens,
        reasons=(*_why(ask, chosen), *_why_rather(ask, chosen, sooner), *_why_not(ask, group, candidates)),
    )


def _why(ask: Ask, chosen: _Candidate) -> Iterator[str]:
    row, unread = chosen.row, ask.input_tokens - chosen.cached_tokens
    yield (
        f"{row.name}: answers in {chosen.latency_s:.2f} s as predicted: a slot is free in {row.wait_s:.2f} s "
        f"({row.active} requests for {row.target.slots} slots), then {unread:.0f} tokens are read and "
        f"{ask.output_tokens:.0f} written"
    )
    if chosen.cached_tokens:
        yield f"its prefix cache has {chosen.cached_tokens:.0f} of the prompt's {ask.input_tokens:.0f} tokens"
    if ask.near and row.target.machine in ask.near:
        yield f"it is on {row.target.machine}, as the call wants"
    if chosen.price:
        yield f"it costs {chosen.price:.6f} US dollars"


def _why_rather(ask: Ask, chosen: _Candidate, sooner: _Candidate) -> Iterator[str]:
    """What speaks against the target that would answer first, where it is another one."""
    if sooner.latency_s == chosen.latency_s:
        return
    against = [
        (sooner.price > chosen.price, f"costs {sooner.price:.6f} US dollars"),
        (sooner.row.quality < chosen.row.quality, f"is right in {100 * sooner.row.quality:.0f} % only"),
        (sooner.row.fill > chosen.row.fill, "is fuller, and better left to longer answers"),
        (
            bool(ask.near) and sooner.row.target.machine not in ask.near,
            "is on another machine than the call wants",
        ),
    ]
    why = [reason for holds, reason in against if holds] or ["is not what the policy goes by"]
    yield f"{sooner.row.name} would answer in {sooner.latency_s:.2f} s, but {' and '.join(why)}"


def _why_not(ask: Ask, group: Group, candidates: list[_Candidate]) -> Iterator[str]:
    """Of the first few that were left out, why; of the others, how many there are."""
    out = len(group.rows) - len(candidates) + len(group.closed)
    if not out:
        return
    fit = {one.row.name for one in candidates}
    told = [f"{closed.target.name}: {closed.reason}" for closed in group.closed[:_TOLD]]
    unfit = (row.target for row in group.rows if row.name not in fit)
    late = f"it would answer after the deadline in {ask.deadline_s:.2f} s"
    told += [
        f"{one.name}: {_misfit(ask, one) or _full(ask, one) or late}"
        for one in islice(unfit, _TOLD - len(told))
    ]
    yield from told
    if out > len(told):
        yield f"{out - len(told)} more targets were left out"


def _misfit(ask: Ask, target: Target) -> str:
    """Why a target can never serve a call, however idle it is; empty: it could."""
    tokens = ask.input_tokens + ask.output_tokens
    price = (ask.input_tokens * target.input_price + ask.output_tokens * target.output_price) / 1e6
    if target.name in ask.excluded:
        return "the call was sent there already"
    if not tokens <= target.context_tokens:
        return f"prompt and answer have {tokens:.0f} tokens, its context only {target.context_tokens}"
    if not price <= ask.budget:
        return f"the call would cost {price:.6f} US dollars there, and may cost {ask.budget:.6f}"
    return ""


def _full(ask: Ask, target: Target) -> str:
    """Why a target is better left to the calls that it has; empty: it is not."""
    return "it has as many calls as its limits let run soon" if target.name in ask.full else ""


def _nowhere(ask: Ask, group: Group, *, retry_s: float) -> Decision:
    """No target now: when to look again, where that may help within the deadline; and why."""
    why = tuple(_why_not(ask, group, [])) or (f"no worker serves {_listed(ask.targets)}",)
    later = [closed for closed in group.closed if not _misfit(ask, closed.target)]
    opened = any(row.name in ask.full and not _misfit(ask, row.target) for row in group.rows)
    if group.names and not later and not opened:
        return Decision(reasons=("no target can serve this call", *why))
    wait_s = min((closed.ready_in_s for closed in later), default=math.inf)
    wait_s = retry_s if wait_s == math.inf else wait_s
    if not wait_s <= ask.deadline_s:
        return Decision(reasons=(f"no target opens before the deadline in {ask.deadline_s:.2f} s", *why))
    return Decision(wait_s=wait_s, reasons=("no target is open now", *why))


def _listed(deployments: tuple[str, ...]) -> str:
    return " or ".join(deployments) if deployments else "any model"


__all__ = ["ADAPTIVE", "WEIGHTS", "Policy", "PolicyName", "Weights", "route"]
