"""A mixture as workers read it, and what it remembers between two answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from mosaic_tasks.mixtures.calibration import Calibration
from mosaic_tasks.mixtures.values import AggregatorKind, AnswerForm, Gate, Profile, Rules

QuestionKind = Literal["expert", "verifier", "aggregator"]
ChoiceBy = Literal[
    "gate", "majority", "weighted", "verify", "build", "rank", "synthesis", "budget", "deadline"
]
ASKED_NAMES = ("kind", "index", "expert", "role", "round", "answers", "open_points", "ask")
"""What the prompts of experts, verifiers and aggregators see besides what the node sees."""
QUOTING_NAMES = ("answers", "open_points", "ask")
"""Those of them in which answers are told: long, so that only prompts get them that read them."""


class Expert(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody who can be asked.

    Attributes:
        node: the number of its node in the plan: its k-th call is `NODE.k`.
        role: what it is to be, in words: its prompt and the aggregator's tell it.
        samples: how often it may be asked in a round.
        layer: the round in which it is asked; 0: in every one.
    """

    name: str
    node: int
    profile: Profile
    role: str = ""
    samples: int = 1
    layer: int = 0


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a mixture may take; None: no limit of its own.

    Attributes:
        tokens: read and written, of all its calls.
        seconds: after so long it answers with the best it has.
    """

    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None


class Mixture(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who is asked, when it is enough, and what becomes of the answers.

    Attributes:
        waves: how many are asked at once; the last number goes on; none: as many as the gate needs at least.
        min_experts: no gate passes before so many have answered.
        rounds: in each but the first, experts see the answers of the one before.
        synthesizer: the node of the model that aggregates, where there is one.
        verifier: the node of the model that judges answers, where there is one.
        whole: experts finish what they write, and the output is the whole of the leading answer; otherwise it is the
            part that was compared, and experts are stopped once that is complete.
        details: the output tells how it came about.
        capability: by which experts are chosen and remembered.
        most: so many experts are asked in a round at most.
        explores: who is asked is drawn by what is known of them, so that those of which little is known are tried too.
        enough: once all experts are heard, a model that aggregates or verifies is asked only where the leading answer
            is less probable.
        aggregating: what is known of the model that aggregates; its answer is one more vote.
        diversity: 0 to 1: how much it counts, for who is asked next, to err in other places.
        quoted_tokens: so much is quoted of answers, to other experts and to the aggregator.
        calibration: of the leader's probability, learned from labelled history.
    """

    experts: tuple[Expert, ...]
    form: AnswerForm = AnswerForm()
    rules: Rules = Rules()
    gate: Gate = Gate()
    waves: tuple[int, ...] = ()
    min_experts: int = 1
    rounds: int = 1
    aggregator: AggregatorKind = "weighted"
    synthesizer: int | None = None
    verifier: int | None = None
    limits: Limits = Limits()
    whole: bool = False
    details: bool = False
    capability: str = ""
    most: int | None = None
    explores: bool = False
    enough: float = 0.65
    aggregating: Profile = Profile("aggregator", quality=0.9)
    diversity: float = 0.0
    quoted_tokens: int = 4096
    calibration: Calibration | None = None

    def of_round(self, number: int) -> tuple[Expert, ...]:
        """Who may be asked in a round, which count from 1."""
        return tuple(expert for expert in self.experts if expert.layer in (0, number))

    @property
    def asks_a_model(self) -> bool:
        """Whether a model aggregates or verifies where no gate passes."""
        if self.aggregator in ("verify", "rank"):
            return self.verifier is not None
        return self.synthesizer is not None

    @property
    def planned(self) -> int:
        """How many answers a round has at most."""
        total = max(sum(e.samples for e in self.of_round(number)) for number in range(1, self.rounds + 1))
        return total if self.most is None else min(total, self.most)


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that the mixture made.

    Attributes:
        index: its number among them.
        about: the answers that a verifier judges, by their indices.
    """

    index: int
    call: str
    expert: str
    kind: QuestionKind = "expert"
    round: int = 1
    about: tuple[int, ...] = ()
    asked_ms: int = 0


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the mixture answers.

    Attributes:
        probability: that it is right, as far as is known.
        by: what decided: the gate, an aggregator, or a limit that was reached; then it is the best so far.
        supporters: the calls that said so.
    """

    value: Any
    shown: str
    probability: float
    by: ChoiceBy
    why: str
    supporters: tuple[int, ...] = ()

    @property
    def is_early(self) -> bool:
        """Whether the mixture ran into a limit."""
        return self.by in ("budget", "deadline")


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a mixture keeps from one session to the next; the answers themselves are outputs of its calls.

    Attributes:
        heard: the indices of the questions that are answered, in the order of the answers.
        cut: those that were not needed any more.
        closing: the experts are heard; a verifier or an aggregator is asked.
        profiles: of the experts, as they were when it began.
        most: so many experts are asked in a round at most, as it began under load; None: as the mixture says.
        relief: what was given up for that, in words.
        seed: of chance, which chooses who is asked.
        failure: why it cannot answer.
    """

    begun_ms: int
    seed: int = 0
    asked: tuple[Question, ...] = ()
    heard: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    round: int = 1
    closing: bool = False
    profiles: dict[str, Profile] = {}
    most: int | None = None
    relief: str = ""
    choice: Choice | None = None
    failure: str = ""

    def of_round(self, number: int) -> list[Question]:
        """The questions to experts in a round, which count from 1."""
        return [question for question in self.asked if question.kind == "expert" and question.round == number]

    def waiting(self) -> tuple[Question, ...]:
        """The questions without an answer that are not cut."""
        over = {*self.heard, *self.cut}
        return tuple(question for question in self.asked if question.index not in over)


__all__ = [
    "ASKED_NAMES",
    "QUOTING_NAMES",
    "Choice",
    "ChoiceBy",
    "Expert",
    "Limits",
    "Memory",
    "Mixture",
    "Question",
    "QuestionKind",
]
