"""What becomes of the answers once all experts are heard and no gate passed: they are counted, or a model judges or
aggregates them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mosaic_tasks.mixtures.aggregators import best_of, majority, supported
from mosaic_tasks.mixtures.beliefs import view_of
from mosaic_tasks.mixtures.mixture import Choice, ChoiceBy, Question
from mosaic_tasks.mixtures.situation import Situation
from mosaic_tasks.mixtures.values import Candidate, Heard, View


def is_settled(at: Situation, view: View) -> bool:
    """Whether no model is asked: there is none, or the leader is sure enough without it. Ranking always asks."""
    mixture, leader = at.mixture, view.leader
    if not mixture.asks_a_model:
        return True
    return mixture.aggregator != "rank" and leader is not None and leader.probability >= mixture.enough


def abouts(at: Situation, view: View) -> list[tuple[int, ...]]:
    """What a verifier judges, a call each: every answer once, or, to rank them, what every call said."""
    if at.mixture.aggregator == "rank":
        return [(index,) for candidate in view.candidates for index in candidate.indices]
    return [candidate.indices[:1] for candidate in view.candidates]


def settled(at: Situation, view: View) -> Choice:
    """What the answers come to where no model is asked about them."""
    counted_ = counted(view, "majority" if at.mixture.aggregator == "majority" else "weighted")
    if not at.mixture.asks_a_model:
        return counted_
    sure = f"it is right with probability {counted_.probability:.2f}, so that no model is asked about it"
    return replace(counted_, why=f"{counted_.why}; {sure}")


def counted(view: View, kind: ChoiceBy) -> Choice:
    """The answer that most gave, or that weighs most; a tie goes to the weight, then to who came first."""
    leader = (majority(view) if kind == "majority" else view.leader) or view.candidates[0]
    total = sum(candidate.votes for candidate in view.candidates)
    return choice_of(
        leader, kind, f"{leader.votes} of {total} said {leader.answer.shown!r}, and no gate passed"
    )


def judged(at: Situation, view: View, questions: Sequence[Question]) -> Choice:
    """What the verifier holds for the best: of all calls (`rank`), or of the answers that it supports (`verify`)."""
    told = {index: at.heard[question.index].support for question in questions for index in question.about}
    scores = {index: support for index, support in told.items() if support is not None}
    found = _ranked(at, view, scores) if at.mixture.aggregator == "rank" else _supported(view, scores)
    if found is not None:
        return found
    without = counted(view, "weighted")
    return replace(without, why=f"{without.why}; the verifier judged nothing")


def _ranked(at: Situation, view: View, scores: dict[int, float]) -> Choice | None:
    of = {index: candidate for candidate in view.candidates for index in candidate.indices}
    best = best_of([at.heard[index] for index in of], scores)
    if best is None or best.answer is None:
        return None
    why = f"the verifier scored it {scores[best.index]:.2f}, the most"
    return replace(choice_of(of[best.index], "rank", why), value=best.answer.value)


def _supported(view: View, scores: dict[int, float]) -> Choice | None:
    kept = supported(view, scores)
    if kept is None:
        return None
    support = max(scores[index] for index in kept.indices if index in scores)
    return choice_of(kept, "verify", f"the verifier supports it with {support:.2f}")


def synthesised(at: Situation, view: View, heard: Heard) -> Choice:
    """What the aggregator wrote, or what weighs more all the same; where it failed, what the experts' votes say."""
    if heard.answer is None:
        without = counted(view, "weighted")
        reason = heard.failed or f"its answer is {', '.join(heard.problems) or 'unreadable'}"
        return replace(without, why=f"{without.why}; the aggregator gave nothing: {reason}")
    after = _with_vote(at, heard)
    said = next(one for one in after.candidates if heard.index in one.indices)
    leader = after.leader
    if leader is None or leader is said or at.mixture.whole:
        return _written(at, said, heard)
    why = f"the aggregator said {heard.answer.shown!r}, and {leader.answer.shown!r} weighs more all the same"
    return choice_of(leader, "weighted", why)


def _written(at: Situation, said: Candidate, heard: Heard) -> Choice:
    """The aggregator's own words; experts who said the same support them."""
    assert heard.answer is not None
    by: ChoiceBy = "build" if at.mixture.aggregator == "build" else "synthesis"
    supporters = tuple(index for index in said.indices if index != heard.index)
    why = "no gate passed, the aggregator decided"
    return Choice(heard.answer.value, heard.answer.shown, said.probability, by, why, supporters)


def _with_vote(at: Situation, aggregated: Heard) -> View:
    """What is known when the aggregator's answer is one more vote."""
    heard = [at.heard[question.index] for question in at.asked if question.index in at.heard]
    profiles = {**at.memory.profiles, aggregated.expert: at.mixture.aggregating}
    planned, form = len(heard) + 1, at.mixture.form
    return view_of([*heard, aggregated], profiles, form, planned=planned, calibration=at.calibration)


def choice_of(candidate: Candidate, by: ChoiceBy, why: str) -> Choice:
    """An answer that was given, as the mixture's."""
    answer = candidate.answer
    return Choice(answer.value, answer.shown, candidate.probability, by, why, candidate.indices)


__all__ = ["abouts", "choice_of", "counted", "is_settled", "judged", "settled", "synthesised"]
