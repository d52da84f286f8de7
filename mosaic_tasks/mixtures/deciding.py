"""What a mixture does next: whom it asks, whom it cuts off, or what it answers. Pure: what is remembered and heard goes
in, the next step comes out.

A round asks experts in waves. As soon as the gate passes, in mid-wave too, whoever still works is cut off and the
leading answer is the mixture's; no aggregator is asked. Where it never passes, the next round shows the experts each
other's answers, and after the last one the aggregator decides: by counting, by a verifier's judgement, or by a model.
A limit that is reached makes the best answer so far the mixture's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from mosaic_tasks.mixtures.aggregators import best_of, majority, supported
from mosaic_tasks.mixtures.beliefs import Calibration, view_of
from mosaic_tasks.mixtures.gates import need, verdict
from mosaic_tasks.mixtures.mixture import Choice, ChoiceBy, Expert, Memory, Mixture, Question, QuestionKind
from mosaic_tasks.mixtures.selection import Left, Terms, chosen
from mosaic_tasks.mixtures.values import Candidate, Heard, Profile, View

Heards = Mapping[int, Heard]
"""What came of the questions, by their index."""


class Step(NamedTuple):
    """What a mixture does next.

    Attributes:
        memory: what it keeps.
        ask: the questions that are new in it.
        cut: calls that are not needed any more.
        need: so many more answers may change something.
        failure: it cannot answer, for this reason.
    """

    memory: Memory
    ask: Sequence[Question] = ()
    cut: Sequence[str] = ()
    need: int = 1
    failure: str = ""


class Situation(NamedTuple):
    """A mixture at one moment.

    Attributes:
        heard: what came of its questions.
        now_ms: by the clock of the server.
        calibration: of the leader's probability, where there is history.
        families: of the experts, where the caller keeps them; see `families_of`.
    """

    mixture: Mixture
    memory: Memory
    heard: Heards
    now_ms: int
    calibration: Calibration | None = None
    families: Mapping[str, str] | None = None


def decide(at: Situation) -> Step:
    """The next step; deciding again, after a crash, gives the same one."""
    mixture, memory = at.mixture, at.memory
    if memory.choice is not None or memory.failure:
        return Step(memory, failure=memory.failure)
    if memory.closing:
        return _closing(at)
    view = view_now(at)
    counted = sum(candidate.votes for candidate in view.candidates)
    if counted >= mixture.min_experts and (passed := verdict(mixture.gate, view)).passed:
        assert view.leader is not None
        return _answered(at, _choice(view.leader, "gate", passed.why))
    if _is_late(at):
        return _out_of(at, view, "deadline", f"the deadline of {mixture.limits.seconds:g} s has passed")
    if waiting := memory.waiting():
        wanted = max(need(mixture.gate, view), mixture.min_experts - counted, 1)
        return Step(memory, need=min(wanted, len(waiting)))
    return _next_wave(at, view)


def view_now(at: Situation) -> View:
    """What is known in this round."""
    mixture, memory = at.mixture, at.memory
    round_ = [q for q in memory.asked if q.kind == "expert" and q.round == memory.round]
    order = {index: place for place, index in enumerate(memory.heard)}
    came = sorted((q.index for q in round_ if q.index in order), key=order.__getitem__)
    heard = [at.heard[index] for index in came]
    return view_of(
        heard,
        memory.profiles,
        mixture.form,
        planned=mixture.planned,
        upcoming=_upcoming(at),
        calibration=at.calibration,
        families=at.families,
    )


def spent(memory: Memory, heard: Heards) -> tuple[float, int]:
    """US dollars and tokens that the questions took: what they used, or are expected to use."""
    usd, tokens = 0.0, 0
    for question in memory.asked:
        one = heard.get(question.index)
        if one is not None:
            usd += one.cost_usd or 0.0
            tokens += one.input_tokens + one.output_tokens
        elif question.index not in memory.cut:
            profile = memory.profiles.get(question.expert, _UNKNOWN)
            usd, tokens = usd + profile.usd, tokens + int(profile.tokens)
    return usd, tokens


_UNKNOWN = Profile("")


def _next_wave(at: Situation, view: View) -> Step:
    """Everybody who was asked has answered: ask more, or begin the next round, or come to an end."""
    mixture, memory = at.mixture, at.memory
    if names := _wave(at):
        return _asked(at, memory, [(name, "expert") for name in names])
    if _is_spent(at) and not memory.asked:
        return _out_of(at, view, "budget", "the budget holds no call")
    if _is_spent(at) and mixture.synthesizer is not None:
        return _out_of(at, view, "budget", "the budget holds no more calls")
    if memory.round < mixture.rounds and not _is_spent(at):
        later = replace(memory, round=memory.round + 1)
        fresh = at._replace(memory=later)
        if names := _wave(fresh):
            return _asked(fresh, later, [(name, "expert") for name in names])
    return _close(at, view)


def _wave(at: Situation) -> tuple[str, ...]:
    """Whom the next wave asks."""
    mixture, memory = at.mixture, at.memory
    asked = [q for q in memory.asked if q.kind == "expert" and q.round == memory.round]
    count = mixture.waves[min(_wave_number(asked, mixture.waves), len(mixture.waves) - 1)]
    count = min(count, mixture.planned - len(asked))
    if count <= 0:
        return ()
    profiles = [_profile(at, expert) for expert in _available(mixture, memory, asked)]
    chance = Random(memory.seed * 1_000_003 + len(memory.asked))  # noqa: S311 - no secret: deciding again gives the same
    return _picked(at, profiles, [memory.profiles.get(q.expert, _UNKNOWN) for q in asked], count, chance)


def _picked(
    at: Situation, profiles: Sequence[Profile], asked: Sequence[Profile], count: int, chance: Random
) -> tuple[str, ...]:
    """The experts in the order of the file, or, where they are chosen from the pool, the most valuable; before them
    those who bring what answers lacked."""
    left, lacking = _left(at), _lacking(at)
    if at.mixture.most is not None:
        return chosen(
            profiles,
            count=count,
            asked=asked,
            chance=chance,
            terms=Terms(),
            missing=lacking,
            left=left,
            diversity=at.mixture.diversity,
        )
    names, able = list[str](), list(profiles)
    while len(names) < count and (fitting := [one for one in able if left.holds(one)]):
        first = next((one for one in fitting if lacking.intersection(one.offers)), fitting[0])
        names.append(first.name)
        able.remove(first)
        lacking.difference_update(first.offers)
        left = left.less(first)
    return tuple(names)


def _lacking(at: Situation) -> set[str]:
    """What answers say that they lacked, without what those bring who were asked."""
    asked = [q for q in at.memory.asked if q.kind == "expert"]
    missing = {part for q in asked if q.index in at.heard for part in at.heard[q.index].missing}
    return missing.difference(*(at.memory.profiles.get(q.expert, _UNKNOWN).offers for q in asked))


def _wave_number(asked: Sequence[Question], waves: Sequence[int]) -> int:
    """How many waves were asked already."""
    total = number = 0
    while total < len(asked):
        total += waves[min(number, len(waves) - 1)]
        number += 1
    return number


def _available(mixture: Mixture, memory: Memory, asked: Sequence[Question]) -> list[Expert]:
    """An entry for each time that an expert may still be asked in this round."""
    times = [
        (expert, sum(q.expert == expert.name for q in asked)) for expert in mixture.of_round(memory.round)
    ]
    most = max((expert.samples for expert, _ in times), default=0)
    return [expert for turn in range(most) for expert, before in times if before <= turn < expert.samples]


def _profile(at: Situation, expert: Expert) -> Profile:
    return at.memory.profiles.get(expert.name, expert.profile)


def _upcoming(at: Situation) -> Profile | None:
    asked = [q for q in at.memory.asked if q.kind == "expert" and q.round == at.memory.round]
    return next((_profile(at, e) for e in _available(at.mixture, at.memory, asked)), None)


# -- the end -----------------------------------------------------------------------------------------------------


def _close(at: Situation, view: View) -> Step:
    """The experts are heard, and the gate did not pass."""
    mixture = at.mixture
    if not view.candidates:
        return _failed(at)
    kind = mixture.aggregator
    if kind in ("verify", "rank") and mixture.verifier is not None:
        abouts = [candidate.indices[:1] for candidate in view.candidates]
        if kind == "rank":
            abouts = [(index,) for candidate in view.candidates for index in candidate.indices]
        closing = replace(at.memory, closing=True)
        return _asked(at, closing, [("verifier", "verifier")] * len(abouts), abouts)
    if mixture.synthesizer is not None:
        return _asked(at, replace(at.memory, closing=True), [("aggregator", "aggregator")])
    return _answered(at, _counted(view, kind if kind in ("majority", "weighted") else "weighted"))


def _counted(view: View, kind: ChoiceBy) -> Choice:
    """The answer that most gave, or that weighs most; a tie goes to the weight, then to who came first."""
    leader = (majority(view) if kind == "majority" else view.leader) or view.candidates[0]
    total = sum(candidate.votes for candidate in view.candidates)
    return _choice(
        leader, kind, f"{leader.votes} of {total} said {leader.answer.shown!r}, and no gate passed"
    )


def _closing(at: Situation) -> Step:
    """A verifier or an aggregator was asked."""
    view = view_now(at)
    if _is_late(at):
        return _out_of(at, view, "deadline", f"the deadline of {at.mixture.limits.seconds:g} s has passed")
    if waiting := at.memory.waiting():
        return Step(at.memory, need=len(waiting))
    judged = [q for q in at.memory.asked if q.kind != "expert"]
    if judged[-1].kind == "aggregator":
        return _answered(at, _synthesised(at, view, at.heard[judged[-1].index]))
    return _answered(at, _judged(at, view, judged))


def _judged(at: Situation, view: View, judged: Sequence[Question]) -> Choice:
    """What the verifier holds for the best: of all calls (`rank`), or of the answers that it supports (`verify`)."""
    told = {index: at.heard[question.index].support for question in judged for index in question.about}
    scores = {index: support for index, support in told.items() if support is not None}
    of = {index: candidate for candidate in view.candidates for index in candidate.indices}
    if at.mixture.aggregator == "rank":
        best = best_of([at.heard[index] for index in of], scores)
        if best is not None and best.answer is not None:
            why = f"the verifier scored it {scores[best.index]:.2f}, the most"
            return replace(_choice(of[best.index], "rank", why), value=best.answer.value)
    elif (kept := supported(view, scores)) is not None:
        support = max(scores[index] for index in kept.indices if index in scores)
        return _choice(kept, "verify", f"the verifier supports it with {support:.2f}")
    counted = _counted(view, "weighted")
    return replace(counted, why=f"{counted.why}; the verifier judged nothing")


def _synthesised(at: Situation, view: View, heard: Heard) -> Choice:
    """What the aggregator wrote; where it failed, what the experts' votes say."""
    if heard.answer is None:
        counted = _counted(view, "weighted")
        reason = heard.failed or f"its answer is {', '.join(heard.problems) or 'unreadable'}"
        return replace(counted, why=f"{counted.why}; the aggregator gave nothing: {reason}")
    same = next((c for c in view.candidates if c.answer.key == heard.answer.key), None)
    by: ChoiceBy = "build" if at.mixture.aggregator == "build" else "synthesis"
    probability = same.probability if same is not None else 0.0
    supporters = same.indices if same is not None else ()
    why = "no gate passed, the aggregator decided"
    return Choice(heard.answer.value, heard.answer.shown, probability, by, why, supporters)


def _choice(candidate: Candidate, by: ChoiceBy, why: str) -> Choice:
    answer = candidate.answer
    return Choice(answer.value, answer.shown, candidate.probability, by, why, candidate.indices)


def _answered(at: Situation, choice: Choice) -> Step:
    """It answers, and whoever still works is cut off."""
    waiting = at.memory.waiting()
    cut = (*at.memory.cut, *(question.index for question in waiting))
    return Step(replace(at.memory, choice=choice, cut=cut), cut=[question.call for question in waiting])


def _out_of(at: Situation, view: View, by: ChoiceBy, why: str) -> Step:
    """A limit is reached: the best answer so far, if there is one."""
    if view.leader is None:
        return _failed(at, why)
    return _answered(at, _choice(view.leader, by, f"{why}; {view.leader.answer.shown!r} is the best so far"))


def _failed(at: Situation, why: str = "") -> Step:
    """No answer counts: why not, by expert."""
    waiting = at.memory.waiting()
    reasons = [_reason(q, at.heard[q.index]) for q in at.memory.asked if q.index in at.heard]
    told = why or ("no answer of its experts counts" if reasons else "it could ask nobody")
    failure = told + (f": {'; '.join(reasons)}" if reasons else "")
    memory = replace(at.memory, cut=(*at.memory.cut, *(q.index for q in waiting)), failure=failure)
    return Step(memory, cut=[q.call for q in waiting], failure=failure)


def _reason(question: Question, heard: Heard) -> str:
    told = heard.failed or ", ".join(heard.problems) or "no answer could be read"
    return f"{question.expert}: {told}"


# -- limits ------------------------------------------------------------------------------------------------------


def due_ms(mixture: Mixture, memory: Memory) -> int | None:
    """When it must answer, by the clock of the server."""
    seconds = mixture.limits.seconds
    return None if seconds is None else memory.begun_ms + int(seconds * 1000)


def _is_late(at: Situation) -> bool:
    due = due_ms(at.mixture, at.memory)
    return due is not None and at.now_ms >= due


def _left(at: Situation) -> Left:
    """What its budget still holds."""
    usd, tokens = spent(at.memory, at.heard)
    limits, left = at.mixture.limits, Left()
    if limits.usd is not None:
        left = replace(left, usd=limits.usd - usd if limits.usd > usd else -1.0)
    if limits.tokens is not None:
        left = replace(left, tokens=limits.tokens - tokens if limits.tokens > tokens else -1.0)
    return left


def _is_spent(at: Situation) -> bool:
    """Whether the budget holds nothing more."""
    left = _left(at)
    return left.usd < 0 or left.tokens < 0


# -- questions ---------------------------------------------------------------------------------------------------


def _asked(
    at: Situation,
    memory: Memory,
    asked: Sequence[tuple[str, QuestionKind]],
    abouts: Sequence[tuple[int, ...]] | None = None,
) -> Step:
    """Makes questions, whose calls count on from those that their nodes have."""
    nodes = _nodes(at.mixture)
    calls = [question.call for question in memory.asked]
    made: list[Question] = []
    for place, (name, kind) in enumerate(asked):
        number = nodes[name]
        before = sum(call.startswith(f"{number}.") for call in calls)
        calls.append(f"{number}.{before}")
        about = abouts[place] if abouts is not None else ()
        index = len(memory.asked) + place
        made.append(Question(index, calls[-1], name, kind, memory.round, about, at.now_ms))
    step = Step(replace(memory, asked=(*memory.asked, *made)), made)
    after = at._replace(memory=step.memory)
    wanted = max(need(at.mixture.gate, view_now(after)), at.mixture.min_experts, 1)
    return step._replace(need=min(wanted, len(made)) if asked[0][1] == "expert" else len(made))


def _nodes(mixture: Mixture) -> dict[str, int]:
    nodes = {expert.name: expert.node for expert in mixture.experts}
    judges = (("verifier", mixture.verifier), ("aggregator", mixture.synthesizer))
    return nodes | {name: number for name, number in judges if number is not None}


__all__ = ["Situation", "Step", "decide", "due_ms", "spent", "view_now"]
