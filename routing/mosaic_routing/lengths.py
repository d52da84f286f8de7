"""How long answers and prompts will be: learned from those that ended, by node, model and length of the prompt. Pure.

Lengths are counted in histograms whose buckets grow by a twelfth, and old counts fade. A histogram of few counts leans
on a more general one: that of a node with prompts of this length on that of the node, this on the model's, this on that
of all, this on a prior. So a new node is predicted like its model, and is told apart as it shows what it does.

A histogram is a value: what several processes counted is added up, in any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

import msgspec

PRIOR_TOKENS = 256.0
"""Of an answer of which nothing at all is known."""
HALF_LIFE_S = 3600.0
"""A count is worth half after so long."""
_LEANING = 4.0
"""A histogram leans on the more general one as if that were so many counts."""
_STEPS = 8
"""Buckets for each doubling."""
_FEWEST = 0.01
"""Counts that are worth less than this are dropped."""
_REMEMBERED = 16
"""A prediction is made anew after so many counts."""


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted length in tokens.

    Attributes:
        mean: expected.
        p50, p95: so many or fewer with a probability of 50 and 95 %.
        counts: what the prediction is founded on, faded; 0: on the prior alone.
    """

    mean: float
    p50: float
    p95: float
    counts: float = 0.0


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths that were counted.

    Attributes:
        counts: by bucket, faded.
        tokens: sum of the lengths, faded.
        at_s: the time to which they are faded.
    """

    counts: dict[int, float] = {}
    tokens: float = 0.0
    at_s: float = 0.0

    @property
    def weight(self) -> float:
        """How many there are."""
        return sum(self.counts.values())

    def faded(self, now_s: float, *, half_life_s: float = HALF_LIFE_S) -> Histogram:
        """The same at a later time; an earlier one changes nothing, as clocks differ."""
        if now_s <= self.at_s or not self.weight:
            return msgspec.structs.replace(self, at_s=max(now_s, self.at_s))
        factor = 0.5 ** ((now_s - self.at_s) / half_life_s)
        counts = {bucket: left for bucket, n in self.counts.items() if (left := n * factor) > _FEWEST}
        # The mean stays, although rare lengths are dropped first.
        kept = sum(counts.values()) / self.weight
        return Histogram(counts=counts, tokens=self.tokens * kept, at_s=now_s)

    def with_length(self, tokens: float, now_s: float, *, half_life_s: float = HALF_LIFE_S) -> Histogram:
        """One length more.

        The new one counts for more, rather than the old ones for less, so that it costs next to nothing; once in a
        half-life all of them fade.
        """
        if now_s - self.at_s > half_life_s:
            return self.faded(now_s, half_life_s=half_life_s).with_length(
                tokens, now_s, half_life_s=half_life_s
            )
        worth, bucket = 2.0 ** ((now_s - self.at_s) / half_life_s), _bucket(tokens)
        counts = {**self.counts, bucket: self.counts.get(bucket, 0.0) + worth}
        return Histogram(counts=counts, tokens=self.tokens + worth * tokens, at_s=self.at_s)

    def merged(self, other: Histogram, *, half_life_s: float = HALF_LIFE_S) -> Histogram:
        """What both have counted; nothing may be counted in both."""
        now_s = max(self.at_s, other.at_s)
        ours, theirs = self.faded(now_s, half_life_s=half_life_s), other.faded(now_s, half_life_s=half_life_s)
        counts = dict(ours.counts)
        for bucket, count in theirs.counts.items():
            counts[bucket] = counts.get(bucket, 0.0) + count
        return Histogram(counts=counts, tokens=ours.tokens + theirs.tokens, at_s=now_s)


class Lengths:
    """What one process, or several together, learned of lengths.

    Args:
        histograms: by kind of call; what `histograms` of another gave.
        half_life_s: a count is worth half after so long.
        prior_tokens: of an answer of which nothing is known.
    """

    def __init__(
        self,
        histograms: Mapping[str, Histogram] | None = None,
        *,
        half_life_s: float = HALF_LIFE_S,
        prior_tokens: float = PRIOR_TOKENS,
    ) -> None:
        self.histograms: dict[str, Histogram] = dict(histograms or {})
        self._half_life_s = half_life_s
        self._prior = Histogram(counts={_bucket(prior_tokens): 1.0}, tokens=prior_tokens)
        self._seen = 0
        self._known: dict[str, tuple[int, Length]] = {}

    def observe(
        self, node: str, model: str, *, input_tokens: float, output_tokens: float, now_s: float
    ) -> None:
        """A call ended: so long was its prompt, and so long its answer."""
        self._seen += 1
        for kind in _answers(node, model, input_tokens):
            self._count(kind, output_tokens, now_s)
        for kind in _prompts(node):
            self._count(kind, input_tokens, now_s)

    def answer(self, node: str, model: str, *, input_tokens: float) -> Length:
        """How long the answer of a node will be, to a prompt of this length."""
        return self._predicted(_answers(node, model, input_tokens))

    def prompt(self, node: str) -> Length:
        """How long the prompt of a node will be, before it is written."""
        return self._predicted(_prompts(node))

    def merged(self, other: Lengths) -> Lengths:
        """What both learned, by themselves: what one took over from the other would count twice."""
        together = dict(self.histograms)
        for kind, histogram in other.histograms.items():
            mine = together.get(kind)
            merged = mine.merged(histogram, half_life_s=self._half_life_s) if mine else histogram
            together[kind] = merged
        return Lengths(together, half_life_s=self._half_life_s, prior_tokens=self._prior.tokens)

    def pruned(self, now_s: float) -> Lengths:
        """Without the kinds of call that were not seen for so long that nothing is left of them."""
        faded = {k: h.faded(now_s, half_life_s=self._half_life_s) for k, h in self.histograms.items()}
        kept = {kind: histogram for kind, histogram in faded.items() if histogram.counts}
        return Lengths(kept, half_life_s=self._half_life_s, prior_tokens=self._prior.tokens)

    def _count(self, kind: str, tokens: float, now_s: float) -> None:
        if not 0.0 <= tokens < math.inf:
            return
        histogram = self.histograms.get(kind) or Histogram(at_s=now_s)
        self.histograms[kind] = histogram.with_length(tokens, now_s, half_life_s=self._half_life_s)

    def _predicted(self, kinds: tuple[str, ...]) -> Length:
        key, turn = kinds[0], self._seen // _REMEMBERED
        known = self._known.get(key)
        if known is None or known[0] != turn:
            found = (self.histograms.get(kind) for kind in reversed(kinds))
            known = self._known[key] = (turn, _mixed(self._prior, (one for one in found if one)))
        return known[1]


def _answers(node: str, model: str, input_tokens: float) -> tuple[str, ...]:
    """Kinds of call that tell of an answer's length, the most special first."""
    return f"{node}|{model}|{_bucket(input_tokens)}", f"{node}|{model}", f"|{model}", "|"


def _prompts(node: str) -> tuple[str, ...]:
    return f"<{node}", "<"


def _mixed(prior: Histogram, histograms: Iterable[Histogram]) -> Length:
    """Each histogram leans on the one before, which is more general."""
    shares, mean, weight = dict(prior.counts), prior.tokens, 0.0
    for histogram in histograms:
        weight = histogram.weight
        whole = weight + _LEANING
        mean = (histogram.tokens + _LEANING * mean) / whole
        shares = {bucket: _LEANING * share / whole for bucket, share in shares.items()}
        for bucket, count in histogram.counts.items():
            shares[bucket] = shares.get(bucket, 0.0) + count / whole
    p50, p95 = _quantiles(shares, (0.5, 0.95))
    return Length(mean=mean, p50=p50, p95=p95, counts=weight)


def _quantiles(shares: Mapping[int, float], wanted: tuple[float, ...]) -> Iterator[float]:
    buckets = sorted(shares)
    reached = list(accumulate(shares[bucket] for bucket in buckets))
    for part in wanted:
        goal = part * reached[-1]
        yield _middle(next(bucket for bucket, sum_ in zip(buckets, reached, strict=True) if sum_ >= goal))


def _bucket(tokens: float) -> int:
    """Number of the bucket of a length; one that makes no sense is in the first."""
    return int(_STEPS * math.log2(1.0 + tokens)) if 0.0 < tokens < math.inf else 0


def _middle(bucket: int) -> float:
    return float(2.0 ** ((bucket + 0.5) / _STEPS) - 1.0)


__all__ = ["HALF_LIFE_S", "PRIOR_TOKENS", "Histogram", "Length", "Lengths"]
