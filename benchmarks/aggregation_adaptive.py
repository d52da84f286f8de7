"""The adaptive mixture, made of the product's own policies: who is asked, what is believed, when it is enough."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from aggregation_fleet import INSTRUCTION_TOKENS, Ask, Came, Fleet, Flow, Strategy
from aggregation_models import rates
from aggregation_recordings import CHARS, Question

from mosaic_tasks.mixtures.beliefs import families_of, view_of
from mosaic_tasks.mixtures.gates import need, verdict
from mosaic_tasks.mixtures.selection import Terms, chosen
from mosaic_tasks.mixtures.values import AnswerForm, Gate, Heard, Profile, View

TERMS = Terms(usd=0.0, tokens=0.5)
NEVER = 1_000
"""Votes ahead: what nobody ever is, so that a gate goes by the probability alone."""
MOST_TOKENS, MOST_AGGREGATED = 0.43, 0.06
"""Shares of the full mixture that a setting may take on the part that is learned on: less than on the other part, since
the part of the questions that is hard differs by chance."""


@dataclass(frozen=True)
class Setting:
    """What is learned beside the profiles.

    Attributes:
        confidence: the probability of the leader from which on no more experts are asked.
        enough: the one from which on the aggregator is not asked, once no expert is left.
        most: so many experts are asked at most.
    """

    confidence: float = 0.95
    enough: float = 0.8
    most: int = 5

    @property
    def gate(self) -> Gate:
        """By the probability alone."""
        return Gate(kind="margin", margin=NEVER, confidence=self.confidence)


SETTINGS = tuple(
    Setting(confidence, enough, most)
    for confidence, enough, most in itertools.product((0.9, 0.95, 0.97), (0.7, 0.8, 0.9), (3, 4, 5))
)


@dataclass(frozen=True)
class Adaptive:
    """A mixture of these experts, as far as it is learned.

    Attributes:
        aggregator: None: there is none.
        profiles: of all models.
        is_final: the aggregator's answer is the last word, instead of one more vote.
    """

    experts: Sequence[str]
    aggregator: str | None
    profiles: Mapping[str, Profile]
    form: AnswerForm
    setting: Setting = Setting()
    is_final: bool = False

    @property
    def strategy(self) -> Strategy:
        """Waves of experts until the gate passes, in mid-wave too, and the aggregator where it does not."""
        order = chosen([self.profiles[name] for name in self.experts], count=self.setting.most, terms=TERMS)
        families = families_of(self.profiles)

        def start(question: Question) -> Flow:
            return self._flow(order, families)

        return Strategy("adaptive, aggregator decides" if self.is_final else "adaptive", start, streams=True)

    def _flow(self, order: Sequence[str], families: Mapping[str, str]) -> Flow:
        heard: list[Heard] = []
        seen = self._view(heard, families)
        while len(heard) < len(order):
            wave = order[len(heard) :][: max(need(self.setting.gate, seen), 1)]
            ask = Ask(tuple(wave))
            for _ in wave:
                heard.append(heard_of((yield ask), len(heard)))
                seen = self._view(heard, families)
                if verdict(self.setting.gate, seen).passed:
                    return seen.leader.answer if seen.leader else None
                ask = Ask()
        return (yield from self._aggregated(heard, seen, families))

    def _aggregated(self, heard: list[Heard], seen: View, families: Mapping[str, str]) -> Flow:
        """The leader where that is sure enough, or nobody is there to ask; else what the aggregator makes of it."""
        if self.aggregator and (seen.leader is None or seen.leader.probability < self.setting.enough):
            quoted = sum(len(one.text) / CHARS for one in heard)
            came = yield Ask((self.aggregator,), quoted_tokens=quoted, aggregates=True)
            if self.is_final and came.said.answer:
                return came.said.answer
            seen = self._view([*heard, heard_of(came, len(heard))], families)
        return seen.leader.answer if seen.leader else None

    def _view(self, heard: Sequence[Heard], families: Mapping[str, str]) -> View:
        return view_of(heard, self.profiles, self.form, planned=self.setting.most, families=families)


def heard_of(came: Came, index: int) -> Heard:
    """What a mixture knows of an answer that came."""
    return Heard(
        index, came.model, came.model, text=came.said.text, answer=came.said.early, seconds=came.seconds
    )


def learned(
    experts: Sequence[str],
    aggregator: str,
    *,
    models: Sequence[str],
    form: AnswerForm,
    questions: Sequence[Question],
) -> Adaptive:
    """The mixture with the setting that did best on these questions, of those that keep within what they may take."""
    base = Adaptive(experts, aggregator, profiles_of(questions, models), form)
    tried = [Adaptive(experts, aggregator, base.profiles, form, setting) for setting in SETTINGS]
    tokens = sum(question.said[expert].tokens for question in questions for expert in experts)
    return max(tried, key=lambda one: _merit(one, questions, tokens))


def _merit(mixture: Adaptive, questions: Sequence[Question], tokens: float) -> tuple[float, float, float]:
    """First to keep within what it may take, then to be right, then to cost little."""
    outcomes = Fleet(mixture.strategy, in_flight=1).play(questions)
    share = sum(outcome.expert_tokens for outcome in outcomes) / tokens
    aggregated = fmean(outcome.aggregator_calls for outcome in outcomes)
    excess = max(share / MOST_TOKENS, aggregated / MOST_AGGREGATED, 1.0)
    return -excess, fmean(outcome.right for outcome in outcomes), -share


def profiles_of(questions: Sequence[Question], models: Sequence[str]) -> dict[str, Profile]:
    """What outcomes of these questions tell of the models."""
    wrong = {model: [not question.said[model].early_right for question in questions] for model in models}
    return {model: _profile(model, questions, wrong) for model in models}


def _profile(model: str, questions: Sequence[Question], wrong: Mapping[str, Sequence[bool]]) -> Profile:
    mine, costs = wrong[model], rates(model)
    read = fmean(len(question.question) / CHARS for question in questions) + INSTRUCTION_TOKENS
    written = fmean(question.said[model].early_tokens for question in questions)
    return Profile(
        name=model,
        model=model,
        right=float(len(mine) - sum(mine)),
        wrong=float(sum(mine)),
        usd=costs.usd(input_tokens=read, output_tokens=written),
        latency_s=costs.speed.latency_s(input_tokens=read, output_tokens=written),
        tokens=written,
        agrees={
            other: (float(sum(map(bool.__and__, mine, theirs))), float(len(mine)))
            for other, theirs in wrong.items()
            if other != model
        },
    )
