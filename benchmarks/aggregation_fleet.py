"""Simulated GPUs that answer with recordings, on a virtual clock, while several questions are in flight.

A strategy is a generator: it yields which models to ask, gets each answer as it comes, and returns the one it decides
for. What still runs or waits then is cut. A GPU runs whichever model is asked, `SLOTS` calls at a time, each as fast as
if it were alone (`aggregation_models`); what waits is taken in its order. Loading, memory, and what calls of one batch
take from each other are left out, all of which would cost those more who ask more.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from aggregation_models import Rates, rates
from aggregation_recordings import CHARS, Question, Said

from mosaic_tasks.mixtures.values import Answer

GPUS = 4
SLOTS = 8
IN_FLIGHT = 8
INSTRUCTION_TOKENS = 60
"""Of a prompt, beside the question and what it quotes."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Models that are asked at the same time; none: the strategy waits for the next answer.

    Attributes:
        quoted_tokens: that they read beside the question.
        aggregates: they are asked as aggregators, and count as such.
    """

    models: tuple[str, ...] = ()
    quoted_tokens: float = 0.0
    aggregates: bool = False


@dataclass(frozen=True, slots=True)
class Came:
    """An answer that came: of which model, what it said, and how long after it was asked."""

    model: str
    said: Said
    seconds: float


Flow = Generator[Ask, Came, Answer | None]


@dataclass(frozen=True)
class Strategy:
    """A way to answer questions.

    Attributes:
        streams: answers count once they are complete, and their models stop there.
    """

    name: str
    start: Callable[[Question], Flow]
    streams: bool = False


@dataclass(slots=True)
class Outcome:
    """What one question came to, and what it cost."""

    right: bool = False
    expert_calls: int = 0
    aggregator_calls: int = 0
    expert_tokens: float = 0.0
    aggregator_tokens: float = 0.0
    latency_s: float = 0.0
    usd: float = 0.0


@dataclass(slots=True)
class _Call:
    asked: _Asked
    model: str
    said: Said
    tokens: float
    input_tokens: float
    aggregates: bool
    rates: Rates
    asked_s: float
    started_s: float = -1.0
    over: bool = False

    def written(self, now_s: float) -> float:
        """Tokens by now."""
        if self.started_s < 0:
            return 0.0
        speed = self.rates.speed
        reading_s = speed.first_token_s + self.input_tokens / speed.prefill_tokens_s
        return min(self.tokens, max(0.0, (now_s - self.started_s - reading_s) * speed.decode_tokens_s))


@dataclass(slots=True)
class _Asked:
    """A question in flight."""

    question: Question
    flow: Flow
    began_s: float
    outcome: Outcome
    open: list[_Call] = field(default_factory=list)


@dataclass
class Fleet:
    """Plays questions.

    Attributes:
        in_flight: questions at the same time; the next one begins when one is over.
    """

    strategy: Strategy
    gpus: int = GPUS
    slots: int = SLOTS
    in_flight: int = IN_FLIGHT
    _now_s: float = 0.0
    _free: int = 0
    _left: deque[tuple[Question, Outcome]] = field(default_factory=deque)
    _waiting: deque[_Call] = field(default_factory=deque)
    _ends: list[tuple[float, int, _Call]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def play(self, questions: Sequence[Question]) -> list[Outcome]:
        """The outcome of each question, in their order."""
        self._free = self.gpus * self.slots
        outcomes = [Outcome() for _ in questions]
        self._left = deque(zip(questions, outcomes, strict=True))
        for _ in range(self.in_flight):
            self._next_question()
        while self._ends:
            self._now_s, _, call = heapq.heappop(self._ends)
            if not call.over:
                self._end(call)
        return outcomes

    def _next_question(self) -> None:
        if not self._left:
            return
        question, outcome = self._left.popleft()
        asked = _Asked(question, self.strategy.start(question), self._now_s, outcome)
        self._advance(asked, None)

    def _advance(self, asked: _Asked, came: Came | None) -> None:
        try:
            ask = asked.flow.send(came)  # type: ignore[arg-type]
        except StopIteration as stopped:
            self._close(asked, stopped.value)
            return
        for model in ask.models:
            self._ask(asked, model, ask)

    def _ask(self, asked: _Asked, model: str, ask: Ask) -> None:
        said = asked.question.said[model]
        call = _Call(
            asked=asked,
            model=model,
            said=said,
            tokens=said.early_tokens if self.strategy.streams else said.tokens,
            input_tokens=len(asked.question.question) / CHARS + INSTRUCTION_TOKENS + ask.quoted_tokens,
            aggregates=ask.aggregates,
            rates=rates(model),
            asked_s=self._now_s,
        )
        asked.open.append(call)
        self._waiting.append(call)
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and self._free:
            call = self._waiting.popleft()
            if call.over:
                continue
            self._free -= 1
            call.started_s = self._now_s
            seconds = call.rates.speed.latency_s(input_tokens=call.input_tokens, output_tokens=call.tokens)
            heapq.heappush(self._ends, (self._now_s + seconds, next(self._numbers), call))

    def _end(self, call: _Call) -> None:
        asked = call.asked
        asked.open.remove(call)
        self._settle(call)
        # What waits starts after the strategy has decided, which may not need it any more.
        self._advance(asked, Came(call.model, call.said, self._now_s - call.asked_s))
        self._start_waiting()

    def _settle(self, call: _Call) -> None:
        """Counts what a call that ended, or was cut, has used, and frees its place."""
        outcome, tokens = call.asked.outcome, call.written(self._now_s)
        call.over = True
        if call.started_s < 0:
            return
        self._free += 1
        outcome.usd += call.rates.usd(input_tokens=call.input_tokens, output_tokens=tokens)
        if call.aggregates:
            outcome.aggregator_calls += 1
            outcome.aggregator_tokens += tokens
        else:
            outcome.expert_calls += 1
            outcome.expert_tokens += tokens

    def _close(self, asked: _Asked, answer: Answer | None) -> None:
        for call in asked.open:
            self._settle(call)
        asked.outcome.right = asked.question.is_right(answer)
        asked.outcome.latency_s = self._now_s - asked.began_s
        self._start_waiting()
        self._next_question()
