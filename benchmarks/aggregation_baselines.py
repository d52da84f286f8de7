"""What the adaptive mixture is compared with, written from the papers and apart from the product's policies.

With one recorded answer of each model, the samples of one model that the papers have are answers of different experts
here.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from aggregation_fleet import Ask, Came, Flow, Strategy
from aggregation_recordings import Question

from mosaic_tasks.mixtures.agreement import groups
from mosaic_tasks.mixtures.values import Answer, AnswerForm

CONFIDENCE = 0.95
"""Of Adaptive-Consistency, as in its paper."""
WINDOW = 3
"""Of early-stopping self-consistency; 5 of 40 samples in its paper, which here would be all experts."""
QUORUM = 0.8
"""Share of the experts who must agree."""
MARGIN = 2
FULL = "full mixture"


@dataclass(frozen=True)
class Baselines:
    """Ways to ask the same experts and the same aggregator."""

    experts: Sequence[str]
    aggregator: str
    form: AnswerForm

    def all(self, best: str) -> Iterator[Strategy]:
        """Each of them, and the best single model."""
        yield single(best)
        yield Strategy("majority", self.majority)
        yield Strategy(FULL, self.full)
        yield Strategy("4 of 5 agree", self.agreement)
        yield Strategy("margin 2", self.margin)
        yield Strategy("Adaptive-Consistency", self.adaptive_consistency)
        yield Strategy("early-stopping self-consistency", self.early_stopping)

    def majority(self, question: Question) -> Flow:
        """All experts; the most frequent answer."""
        said = yield from _all(self.experts)
        return self._leader(said)

    def full(self, question: Question) -> Flow:
        """All experts, and the aggregator always, whose answer counts."""
        said = yield from _all(self.experts)
        return (yield from self._aggregated(question, said))

    def agreement(self, question: Question) -> Flow:
        """All experts; the aggregator where too few say the same."""
        said = yield from _all(self.experts)
        if self._votes(said)[0] >= QUORUM * len(self.experts):
            return self._leader(said)
        return (yield from self._aggregated(question, said))

    def margin(self, question: Question) -> Flow:
        """One expert after the other until an answer is so many votes ahead; the aggregator where none ever is."""
        said: list[Answer | None] = []
        for expert in self.experts:
            said += yield from _all((expert,))
            first, second = self._votes(said)
            if first - second >= MARGIN:
                return self._leader(said)
        return (yield from self._aggregated(question, said))

    def adaptive_consistency(self, question: Question) -> Flow:
        """One expert after the other, until the leader stays ahead of the second with some probability; the majority.

        Aggarwal et al. 2023, Let's Sample Step by Step: Adaptive-Consistency for Efficient Reasoning and Coding with
        LLMs; the Beta criterion.
        """
        said: list[Answer | None] = []
        for expert in self.experts:
            said += yield from _all((expert,))
            if stays_ahead(*self._votes(said)) >= CONFIDENCE:
                break
        return self._leader(said)

    def early_stopping(self, question: Question) -> Flow:
        """Windows of experts, until all in one say the same; else the majority of all.

        Li et al. 2024, Escape Sky-high Cost: Early-stopping Self-Consistency for Multi-step Reasoning.
        """
        said: list[Answer | None] = []
        for first in range(0, len(self.experts), WINDOW):
            window = yield from _all(self.experts[first : first + WINDOW])
            said += window
            if self._votes(window)[0] == WINDOW:
                return self._leader(window)
        return self._leader(said)

    def _votes(self, said: Sequence[Answer | None]) -> tuple[int, int]:
        """Of the most frequent answer and of the second."""
        counts = sorted((len(group.members) for group in groups(said, self.form)), reverse=True)
        first, second, *_ = (*counts, 0, 0)
        return first, second

    def _leader(self, said: Sequence[Answer | None]) -> Answer | None:
        """The most frequent answer; of equally frequent ones that of the first expert."""
        found = groups(said, self.form)
        return max(found, key=lambda group: len(group.members)).answer if found else None

    def _aggregated(self, question: Question, said: Sequence[Answer | None]) -> Flow:
        """What the aggregator says, who reads all answers; the majority where that cannot be read."""
        quoted = sum(question.said[expert].tokens for expert in self.experts)
        came = yield Ask((self.aggregator,), quoted_tokens=quoted, aggregates=True)
        return came.said.answer or self._leader(said)


def single(model: str) -> Strategy:
    """One model alone."""

    def start(question: Question) -> Flow:
        (answer,) = yield from _all((model,))
        return answer

    return Strategy(f"single: {model}", start)


def stays_ahead(first: int, second: int) -> float:
    """P(p > 1/2) for p of Beta(first + 1, second + 1): a sum, as both are whole numbers."""
    tosses = first + second + 1
    return sum(math.comb(tosses, heads) for heads in range(first + 1)) / 2**tosses


def _all(experts: Sequence[str]) -> Generator[Ask, Came, list[Answer | None]]:
    """Asks them at once, and waits for all; their answers in the experts' order."""
    said: dict[str, Answer | None] = {}
    ask = Ask(tuple(experts))
    while len(said) < len(experts):
        came = yield ask
        said[came.model] = came.said.answer
        ask = Ask()
    return [said[expert] for expert in experts]
