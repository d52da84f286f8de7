"""The adaptive mixture, made of the product's own policies: who is asked, what is believed, when it is enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from aggregation_fleet import INSTRUCTION_TOKENS, Ask, Came, Fleet, Flow, Strategy
from aggregation_models import rates
from aggregation_recordings import CHARS, Question

from mosaic_tasks.mixtures.beliefs import families_of, view_of
from mosaic_tasks.mixtures.gates import need, verdict
from mosaic_tasks.mixtures.selection import Terms, chosen
from mosaic_tasks.mixtures.values import Answer, AnswerForm, Gate, Heard, Profile, View

TERMS = Terms(usd=0.0, tokens=0.25)
"""Who is good counts for more than who is short. Prices do not count: in a set with one dear model that is better than
the others, those would be asked first, and agree on what that one knows better."""
DIVERSITY = 0.0
"""To ask first who errs otherwise made no set of experts better here, on average over many, and the first one worse."""
NEVER = 1_000
"""Votes ahead: what nobody ever is, so that a gate goes by the probability alone."""
MOST_TOKENS, MOST_AGGREGATED = 0.43, 0.065
"""Shares of the full mixture that a setting may take on the part that is learned on: less than on the other part, since
the share of hard questions differs by chance."""


@dataclass(frozen=True)
class Setting:
    """What is learned beside the profiles, but for `confidence`.

    Attributes:
        confidence: the probability of the leader from which on no more experts are asked. Lower ones believe
            a good expert alone.
        enough: the one from which on the aggregator is not asked, once no expert is left.
        most: so many experts are asked at most.
    """

    confidence: float = 0.95
    enough: float = 0.65
    most: int = 4

    @property
    def gate(self) -> Gate:
        """By the probability alone."""
        return Gate(kind="margin", margin=NEVER, confidence=self.confidence)


Viewer = Callable[[Sequence[Heard]], View]
ENOUGH = tuple(percent / 100 for percent in range(50, 96, 5))


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
    def with_one_threshold(self) -> Adaptive:
        """The same one where an answer that the gate does not let pass is the aggregator's, who has the last word."""
        setting = replace(self.setting, enough=self.setting.confidence)
        return replace(self, setting=setting, is_final=True)

    @property
    def order(self) -> tuple[str, ...]:
        """In which experts are asked."""
        profiles = [self.profiles[name] for name in self.experts]
        return chosen(profiles, count=self.setting.most, terms=TERMS, diversity=DIVERSITY)

    @property
    def strategy(self) -> Strategy:
        """Waves of experts until the gate passes, in mid-wave too, and the aggregator where it does not."""
        order = self.order
        families = families_of(self.profiles)

        def start(question: Question) -> Flow:
            return self._flow(order, families)

        return Strategy("adaptive, one threshold" if self.is_final else "adaptive", start, streams=True)

    def _flow(self, order: Sequence[str], families: Mapping[str, str]) -> Flow:
        heard: list[Heard] = []
        view = self._viewer(order, families)
        while len(heard) < len(order):
            wave = order[len(heard) :][: max(need(self.setting.gate, view(heard)), 1)]
            ask = Ask(tuple(wave))
            for _ in wave:
                heard.append(heard_of((yield ask), len(heard)))
                if verdict(self.setting.gate, seen := view(heard)).passed:
                    return leading(seen)
                ask = Ask()
        return (yield from self._aggregated(heard, view))

    def _aggregated(self, heard: list[Heard], view: Viewer) -> Flow:
        """The leader where that is sure enough, or nobody is there to ask; else what the aggregator makes of it."""
        seen = view(heard)
        if self.aggregator and (seen.leader is None or seen.leader.probability < self.setting.enough):
            quoted = sum(len(one.text) / CHARS for one in heard)
            came = yield Ask((self.aggregator,), quoted_tokens=quoted, aggregates=True)
            if self.is_final and came.said.answer:
                return came.said.answer
            seen = view([*heard, heard_of(came, len(heard))])
        return leading(seen)

    def _viewer(self, order: Sequence[str], families: Mapping[str, str]) -> Viewer:
        """What is known once these came, and who would be next."""
        following = [*(self.profiles[name] for name in order), None, None]

        def view(heard: Sequence[Heard]) -> View:
            return view_of(
                heard,
                self.profiles,
                self.form,
                planned=len(order),
                upcoming=following[len(heard)],
                families=families,
            )

        return view


def leading(view: View) -> Answer | None:
    """The answer that is ahead."""
    return view.leader.answer if view.leader else None


def heard_of(came: Came, index: int) -> Heard:
    """What a mixture knows of an answer that came."""
    return Heard(
        index, came.model, came.model, text=came.said.text, answer=came.said.early, seconds=came.seconds
    )


@dataclass(frozen=True)
class Tried:
    """A setting, and what it did on the questions that are learned on; shares are of the full mixture."""

    mixture: Adaptive
    right: float
    tokens_share: float
    aggregator_share: float

    @property
    def excess(self) -> float:
        """By how much it takes more than it may; 1: it does not."""
        return max(self.tokens_share / MOST_TOKENS, self.aggregator_share / MOST_AGGREGATED, 1.0)


def learned(
    experts: Sequence[str],
    aggregator: str,
    *,
    models: Sequence[str],
    form: AnswerForm,
    questions: Sequence[Question],
) -> Adaptive:
    """The mixture with the best setting for these questions.

    Of settings that differ in `enough` alone, the one that asks the aggregator as often as it may: more is better, and
    less so by chance alone. Of these the one that is right most often.
    """
    profiles = profiles_of(questions, models)
    kept = [
        min(
            (
                tried(Adaptive(experts, aggregator, profiles, form, setting), questions)
                for setting in settings
            ),
            key=lambda one: (one.excess, -one.mixture.setting.enough),
        )
        for settings in _settings(len(experts))
    ]
    return min(kept, key=lambda one: (one.excess, -one.right, one.tokens_share)).mixture


def _settings(experts: int) -> list[list[Setting]]:
    """Those that differ in `enough` alone, together."""
    return [[Setting(enough=enough, most=most) for enough in ENOUGH] for most in (experts - 1, experts)]


def tried(mixture: Adaptive, questions: Sequence[Question]) -> Tried:
    """What a mixture does on these questions."""
    outcomes = Fleet(mixture.strategy, in_flight=1).play(questions)
    tokens = sum(question.said[expert].tokens for question in questions for expert in mixture.experts)
    return Tried(
        mixture,
        right=fmean(outcome.right for outcome in outcomes),
        tokens_share=sum(outcome.expert_tokens for outcome in outcomes) / tokens,
        aggregator_share=fmean(outcome.aggregator_calls for outcome in outcomes),
    )


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
