"""What is known in a round, and whom its next wave asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

from msgspec.structs import replace

from mosaic_tasks.mixtures.beliefs import accuracy, view_of
from mosaic_tasks.mixtures.gates import need
from mosaic_tasks.mixtures.mixture import Expert
from mosaic_tasks.mixtures.selection import Left, chosen
from mosaic_tasks.mixtures.situation import Situation
from mosaic_tasks.mixtures.values import Heard, Profile, View


def view_now(at: Situation) -> View:
    """What is known in this round."""
    return view_of(
        _in_order(at),
        at.memory.profiles,
        at.mixture.form,
        planned=at.planned,
        upcoming=_upcoming(at),
        calibration=at.calibration,
        families=at.families,
    )


def view_so_far(at: Situation) -> View:
    """What is known in this round; where no answer of it counts, in the latest one before of which some do."""
    memory = at.memory
    rounds = (at._replace(memory=replace(memory, round=number)) for number in range(memory.round, 0, -1))
    views = (view_now(earlier) for earlier in rounds)
    return next((view for view in views if view.candidates), view_now(at))


def wave(at: Situation, view: View, left: Left) -> tuple[str, ...]:
    """Whom the next wave asks: the most valuable first; those of which nothing is known in the order of the file.

    Args:
        left: of the budget; whom it does not hold is not asked.
    """
    asked = [at.profile(question.expert) for question in at.asked]
    count = min(_size(at, view), at.planned - len(asked))
    chance, missing, taken = _chance(at), _lacking(at), list[Profile]()
    for turn in _turns(at):
        names = chosen(
            list(turn.values()),
            count=count - len(taken),
            asked=[*asked, *taken],
            chance=chance,
            missing=missing,
            left=left,
            diversity=at.mixture.diversity,
        )
        for profile in (turn[name] for name in names):
            left = left.less(profile)
            missing.difference_update(profile.offers)
            taken.append(profile)
        if len(taken) >= count:
            break
    return tuple(profile.name for profile in taken)


def wanted(at: Situation, view: View) -> int:
    """So many more answers there must be at least before asking can stop."""
    counted = sum(candidate.votes for candidate in view.candidates)
    return max(need(at.mixture.gate, view), at.mixture.min_experts - counted, 1)


def _in_order(at: Situation) -> list[Heard]:
    """What was heard in this round, in the order in which it came."""
    order = {index: place for place, index in enumerate(at.memory.heard)}
    came = (question.index for question in at.asked if question.index in order)
    return [at.heard[index] for index in sorted(came, key=order.__getitem__)]


def _chance(at: Situation) -> Random | None:
    """Where it explores; deciding again draws the same."""
    seed = at.memory.seed * 1_000_003 + len(at.memory.asked)
    return Random(seed) if at.mixture.explores else None  # noqa: S311 - no secret


def _size(at: Situation, view: View) -> int:
    """As many as the file says; where it does not, as many as the gate needs at least."""
    waves = at.mixture.waves
    if not waves:
        return wanted(at, view)
    before, total, number = len(at.asked), 0, 0
    while total < before:
        total += waves[min(number, len(waves) - 1)]
        number += 1
    return waves[min(number, len(waves) - 1)]


def _lacking(at: Situation) -> set[str]:
    """What answers say that they lacked, without what those bring who were asked."""
    asked = [question for question in at.memory.asked if question.kind == "expert"]
    missing = {part for q in asked if q.index in at.heard for part in at.heard[q.index].missing}
    return missing.difference(*(at.profile(question.expert).offers for question in asked))


def _turns(at: Situation) -> Iterator[dict[str, Profile]]:
    """Who may still be asked in this round, by name: everybody once more before anybody twice more."""
    asked = Counter(question.expert for question in at.asked)
    able = at.mixture.of_round(at.memory.round)
    for turn in range(max((expert.samples for expert in able), default=0)):
        yield {e.name: _profile(at, e) for e in able if asked[e.name] <= turn < e.samples}


def _profile(at: Situation, expert: Expert) -> Profile:
    return at.memory.profiles.get(expert.name, expert.profile)


def _upcoming(at: Situation) -> Profile | None:
    """Whose answer is next: of those who work, whoever is right most often; where nobody does, who is asked next, as
    far as can be told before it is known what was heard."""
    working = [at.profile(question.expert) for question in at.memory.waiting()]
    if working:
        return max(working, key=accuracy)
    turn = next((turn for turn in _turns(at) if turn), {})
    names = chosen(list(turn.values()), count=1, diversity=at.mixture.diversity)
    return turn[names[0]] if names else None


__all__ = ["view_now", "view_so_far", "wanted", "wave"]
