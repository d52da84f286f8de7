"""Whether the leading answer is certain enough to stop asking.

Whatever a gate counts, it passes only for an answer that is ahead of all others in weight: a tie passes no gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mosaic_tasks.mixtures.beliefs import agreeing
from mosaic_tasks.mixtures.values import Candidate, Gate, GateKind, Verdict, View

PRECISION = 1e-12  # of the continued fraction, and of a quorum's share
MOST_STEPS = 500  # of the fraction; some 30 do for 1,000 votes


def verdict(gate: Gate, view: View) -> Verdict:
    """Whether asking may stop, and why."""
    leader = view.leader
    if leader is None:
        return Verdict(False, 0.0, "no answer counts yet")
    if gate.kind == "none":
        return Verdict(False, leader.probability, "all experts are asked")
    if not _is_ahead(view):
        return Verdict(False, leader.probability, f"{leader.answer.shown!r} is not ahead of another answer")
    decided = _KINDS[gate.kind](gate, view, leader)
    return decided if decided.passed else _sure(gate, leader) or decided


def need(gate: Gate, view: View) -> int:
    """How many more answers there must be at least before the gate can pass: 0 where it has, or where none can come.

    It supposes that all that follow say the same as the leader, and that each is as good as the next one. Where not
    even that passes, all that are left are needed.
    """
    left = max(view.planned - len(view.order), 0)
    if verdict(gate, view).passed:
        return 0
    agreed = view
    for more in range(1, left + 1):
        agreed = agreeing(agreed)
        if verdict(gate, agreed).passed:
            return more
    return left


def beats(one: float, other: float) -> float:
    """The probability that an answer with `one` votes is given more often than one with `other`, if asking goes on.

    Votes may be fractions. It is the upper half of Beta(one + 1, other + 1), as in Adaptive-Consistency (Aggarwal et
    al. 2023, Let's sample step by step).
    """
    return 1.0 - _beta_below_half(one + 1.0, other + 1.0)


def _beta_below_half(a: float, b: float) -> float:
    """The regularised incomplete beta function at 1/2, for a, b >= 1 (Press et al., Numerical Recipes, 6.4)."""
    if a < b:
        return 1.0 - _beta_below_half(b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - (a + b) * math.log(2.0)
    return math.exp(front) * _continued(a, b) / a


def _continued(a: float, b: float) -> float:
    """Its continued fraction at 1/2, by Lentz's method; it converges fast for a >= b."""
    fraction, c, d = 1.0, 1.0, 0.0
    for step in range(1, MOST_STEPS):
        coefficient = _coefficient(a, b, step)
        d = 1.0 / (1.0 + coefficient * d)
        c = 1.0 + coefficient / c
        fraction *= c * d
        if abs(c * d - 1.0) < PRECISION:
            break
    return 1.0 / fraction


def _coefficient(a: float, b: float, step: int) -> float:
    half, odd = divmod(step, 2)
    if odd:
        return -(a + half) * (a + b + half) / (2.0 * (a + 2 * half) * (a + 2 * half + 1.0))
    return half * (b - half) / (2.0 * (a + 2 * half - 1.0) * (a + 2 * half))


def _is_ahead(view: View) -> bool:
    leader, *others = view.candidates
    return all(one.weight < leader.weight for one in others)


def _sure(gate: Gate, leader: Candidate) -> Verdict | None:
    """Passed where the leader is likely enough to be right; those that go by a probability have no such second way."""
    if gate.kind in ("probability", "posterior", "dirichlet") or gate.confidence is None:
        return None
    believed = _probability(gate, None, leader)
    return believed if believed.passed else None


def _probability(gate: Gate, _view: View | None, leader: Candidate) -> Verdict:
    """That the leader is right, calibrated where there is history."""
    enough = 1.0 if gate.confidence is None else gate.confidence
    why = f"{leader.answer.shown!r} is right with probability {leader.probability:.3f}, {enough} is enough"
    return Verdict(leader.probability >= enough, leader.probability, why)


def _posterior(gate: Gate, view: View, leader: Candidate) -> Verdict:
    """Stopping by the two leaders (Aggarwal et al. 2023), with weights for votes."""
    second = max((one.weight for one in view.candidates[1:]), default=0.0)
    return _confident(gate, leader, beats(leader.weight, second))


def _dirichlet(gate: Gate, view: View, leader: Candidate) -> Verdict:
    """Stopping by all answers (Aggarwal et al. 2023), without sampling.

    That the leader's share exceeds this one and that one are events that favour each other, as all grow with the
    leader's. So the product of their probabilities is no more than that of all of them (Esary, Proschan and Walkup
    1967, Association of random variables); with two answers it is exactly that.
    """
    others = [one.weight for one in view.candidates[1:]] or [0.0]
    return _confident(gate, leader, math.prod(beats(leader.weight, other) for other in others))


def _confident(gate: Gate, leader: Candidate, probability: float) -> Verdict:
    enough = 1.0 if gate.confidence is None else gate.confidence
    why = f"{leader.answer.shown!r} stays ahead with probability {probability:.3f}, {enough} is enough"
    return Verdict(probability >= enough, probability, why)


def _unanimous(gate: Gate, view: View, leader: Candidate) -> Verdict:
    """Early-stopping self-consistency (Li et al. 2024, Escape sky-high cost): the last `window` say the same."""
    last = view.order[-gate.window :]
    same = sum(key == leader.answer.key for key in last)
    why = f"{same} of the last {gate.window} said {leader.answer.shown!r}"
    return Verdict(same >= gate.window, leader.probability, why)


def _margin(gate: Gate, view: View, leader: Candidate) -> Verdict:
    ahead = leader.votes - max((one.votes for one in view.candidates[1:]), default=0)
    why = f"{leader.answer.shown!r} is {ahead} votes ahead, {gate.margin} are enough"
    return Verdict(ahead >= gate.margin, leader.probability, why)


def _quorum(gate: Gate, view: View, leader: Candidate) -> Verdict:
    enough = (
        math.ceil(gate.quorum * view.planned - PRECISION) if gate.quorum < 1.0 else math.ceil(gate.quorum)
    )
    why = f"{leader.votes} said {leader.answer.shown!r}, {enough} are enough"
    return Verdict(leader.votes >= max(enough, 1), leader.probability, why)


def _cost(gate: Gate, view: View, leader: Candidate) -> Verdict:
    """One more call gains at most what a right answer is worth, where the leader is wrong and the call right."""
    gain = gate.worth_usd * (1.0 - leader.probability) * view.next_quality
    price = view.next_usd + gate.second_usd * view.next_s
    why = f"one more call gains {gain:.6f} USD at most and costs {price:.6f}"
    return Verdict(gain < price, leader.probability, why)


_KINDS: dict[GateKind, Callable[[Gate, View, Candidate], Verdict]] = {
    "probability": _probability,
    "posterior": _posterior,
    "dirichlet": _dirichlet,
    "unanimous": _unanimous,
    "margin": _margin,
    "quorum": _quorum,
    "cost": _cost,
}
