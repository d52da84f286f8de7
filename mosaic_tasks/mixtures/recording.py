"""What is told of a mixture when it is over: who was asked and cut off, what they said, what it cost and saved."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mosaic_tasks.mixtures.beliefs import view_of
from mosaic_tasks.mixtures.mixture import Memory, Mixture, Question
from mosaic_tasks.mixtures.values import Heard

MOST_SHOWN = 200
"""Characters of an answer, or of a reason that quotes one: a record is told to everybody who follows the run."""
_LEFT_OUT = " ... "


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of a mixture.

    Attributes:
        answer: as people write it; empty: none that counts.
        is_cut: it was cut off, or not begun, since it was not needed any more.
        problems: why it does not count.
    """

    call: str
    expert: str
    kind: str = "expert"
    round: int = 1
    answer: str = ""
    is_cut: bool = False
    problems: tuple[str, ...] = ()
    failed: str = ""
    tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0


class Vote(msgspec.Struct, frozen=True):
    """How many gave an answer, and how likely it is."""

    answer: str
    votes: int
    probability: float


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A mixture that is over. Long answers are told without their middle: its output has the whole.

    Attributes:
        by: what decided; empty where nothing did.
        why: in words.
        is_best_so_far: a limit was reached before anything was certain.
        agreement: share of the answers that count which say the same as the mixture.
        cut: calls that were cut off or never begun.
        unasked: calls of its last round that were never made.
        relief: what was given up as it began under load, in words.
        skipped_aggregator: a model that aggregates or judges was there and was not needed.
        cost_usd: None where no price is known.
        seconds: from its beginning.
        saved_usd, saved_tokens, saved_s: estimated, against asking everybody and the aggregator: at the average of
            what was heard.
    """

    shown: str = ""
    confidence: float = 0.0
    by: str = ""
    why: str = ""
    is_best_so_far: bool = False
    agreement: float = 0.0
    votes: tuple[Vote, ...] = ()
    rounds: int = 1
    asked: int = 0
    cut: int = 0
    unasked: int = 0
    relief: str = ""
    skipped_aggregator: bool = False
    tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0
    saved_usd: float = 0.0
    saved_tokens: int = 0
    saved_s: float = 0.0
    failure: str = ""
    calls: tuple[Said, ...] = ()


def record_of(
    mixture: Mixture, memory: Memory, heard: Mapping[int, Heard], *, now_ms: int, failure: str = ""
) -> Record:
    """The record of a mixture that has answered, or cannot."""
    choice = memory.choice
    calls = tuple(_said(question, memory, heard) for question in memory.asked)
    last = memory.of_round(memory.round)
    came = [heard[q.index] for q in last if q.index in heard]
    view = view_of(
        came, memory.profiles, mixture.form, planned=mixture.planned, calibration=mixture.calibration
    )
    counted = sum(candidate.votes for candidate in view.candidates)
    costs = [one.cost_usd for one in heard.values() if one.cost_usd is not None]
    judged = any(question.kind != "expert" for question in memory.asked)
    cut, unasked = sum(said.is_cut for said in calls), max(mixture.planned - len(last), 0)
    spared = cut + unasked
    mean = _mean([one for one in heard.values() if not one.failed])
    return Record(
        shown=_short(choice.shown) if choice is not None else "",
        confidence=round(choice.probability, 4) if choice is not None else 0.0,
        by=choice.by if choice is not None else "",
        why=_short(choice.why) if choice is not None else "",
        is_best_so_far=choice is not None and choice.is_early,
        agreement=len(choice.supporters) / counted if choice is not None and counted else 0.0,
        votes=tuple(Vote(_short(c.answer.shown), c.votes, round(c.probability, 4)) for c in view.candidates),
        rounds=memory.round,
        asked=len(memory.asked),
        cut=cut,
        unasked=unasked,
        relief=memory.relief,
        skipped_aggregator=not judged and (mixture.synthesizer is not None or mixture.verifier is not None),
        tokens=sum(one.input_tokens + one.output_tokens for one in heard.values()),
        cost_usd=round(sum(costs), 8) if costs else None,
        seconds=round((now_ms - memory.begun_ms) / 1000, 3),
        saved_usd=round(spared * mean[0], 8),
        saved_tokens=round(spared * mean[1]),
        saved_s=round(mean[2] * (bool(spared) + (not judged and mixture.synthesizer is not None)), 3),
        failure=failure,
        calls=calls,
    )


def _said(question: Question, memory: Memory, heard: Mapping[int, Heard]) -> Said:
    one = heard.get(question.index)
    said = Said(question.call, question.expert, question.kind, question.round)
    if one is None:
        return msgspec.structs.replace(said, is_cut=question.index in memory.cut)
    return msgspec.structs.replace(
        said,
        answer=_short(one.answer.shown) if one.answer is not None else "",
        problems=tuple(one.problems),
        failed=one.failed,
        tokens=one.input_tokens + one.output_tokens,
        cost_usd=one.cost_usd,
        seconds=one.seconds,
    )


def _short(text: str) -> str:
    """Both ends: why an answer was chosen is said before it, or behind it."""
    half = (MOST_SHOWN - len(_LEFT_OUT)) // 2
    return text if len(text) <= MOST_SHOWN else f"{text[:half]}{_LEFT_OUT}{text[-half:]}"


def _mean(heard: list[Heard]) -> tuple[float, float, float]:
    """US dollars, tokens and seconds of a call."""
    count = max(len(heard), 1)
    usd = sum(one.cost_usd or 0.0 for one in heard)
    tokens = sum(one.input_tokens + one.output_tokens for one in heard)
    return usd / count, tokens / count, sum(one.seconds for one in heard) / count


__all__ = ["Record", "Said", "Vote", "record_of"]
