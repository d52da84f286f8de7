"""Which experts are asked next: the good, the cheap, the fast, and those who err otherwise than those already asked.

What an expert is worth is the weight that its vote would add (`beliefs`): how good it is, drawn by Thompson sampling
(Russo et al. 2018, A tutorial on Thompson sampling), so that one of which little is known is tried now and then; less
the part that goes together with those already asked. What it costs is compared with what the others cost, so that the
terms have no units.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from random import Random

import msgspec

from mosaic_tasks.mixtures.beliefs import PRIOR_STRENGTH, accuracy, together, vote
from mosaic_tasks.mixtures.values import Profile

SMALLEST_SHARE = 1e-3  # of a Beta distribution's parameters: neither may be zero


class Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much it counts that an expert costs more than the others: 0 not at all, 1 in proportion, 2 in its square.

    Attributes:
        usd: price of its call.
        seconds: time that it takes.
        tokens: that it writes.
    """

    usd: float = 0.0
    seconds: float = 0.0
    tokens: float = 0.25


class Left(msgspec.Struct, frozen=True, omit_defaults=True):
    """What may still be spent. Calls of one wave run side by side: each may take all of `seconds`."""

    usd: float = math.inf
    seconds: float = math.inf
    tokens: float = math.inf

    def holds(self, profile: Profile) -> bool:
        """Whether a call of this expert is expected to keep within it."""
        return profile.usd <= self.usd and profile.latency_s <= self.seconds and profile.tokens <= self.tokens

    def less(self, profile: Profile) -> Left:
        """What is left once this expert is asked too."""
        return Left(self.usd - profile.usd, self.seconds, self.tokens - profile.tokens)


def chosen(
    pool: Sequence[Profile],
    *,
    count: int,
    asked: Sequence[Profile] = (),
    chance: Random | None = None,
    terms: Terms | None = None,
    missing: Collection[str] = (),
    left: Left | None = None,
    diversity: float = 0.0,
) -> tuple[str, ...]:
    """The names of the experts to ask next, the most valuable first; fewer than `count` where no more can be asked.

    Args:
        pool: who may be asked, each once.
        asked: who was, in this mixture.
        chance: for Thompson sampling; None: each is taken for as good as is expected of it.
        missing: what the answers lack, such as `data`, `code` or `check`: those who offer it come first.
        left: of the budget; the expected costs of all that are chosen keep within it.
        diversity: 0 to 1: how much it counts to err otherwise than those already asked; 0: not at all.
    """
    able = list(pool)
    prices = _prices(able, terms or Terms())
    worth = {one.name: _drawn(one, chance) / prices[one.name] for one in able}
    taken: list[Profile] = []
    lacking, budget = set(missing), left or Left()
    while len(taken) < count and (fitting := [one for one in able if budget.holds(one)]):
        wanted = [one for one in fitting if lacking.intersection(one.offers)] or fitting
        beside = (*asked, *taken)
        best = max(wanted, key=lambda one: worth[one.name] * independence(one, beside) ** diversity)
        taken.append(best)
        able.remove(best)
        lacking.difference_update(best.offers)
        budget = budget.less(best)
    return tuple(one.name for one in taken)


def independence(profile: Profile, asked: Iterable[Profile]) -> float:
    """The part of a vote that is left beside those of who was asked: 1 where its errors do not go with theirs."""
    return 1.0 / (1.0 + sum(together(profile, one) for one in asked))


def _drawn(profile: Profile, chance: Random | None) -> float:
    """What its vote weighs, were it as good as this draw from what is believed of it."""
    if chance is None:
        return vote(accuracy(profile))
    right = profile.quality * PRIOR_STRENGTH + profile.right
    wrong = (1.0 - profile.quality) * PRIOR_STRENGTH + profile.wrong
    return vote(chance.betavariate(max(right, SMALLEST_SHARE), max(wrong, SMALLEST_SHARE)))


def _prices(pool: Sequence[Profile], terms: Terms) -> dict[str, float]:
    """What each costs, beside the average of all: 1 is the average.

    A call may cost nothing. It takes some time and tokens: where none are known, as many as those of the others.
    """
    usd = _relative([one.usd for one in pool], terms.usd)
    seconds = _relative(_supposed([one.latency_s for one in pool]), terms.seconds)
    tokens = _relative(_supposed([one.tokens for one in pool]), terms.tokens)
    return {one.name: math.prod(parts) for one, *parts in zip(pool, usd, seconds, tokens, strict=True)}


def _supposed(amounts: Sequence[float]) -> list[float]:
    known = [amount for amount in amounts if amount > 0]
    return [amount or sum(known) / max(len(known), 1) for amount in amounts]


def _relative(costs: Sequence[float], term: float) -> list[float]:
    """Each by the average, to the power of its term; what costs nothing costs a hundredth of the average."""
    average = sum(costs) / max(len(costs), 1)
    return [max(cost / average, 0.01) ** term if average else 1.0 for cost in costs]
