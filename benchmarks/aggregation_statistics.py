"""What outcomes come to: means with bootstrap intervals, differences and shares of pairs, and the Pareto plot."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from operator import attrgetter
from statistics import fmean

from aggregation_fleet import Outcome
from harness import shown

ROUNDS = 1_000
OUTSIDE = 0.025
"""On each side of an interval."""
METRICS: Mapping[str, Callable[[Outcome], float]] = {
    "accuracy": lambda outcome: 100.0 * outcome.right,
    "expert_calls": attrgetter("expert_calls"),
    "aggregator_calls": attrgetter("aggregator_calls"),
    "expert_tokens": attrgetter("expert_tokens"),
    "aggregator_tokens": attrgetter("aggregator_tokens"),
    "latency_s": attrgetter("latency_s"),
    "usd_per_1000": lambda outcome: 1e3 * outcome.usd,
}


@dataclass(frozen=True)
class Estimate:
    """A value, and the interval in which 95 % of the bootstrap's values are."""

    value: float
    low: float
    high: float

    @property
    def told(self) -> str:
        """For a table."""
        return f"{shown(self.value)} [{shown(self.low)}, {shown(self.high)}]"


@dataclass(frozen=True)
class Bootstrap:
    """Draws questions with replacement, the same ones for all that is compared."""

    draws: Sequence[Sequence[int]]

    @classmethod
    def of(cls, count: int, *, seed: int, rounds: int = ROUNDS) -> Bootstrap:
        """For so many questions."""
        chance = random.Random(seed)
        return cls([chance.choices(range(count), k=count) for _ in range(rounds)])

    def mean(self, values: Sequence[float]) -> Estimate:
        """Of one value a question."""
        return self._estimate(fmean(values), self._means(values))

    def difference(self, ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
        """Of the means."""
        return self.mean([mine - other for mine, other in zip(ours, theirs, strict=True)])

    def share(self, ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
        """The mean of ours over that of theirs."""
        pairs = zip(self._means(ours), self._means(theirs), strict=True)
        return self._estimate(fmean(ours) / fmean(theirs), [mine / other for mine, other in pairs])

    def _means(self, values: Sequence[float]) -> list[float]:
        return [fmean(map(values.__getitem__, draw)) for draw in self.draws]

    @staticmethod
    def _estimate(value: float, drawn: Sequence[float]) -> Estimate:
        ordered = sorted(drawn)
        outside = int(OUTSIDE * len(ordered))
        return Estimate(value, ordered[outside], ordered[-1 - outside])


def summary(outcomes: Sequence[Outcome], bootstrap: Bootstrap) -> dict[str, Estimate]:
    """Every metric."""
    return {name: bootstrap.mean([of(outcome) for outcome in outcomes]) for name, of in METRICS.items()}


def compared(ours: Sequence[Outcome], full: Sequence[Outcome], bootstrap: Bootstrap) -> dict[str, Estimate]:
    """The figures: ours beside the full mixture, on the same questions."""
    mine, other = ({name: list(map(of, all_of)) for name, of in METRICS.items()} for all_of in (ours, full))
    return {
        "accuracy_delta_points": bootstrap.difference(mine["accuracy"], other["accuracy"]),
        "expert_tokens_share": bootstrap.share(mine["expert_tokens"], other["expert_tokens"]),
        "aggregator_share": bootstrap.share(mine["aggregator_calls"], other["aggregator_calls"]),
        "latency_ratio": bootstrap.share(mine["latency_s"], other["latency_s"]),
        "usd_share": bootstrap.share(mine["usd_per_1000"], other["usd_per_1000"]),
    }


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names of those (cost, gain) that no other one beats in both, the cheapest first."""
    best, found = float("-inf"), []
    for name in sorted(points, key=lambda name: (points[name][0], -points[name][1])):
        if points[name][1] > best:
            best = points[name][1]
            found.append(name)
    return found


WIDTH, HEIGHT, LEFT, BELOW, ABOVE, RIGHT = 820, 480, 60, 48, 40, 210
"""Of the plot, in pixels."""
FONT = 'font-family="sans-serif" font-size="11"'


def plot(title: str, strategies: Mapping[str, Mapping[str, Estimate]]) -> str:
    """Accuracy over dollars for a thousand questions, as SVG: intervals upright, the Pareto frontier as a line."""
    points = {
        name: (found["usd_per_1000"].value, found["accuracy"].value) for name, found in strategies.items()
    }
    most = 1.1 * max(cost for cost, _ in points.values())
    low = min(found["accuracy"].low for found in strategies.values()) - 0.5
    high = max(found["accuracy"].high for found in strategies.values()) + 0.5

    def place(cost: float, gain: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * cost / most
        return across, HEIGHT - BELOW - (HEIGHT - BELOW - ABOVE) * (gain - low) / (high - low)

    line = " ".join("{:.1f},{:.1f}".format(*place(*points[name])) for name in frontier(points))
    parts = [
        f'<polyline points="{line}" fill="none" stroke="#888" stroke-dasharray="4 3"/>',
        *_axes(place, most, low, high),
    ]
    heights = _apart([place(*points[name])[1] for name in points])
    for (name, found), beside in zip(strategies.items(), heights, strict=True):
        parts += _point(name, place, points[name], found["accuracy"], beside)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" {FONT}>'
    named = f'<text x="{LEFT}" y="20" font-size="13">{escape(title)}</text>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', named, *parts, "</svg>\n"])


Place = Callable[[float, float], tuple[float, float]]


def _axes(place: Place, most: float, low: float, high: float) -> list[str]:
    (left, floor), (right, ceiling) = place(0.0, low), place(most, high)
    marks = [f'<path d="M{left:.1f} {ceiling:.1f}V{floor:.1f}H{right:.1f}" fill="none" stroke="black"/>']
    for step in range(5):
        cost, gain = most * step / 4, low + (high - low) * step / 4
        across, up = place(cost, low)[0], place(0.0, gain)[1]
        marks.append(f'<text x="{across:.1f}" y="{floor + 16:.1f}" text-anchor="middle">{shown(cost)}</text>')
        marks.append(f'<text x="{left - 6:.1f}" y="{up + 4:.1f}" text-anchor="end">{gain:.1f}</text>')
    middle = (left + right) / 2
    marks.append(
        f'<text x="{middle:.1f}" y="{floor + 36:.1f}" text-anchor="middle">USD for 1,000 questions</text>'
    )
    marks.append(f'<text x="{left:.1f}" y="{ceiling - 8:.1f}" text-anchor="middle">right, %</text>')
    return marks


def _apart(heights: Sequence[float], least: float = 14.0) -> list[float]:
    """Where labels go that want these heights, so that none is on another."""
    placed, last = dict.fromkeys(range(len(heights)), 0.0), float("-inf")
    for number in sorted(placed, key=heights.__getitem__):
        last = placed[number] = max(heights[number], last + least)
    return [placed[number] for number in range(len(heights))]


def _point(name: str, place: Place, at: tuple[float, float], accuracy: Estimate, beside: float) -> list[str]:
    across, up = place(*at)
    (_, low), (_, high) = place(at[0], accuracy.low), place(at[0], accuracy.high)
    colour, label = ("#c33" if name == "adaptive" else "#36c"), WIDTH - RIGHT + 10
    return [
        f'<path d="M{across:.1f} {low:.1f}V{high:.1f}" stroke="{colour}" stroke-opacity="0.4"/>',
        f'<circle cx="{across:.1f}" cy="{up:.1f}" r="4" fill="{colour}"/>',
        f'<path d="M{across + 5:.1f} {up:.1f}L{label - 3} {beside:.1f}" stroke="{colour}" stroke-opacity="0.2"/>',
        f'<text x="{label}" y="{beside + 4:.1f}" fill="{colour}">{escape(name)}</text>',
    ]
