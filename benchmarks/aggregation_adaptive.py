"""The adaptive mixture, made of the product's own policies: who is asked, what is believed, when it is enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from aggregation_fleet import INSTRUCTION_TOKENS, Ask, Came, Fleet, Flow, Strategy
from aggregation_models import rates
from aggregation_recordings import CHARS, Question
from msgspec import structs

from mosaic_tasks.mixtures.beliefs import families_of
from mosaic_tasks.mixtures.deciding import Situation, Step, decide
from mosaic_tasks.mixtures.mixture import Choice, Expert, Memory, Mixture
from mosaic_tasks.mixtures.mixture import Question as Asked
from mosaic_tasks.mixtures.selection import chosen
from mosaic_tasks.mixtures.values import Answer, AnswerForm, Gate, Heard, Profile

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


ENOUGH = tuple(percent / 100 for percent in range(50, 96, 5))


@dataclass(frozen=True)
class Adaptive:
    """A mixture of these experts, as far as it is learned: the product's own, which decides what is next.

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
    def mixture(self) -> Mixture:
        """As a workflow would have it."""
        setting, aggregator = self.setting, self.aggregator
        return Mixture(
            tuple(Expert(name, number, self.profiles[name]) for number, name in enumerate(self.experts)),
            form=self.form,
            gate=Gate(confidence=setting.confidence),
            enough=setting.enough,
            most=setting.most,
            aggregator="synthesis" if aggregator else "weighted",
            synthesizer=len(self.experts) if aggregator else None,
            aggregating=self.profiles[aggregator] if aggregator else Profile("aggregator"),
            whole=self.is_final,
        )

    @property
    def order(self) -> tuple[str, ...]:
        """In which experts are asked, as long as nothing else is known."""
        return chosen([self.profiles[name] for name in self.experts], count=self.setting.most)

    @property
    def strategy(self) -> Strategy:
        """Waves of experts until the gate passes, in mid-wave too, and the aggregator where it does not."""
        mixture = self.mixture
        profiles = {expert.name: expert.profile for expert in mixture.experts}
        begun = Memory(begun_ms=0, profiles=profiles)
        families = families_of(profiles)

        def start(question: Question) -> Flow:
            return self._flow(Situation(mixture, begun, {}, now_ms=0, families=families))

        return Strategy("adaptive, one threshold" if self.is_final else "adaptive", start, streams=True)

    def _flow(self, at: Situation) -> Flow:
        """Asks whom the mixture asks, and tells it of each answer as soon as it comes."""
        heard: dict[int, Heard] = {}
        step = decide(at)
        while step.memory.choice is None and not step.failure:
            came = yield self._ask(step, heard)
            question = next(one for one in step.memory.waiting() if self._model(one) == came.model)
            heard[question.index] = heard_of(came, question)
            memory = structs.replace(step.memory, heard=(*step.memory.heard, question.index))
            step = decide(at._replace(memory=memory, heard=dict(heard)))
        chosen = step.memory.choice
        return None if chosen is None else Answer(_key(chosen, heard), chosen.shown)

    def _ask(self, step: Step, heard: Mapping[int, Heard]) -> Ask:
        models = tuple(self._model(question) for question in step.ask)
        if not any(question.kind == "aggregator" for question in step.ask):
            return Ask(models)
        quoted = sum(len(one.text) / CHARS for one in heard.values())
        return Ask(models, quoted_tokens=quoted, aggregates=True)

    def _model(self, question: Asked) -> str:
        return question.expert if question.kind == "expert" else str(self.aggregator)


def _key(choice: Choice, heard: Mapping[int, Heard]) -> str:
    """The key of the answer that was chosen: of whoever said so."""
    said = (one.answer for one in heard.values() if one.answer is not None)
    return next(answer.key for answer in said if answer.shown == choice.shown)


def heard_of(came: Came, question: Asked) -> Heard:
    """What a mixture knows of an answer that came."""
    return Heard(
        question.index,
        question.expert,
        came.model,
        text=came.said.text,
        answer=came.said.early,
        seconds=came.seconds,
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
