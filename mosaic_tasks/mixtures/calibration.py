"""From what is known of an answer to one probability that it is right, learned from labelled history.

Two ways are tried, and the one that predicts left-out lines better (by the Brier score) is kept:

- `logistic`: a logistic regression on all features, with a Gaussian prior on its weights, by Newton's method. On one
  probability it is Platt scaling (Platt 1999, Probabilistic outputs for support vector machines). Features that are
  probabilities enter by their log-odds.
- `isotonic`: the rising step function of one feature that fits best, by pooling adjacent violators (Zadrozny and Elkan
  2002, Transforming classifier scores into accurate multiclass probability estimates).

The reliability curve is measured on left-out lines too, so it shows what the calibration is worth on answers to come.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mosaic_queues.errors import InputError

Method = Literal["logistic", "isotonic"]

PROBABILITIES = frozenset({"probability", "confidence", "support"})
"""Features that are probabilities."""
LEAST_LINES = 20
MOST_FEATURES = 32
"""What learning takes grows with their square."""
LARGEST = 1e100
"""Beyond that, what is reckoned with a number may be none."""

_FOLDS = 5
_BINS = 10
_PRIOR = 1.0  # weight of the prior against one line, for standardised features
_STEPS = 50
_CLOSE = 1e-9
_SURE = 1e-3  # probabilities go no nearer to 0 and 1 before their log-odds are taken

_Probability = Annotated[float, Meta(ge=0, le=1)]
_Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the history.

    Attributes:
        features: what was known when it was decided: those of `beliefs.features` and `signals.signals`, or any others.
        right: how right it was, 0 to 1; true and false are 1 and 0.
        run, node: whose answer it was, where that is told: a later line of the same goes in the place of this one.
    """

    features: dict[str, float]
    right: bool | float
    run: str = ""
    node: str = ""

    @property
    def share(self) -> float:
        """`right` as a number."""
        return float(self.right)


class Scale(msgspec.Struct, frozen=True):
    """One feature of a logistic calibration: its mean and spread in the history, and its weight."""

    mean: _Number
    spread: Annotated[float, Meta(ge=_CLOSE)]
    weight: _Number


class Bin(msgspec.Struct, frozen=True):
    """A part of a reliability curve.

    Attributes:
        predicted: mean probability.
        right: share that was right.
    """

    predicted: float
    right: float
    lines: int


class Curve(msgspec.Struct, frozen=True):
    """How far probabilities can be relied upon.

    Attributes:
        bins: ten of equal width; those without lines are left out.
        ece: expected calibration error: mean distance of `predicted` and `right`, by lines (Guo et al. 2017, On
            calibration of modern neural networks).
        brier: mean square of what the probability was off.
    """

    bins: tuple[Bin, ...]
    ece: float
    brier: float


class Calibration(msgspec.Struct, frozen=True, omit_defaults=True):
    """Makes a probability of features; what `mosaic calibrate` writes.

    Attributes:
        scales: of `logistic`, by feature.
        intercept: of `logistic`.
        feature: of `isotonic`.
        steps: of `isotonic`: from which value on, which probability.
        base: share of right lines; the probability where nothing is known.
        curve: measured on left-out lines.
        lines: in the history.

    Raises:
        ValueError: the steps do not rise, or there are none.
    """

    method: Method
    base: _Probability
    lines: Annotated[int, Meta(ge=0, le=2**53)] = 0
    scales: dict[str, Scale] = {}
    intercept: _Number = 0.0
    feature: str = ""
    steps: tuple[tuple[_Number, _Probability], ...] = ()
    curve: Curve | None = None

    def __post_init__(self) -> None:
        if self.feature and not self.steps:
            raise ValueError(f"there are no steps of the feature {self.feature!r}")
        for (start, before), (value, after) in pairwise(self.steps):
            if not (start < value and before <= after):
                raise ValueError(f"the step to {after:g} from {value:g} on does not rise")

    def __call__(self, features: Mapping[str, float]) -> float:
        """The probability; a feature that is missing counts as its mean, one that is not known counts for nothing."""
        if self.method == "isotonic":
            value = features.get(self.feature)
            return self.base if value is None else self._step(value)
        known = (
            (_scaled(name, features[name]) - scale.mean) / scale.spread * scale.weight
            for name, scale in self.scales.items()
            if name in features
        )
        return _sigmoid(self.intercept + sum(known))

    def _step(self, value: float) -> float:
        place = bisect_right(self.steps, value, key=lambda step: step[0])
        return self.steps[max(place - 1, 0)][1]


def learn(history: Sequence[Outcome], *, method: Method | None = None) -> Calibration:
    """The calibration that a history teaches.

    Args:
        method: default: the one that predicts left-out lines better.

    Raises:
        InputError: the history is too short, or tells nothing.
    """
    _check(history)
    methods: tuple[Method, ...] = (method,) if method else ("logistic", "isotonic")
    tried = [(reliability(_left_out(history, each), history), each) for each in methods]
    curve, chosen = min(tried, key=lambda pair: pair[0].brier)
    return msgspec.structs.replace(_fit(history, chosen), curve=curve)


def reliability(predicted: Sequence[float], history: Sequence[Outcome]) -> Curve:
    """The curve of probabilities against what came of them."""
    rights = [outcome.share for outcome in history]
    parts: list[list[int]] = [[] for _ in range(_BINS)]
    for place, probability in enumerate(predicted):
        parts[min(int(probability * _BINS), _BINS - 1)].append(place)
    bins = tuple(
        Bin(_mean([predicted[p] for p in part]), _mean([rights[p] for p in part]), len(part))
        for part in parts
        if part
    )
    off = sum(abs(each.predicted - each.right) * each.lines for each in bins)
    brier = _mean([(p - right) ** 2 for p, right in zip(predicted, rights, strict=True)])
    return Curve(bins, off / len(rights), brier)


def _check(history: Sequence[Outcome]) -> None:
    shares = [outcome.share for outcome in history]
    if len(history) < LEAST_LINES:
        raise InputError(f"too few lines to calibrate by: {len(history)}; collect at least {LEAST_LINES}")
    if not all(0 <= share <= 1 for share in shares):
        raise InputError(
            f"'right' is {next(s for s in shares if not 0 <= s <= 1)!r}; give true, false, or 0 to 1"
        )
    _check_features(history)
    if min(shares) == max(shares):
        raise InputError("all lines are equally right, which teaches nothing; add some that differ")
    if not _spreads(history):
        raise InputError("no feature differs from line to line; record features that tell something")


def _check_features(history: Sequence[Outcome]) -> None:
    names = {name for outcome in history for name in outcome.features}
    if len(names) > MOST_FEATURES:
        raise InputError(
            f"too many features to calibrate by: {len(names)}; keep the {MOST_FEATURES} that tell the most"
        )
    for outcome in history:
        for name, value in outcome.features.items():
            if not abs(value) <= LARGEST:
                raise InputError(
                    f"the feature {name!r} is {value!r}; give numbers from {-LARGEST:g} to {LARGEST:g}"
                )


def _fit(history: Sequence[Outcome], method: Method) -> Calibration:
    return _logistic(history) if method == "logistic" else _isotonic(history)


def _left_out(history: Sequence[Outcome], method: Method) -> list[float]:
    """For each line, the probability by what the others teach: a fifth is left out at a time."""
    places = list(range(len(history)))
    Random(0).shuffle(places)  # noqa: S311 - no secret: a history may be sorted
    predicted = [0.0] * len(history)
    for fold in range(_FOLDS):
        left = set(places[fold::_FOLDS])
        taught = _fit([outcome for place, outcome in enumerate(history) if place not in left], method)
        for place in left:
            predicted[place] = taught(history[place].features)
    return predicted


def _logistic(history: Sequence[Outcome]) -> Calibration:
    """Logistic regression; the first weight is the intercept."""
    spreads = _spreads(history)
    rows = [[1.0, *_standard(outcome, spreads)] for outcome in history]
    rights = [outcome.share for outcome in history]
    base = _bounded(_mean(rights))
    weights = [_log_odds(base), *(0.0 for _ in spreads)]
    for _ in range(_STEPS):
        change = _newton(rows, rights, weights)
        weights = [weight + step for weight, step in zip(weights, change, strict=True)]
        if max(map(abs, change)) < _CLOSE:
            break
    scales = {
        name: Scale(mean, spread, weight)
        for (name, (mean, spread)), weight in zip(spreads.items(), weights[1:], strict=True)
    }
    return Calibration("logistic", base, len(history), scales, weights[0])


def _newton(
    rows: Sequence[Sequence[float]], rights: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """The next step towards the most likely weights."""
    size = len(weights)
    slope = [0.0] + [-_PRIOR * weight for weight in weights[1:]]
    bend = [[_PRIOR if one == other and one else 0.0 for other in range(size)] for one in range(size)]
    for row, right in zip(rows, rights, strict=True):
        probability = _sigmoid(sum(value * weight for value, weight in zip(row, weights, strict=True)))
        certain = max(probability * (1 - probability), _CLOSE)
        for one in range(size):
            slope[one] += row[one] * (right - probability)
            for other in range(size):
                bend[one][other] += row[one] * row[other] * certain
    return _solved(bend, slope)


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of linear equations whose matrix is positive definite, by elimination."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for pivot in range(size):
        head = rows[pivot]
        for below in rows[pivot + 1 :]:
            factor = below[pivot] / head[pivot]
            for column in range(pivot, size + 1):
                below[column] -= factor * head[column]
    found = [0.0] * size
    for place in reversed(range(size)):
        known = sum(rows[place][column] * found[column] for column in range(place + 1, size))
        found[place] = (rows[place][size] - known) / rows[place][place]
    return found


def _isotonic(history: Sequence[Outcome]) -> Calibration:
    """A rising step function of the feature that is a probability, or of the one that goes with `right` the most."""
    feature = _telling(history)
    known: dict[float, list[float]] = {}
    for outcome in history:
        if feature in outcome.features:
            known.setdefault(outcome.features[feature], []).append(outcome.share)
    least = 1 / (sum(map(len, known.values())) + 2)  # nothing is certain that was seen so often
    steps = tuple((start, min(max(share, least), 1 - least)) for start, share in _pooled(known))
    base = _bounded(_mean([outcome.share for outcome in history]))
    return Calibration("isotonic", base, len(history), feature=feature, steps=steps)


def _pooled(known: Mapping[float, Sequence[float]]) -> list[tuple[float, float]]:
    """From which value on, which share: neighbours are pooled until none falls below the one before it."""
    blocks: list[tuple[float, float, int]] = []  # where it starts, how many right, of how many
    for value, shares in sorted(known.items()):
        start, rights, lines = value, math.fsum(shares), len(shares)
        while blocks and blocks[-1][1] * lines >= rights * blocks[-1][2]:
            start, more, others = blocks.pop()
            rights, lines = rights + more, lines + others
        blocks.append((start, rights, lines))
    return [(start, rights / lines) for start, rights, lines in blocks]


def _telling(history: Sequence[Outcome]) -> str:
    spreads = _spreads(history)
    if "probability" in spreads:
        return "probability"
    rights = [outcome.share for outcome in history]
    middle = _mean(rights)

    def together(name: str) -> float:
        mean, spread = spreads[name]
        pairs = zip(history, rights, strict=True)
        return sum(
            (_scaled(name, outcome.features.get(name, mean)) - mean) / spread * (right - middle)
            for outcome, right in pairs
            if name in outcome.features
        )

    return max(sorted(spreads), key=together, default="")  # of a part of the history all may be alike


def _spreads(history: Sequence[Outcome]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each feature that differs from line to line."""
    values: dict[str, list[float]] = {}
    for outcome in history:
        for name, value in outcome.features.items():
            values.setdefault(name, []).append(_scaled(name, value))
    found = {name: (_mean(known), _deviation(known)) for name, known in sorted(values.items())}
    return {name: pair for name, pair in found.items() if pair[1] > _CLOSE}


def _standard(outcome: Outcome, spreads: Mapping[str, tuple[float, float]]) -> list[float]:
    """The features of a line in standard deviations from their means; what is missing is at the mean."""
    return [
        (_scaled(name, outcome.features[name]) - mean) / spread if name in outcome.features else 0.0
        for name, (mean, spread) in spreads.items()
    ]


def _scaled(name: str, value: float) -> float:
    return _log_odds(_bounded(value)) if name in PROBABILITIES else value


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _bounded(probability: float) -> float:
    return min(max(probability, _SURE), 1 - _SURE)


def _log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-min(max(value, -40.0), 40.0)))


__all__ = [
    "LARGEST",
    "LEAST_LINES",
    "MOST_FEATURES",
    "Bin",
    "Calibration",
    "Curve",
    "Method",
    "Outcome",
    "Scale",
    "learn",
    "reliability",
]
