"""Which experts are asked next: the good, the cheap, the fast, and those who err otherwise than those already asked.

What an expert is worth is the weight that its vote would add (`beliefs`): how good it is, drawn by Thompson sampling
(Russo et al. 2018, A tutorial on Thompson sampling), so that one of which little is known is tried now and then; less
the part that goes together with those already asked. What it costs is compared with what the others cost, so that the
terms have no units.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush
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
    ranking = _Ranking(pool, _worths(pool, terms or Terms(), chance), asked, missing, diversity)
    budget, taken = left or Left(), list[str]()
    while len(taken) < count and (best := ranking.next(budget)) is not None:
        taken.append(best.name)
        budget = budget.less(best)
    return tuple(taken)


class _Ranking:
    """Gives the experts of a pool one after another, the most valuable first.

    Whoever is given makes the others worth less, never more: they may bring what is not missing any more, and err
    together with it. So a rank that was told is the best that there can be, and is told anew only for whoever is first
    (Minoux 1978, Accelerated greedy algorithms).
    """

    def __init__(
        self,
        pool: Sequence[Profile],
        worths: Sequence[float],
        asked: Sequence[Profile],
        missing: Collection[str],
        diversity: float,
    ) -> None:
        self._pool, self._worths, self._diversity = pool, worths, diversity
        self._missing, self._given = set(missing), list[Profile]()
        self._near = [_nearness(one, asked) if diversity else 0.0 for one in pool]
        self._beside = [0] * len(pool)
        self._ranks = [self._rank(place) for place in range(len(pool))]
        heapify(self._ranks)

    def next(self, left: Left) -> Profile | None:
        """The most valuable of those left whom the budget holds; it only shrinks, so the others are passed over."""
        while self._ranks:
            place = heappop(self._ranks)[-1]
            if not left.holds(self._pool[place]):
                continue
            rank = self._rank(place)
            if not self._ranks or rank < self._ranks[0]:
                return self._give(self._pool[place])
            heappush(self._ranks, rank)
        return None

    def _give(self, one: Profile) -> Profile:
        self._given.append(one)
        self._missing.difference_update(one.offers)
        return one

    def _rank(self, place: int) -> tuple[bool, float, int]:
        """Who offers what is missing comes first, then who is worth most, then who comes first in the pool."""
        one, worth = self._pool[place], self._worths[place]
        if self._diversity:
            self._near[place] += sum(together(one, other) for other in self._given[self._beside[place] :])
            self._beside[place] = len(self._given)
            worth *= independence(self._near[place]) ** self._diversity
        return self._missing.isdisjoint(one.offers), -worth, place


def independence(near: float) -> float:
    """The part of a vote that is left beside others, with whose errors its own go together so much in all."""
    return 1.0 / (1.0 + near)


def _nearness(profile: Profile, asked: Sequence[Profile]) -> float:
    """How much its errors go together with those of who was asked, in all; each is compared once, however often."""
    often, known = Counter(one.name for one in asked), {one.name: one for one in asked}
    return sum(times * together(profile, known[name]) for name, times in often.items())


def _worths(pool: Sequence[Profile], terms: Terms, chance: Random | None) -> list[float]:
    prices = _prices(pool, terms)
    return [_drawn(one, chance) / prices[one.name] for one in pool]


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
