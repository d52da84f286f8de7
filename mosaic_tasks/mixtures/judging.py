"""What the end of a mixture, or a score of its answer, says of its experts.

A judgement is made of *worlds*: each says of some calls how right they were, 0 to 1, and has a weight. A score of 0.7
is two of them: with 0.7 the answer was right, with 0.3 it was not. So two experts who said the same are right together
or wrong together in each, and are counted so as a pair.

An expert's calls of one mixture are one outcome, their mean: samples of one question are no independent ones. Answers
that do not count are in no world; see `experience`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from mosaic_tasks.mixtures.agreement import groups
from mosaic_tasks.mixtures.beliefs import features
from mosaic_tasks.mixtures.calibration import Outcome
from mosaic_tasks.mixtures.experience import Pair, identity
from mosaic_tasks.mixtures.mixture import Memory, Mixture, Question
from mosaic_tasks.mixtures.situation import Situation
from mosaic_tasks.mixtures.values import Answer, Heard, Profile
from mosaic_tasks.mixtures.waves import view_now

VERIFIED = 0.3
"""Weight of what a verifier says, against a score: it is a model that errs, on hard questions with the experts."""
SYNTHESISED = 0.2
"""Weight of agreeing with what an aggregator wrote: less, since it had the experts' answers before it."""

World = Mapping[int, float]
"""How right calls were, by their index; of the others nothing is said."""
Worlds = Sequence[tuple[float, World]]
"""Each with its weight."""


class Judged(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is to be added to the experience of an expert; its attributes are named as there."""

    right: float = 0.0
    wrong: float = 0.0
    weak_right: float = 0.0
    weak_wrong: float = 0.0
    together: dict[str, Pair] = {}


class Observed(msgspec.Struct, frozen=True):
    """A call that was answered.

    Attributes:
        expert: its identity.
        quality: what the mixture took it for.
        is_faulty: its answer does not count.
        seconds, tokens: None: not known.
        usd: None: no price is known.
    """

    expert: str
    quality: float
    is_faulty: bool
    seconds: float | None = None
    tokens: int | None = None
    usd: float | None = None


class Ended(msgspec.Struct, frozen=True):
    """A mixture that is over, with what it heard, by the indices of its questions."""

    mixture: Mixture
    memory: Memory
    heard: Mapping[int, Heard]


def observed(over: Ended) -> list[Observed]:
    """The experts' calls that were answered, for better or worse; failures of engines tell nothing of an expert."""
    plain = {expert.name: expert.profile for expert in over.mixture.experts}
    return [
        _observed(over.heard[q.index], plain[q.expert])
        for q in _asked(over)
        if _is_telling(over.heard[q.index])
    ]


def by_models(over: Ended) -> dict[str, Judged]:
    """What its own verifier and aggregator say of its experts, by identity.

    These are no pairs: what both say of two experts is too uncertain to tell whether they err together.
    """
    worlds = [(VERIFIED, _verified(over))]
    if (written := _written(over)) is not None:
        worlds.append((SYNTHESISED, _agreeing(over, _same(over, written))))
    sums = _summed(worlds, over)
    return {key: Judged(weak_right=one.right, weak_wrong=one.wrong) for key, one in sums.items()}


def by_score(over: Ended, value: float, truth: Answer | None = None) -> dict[str, Judged]:
    """What a score of its answer says of its experts, by identity.

    Args:
        value: how right its answer was, 0 to 1. Right: who said so was right, the others were not. Not right: who said
            so was not; of the others nothing is known.
        truth: where the right answer is known, each is judged by it, whatever the value.
    """
    return _summed(_worlds(over, value, truth), over)


def right_calls(over: Ended, value: float, truth: Answer | None = None) -> dict[int, float]:
    """How right each call was by such a score; those of which it says nothing are left out."""
    found: dict[int, list[tuple[float, float]]] = {}
    for weight, world in _worlds(over, value, truth):
        for index, right in world.items():
            found.setdefault(index, []).append((weight, right))
    return {index: _mean(parts) for index, parts in found.items()}


def labelled(over: Ended, value: float, truth: Answer | None = None) -> Outcome | None:
    """A line for the history of a calibration, which is about the leading answer. None where nothing is known of that:
    another one was given, and was not right."""
    view = view_now(Situation(over.mixture, over.memory, over.heard, over.memory.begun_ms))
    if view.leader is None:
        return None
    right = right_calls(over, value, truth).get(view.leader.indices[0])
    if right is None:
        return None
    return Outcome(features(view.candidates, len(view.order)), round(right, 4))


def _worlds(over: Ended, value: float, truth: Answer | None) -> Worlds:
    if truth is not None:
        return [(1.0, _agreeing(over, _same(over, truth)))]
    supporters = _supporters(over)
    worlds = [(value, _agreeing(over, supporters)), (1.0 - value, dict.fromkeys(supporters, 0.0))]
    return [(weight, world) for weight, world in worlds if weight]


def _supporters(over: Ended) -> frozenset[int]:
    """The calls that said what the mixture answered, in whichever round."""
    choice = over.memory.choice
    assert choice is not None
    written = _written(over)
    known = [over.heard[index].answer for index in choice.supporters] if written is None else [written]
    return frozenset(choice.supporters) | (
        _same(over, known[0]) if known and known[0] is not None else frozenset()
    )


def _written(over: Ended) -> Answer | None:
    """What an aggregator wrote that decided."""
    choice = over.memory.choice
    if choice is None or choice.by not in ("synthesis", "build"):
        return None
    asked = [q for q in over.memory.asked if q.kind == "aggregator"]
    return over.heard[asked[-1].index].answer if asked else None


def _verified(over: Ended) -> World:
    """What a verifier said of the answers, and of those that say the same."""
    said = {
        index: one.support
        for q in over.memory.asked
        if q.kind == "verifier" and (one := over.heard.get(q.index)) is not None and one.support is not None
        for index in q.about
    }
    alike: dict[int, float] = {}
    for index, support in said.items():
        answer = over.heard[index].answer
        if answer is not None:
            alike |= dict.fromkeys(_same(over, answer), support)
    return {**alike, **said}


def _agreeing(over: Ended, right: Collection[int]) -> World:
    """The world in which these calls were right, and no others."""
    return {index: float(index in right) for index in _answers(over)}


def _same(over: Ended, answer: Answer) -> frozenset[int]:
    """The calls that say the same as an answer."""
    answers = _answers(over)
    places = list(answers)
    found = groups([*answers.values(), answer], over.mixture.form)
    members = next(group.members for group in found if len(places) in group.members)
    return frozenset(places[place] for place in members if place < len(places))


def _answers(over: Ended) -> dict[int, Answer]:
    """The answers of experts that count."""
    answers = {q.index: over.heard[q.index].answer for q in _asked(over)}
    return {index: answer for index, answer in answers.items() if answer is not None}


def _asked(over: Ended) -> Iterable[Question]:
    """The questions to experts that were answered."""
    return (q for q in over.memory.asked if q.kind == "expert" and q.index in over.heard)


def _summed(worlds: Worlds, over: Ended) -> dict[str, Judged]:
    experts = {expert.name: identity(expert.profile) for expert in over.mixture.experts}
    of = {q.index: experts[q.expert] for q in _asked(over)}
    sums: dict[str, list[float]] = {}
    pairs: dict[str, dict[str, Pair]] = {}
    for weight, world in worlds:
        shares = _shares(world, of)
        for place, (key, right) in enumerate(shares):
            sums[key] = [
                a + b
                for a, b in zip(sums.get(key, (0, 0)), (weight * right, weight * (1 - right)), strict=True)
            ]
            for other, also in shares[place + 1 :]:
                both, judged = pairs.setdefault(key, {}).get(other, (0.0, 0.0))
                pairs[key][other] = (both + weight * (1 - right) * (1 - also), judged + weight)
    return {key: Judged(right, wrong, together=pairs.get(key, {})) for key, (right, wrong) in sums.items()}


def _shares(world: World, of: Mapping[int, str]) -> list[tuple[str, float]]:
    """How right each expert was, by name: a pair is kept at the one that comes first."""
    rights: dict[str, list[tuple[float, float]]] = {}
    for index, right in world.items():
        rights.setdefault(of[index], []).append((1.0, right))
    return [(key, _mean(rights[key])) for key in sorted(rights)]


def _mean(parts: Sequence[tuple[float, float]]) -> float:
    """Of values, each behind its weight."""
    return sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts)


def _observed(one: Heard, profile: Profile) -> Observed:
    expert, is_faulty = identity(profile), one.answer is None
    if one.failed:  # of what it took, nothing is told
        return Observed(expert, profile.quality, is_faulty)
    tokens = one.input_tokens + one.output_tokens
    return Observed(expert, profile.quality, is_faulty, one.seconds, tokens, one.cost_usd)


def _is_telling(one: Heard) -> bool:
    return not one.failed or bool(one.problems)


__all__ = ["Ended", "Judged", "Observed", "by_models", "by_score", "labelled", "observed", "right_calls"]
