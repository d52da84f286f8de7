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
from mosaic_tasks.mixtures.selection import Left, chosen
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
    memory = at.memory
    if names := _wave(at, view, _left(at)):
        return _asked(at, memory, [(name, "expert") for name in names])
    if _wave(at, view, Left()):
        return _out_of(at, view, "budget", f"the budget holds no {'more calls' if memory.asked else 'call'}")
    if memory.round < at.mixture.rounds:
        return _next_round(at, view)
    return _close(at, view)


def _next_round(at: Situation, view: View) -> Step:
    """Experts see what was said in this one."""
    later = at._replace(memory=replace(at.memory, round=at.memory.round + 1))
    if names := _wave(later, view_now(later), _left(at)):
        return _asked(later, later.memory, [(name, "expert") for name in names])
    return _out_of(at, view, "budget", "the budget holds no more calls")


def _wave(at: Situation, view: View, left: Left) -> tuple[str, ...]:
    """Whom the next wave asks: the most valuable first; those of which nothing is known in the order of the file."""
    mixture, memory = at.mixture, at.memory
    asked = [q for q in memory.asked if q.kind == "expert" and q.round == memory.round]
    count = min(_wave_size(at, view, asked), mixture.planned - len(asked))
    chance = Random(memory.seed * 1_000_003 + len(memory.asked)) if mixture.explores else None  # noqa: S311 - no secret
    beside = [memory.profiles.get(q.expert, _UNKNOWN) for q in asked]
    lacking, names = _lacking(at), list[str]()
    for turn in _available(mixture, memory, asked):
        profiles = {expert.name: _profile(at, expert) for expert in turn}
        more = chosen(
            list(profiles.values()),
            count=count - len(names),
            asked=beside,
            chance=chance,
            missing=lacking,
            left=left,
            diversity=mixture.diversity,
        )
        for name in more:
            left = left.less(profiles[name])
        beside += [profiles[name] for name in more]
        names += more
    return tuple(names)


def _wave_size(at: Situation, view: View, asked: Sequence[Question]) -> int:
    """As many as the file says; where it does not, as many as the gate needs at least."""
    waves = at.mixture.waves
    if not waves:
        counted = sum(candidate.votes for candidate in view.candidates)
        return max(need(at.mixture.gate, view), at.mixture.min_experts - counted, 1)
    total = number = 0
    while total < len(asked):
        total += waves[min(number, len(waves) - 1)]
        number += 1
    return waves[min(number, len(waves) - 1)]


def _lacking(at: Situation) -> set[str]:
    """What answers say that they lacked, without what those bring who were asked."""
    asked = [q for q in at.memory.asked if q.kind == "expert"]
    missing = {part for q in asked if q.index in at.heard for part in at.heard[q.index].missing}
    return missing.difference(*(at.memory.profiles.get(q.expert, _UNKNOWN).offers for q in asked))


def _available(mixture: Mixture, memory: Memory, asked: Sequence[Question]) -> list[list[Expert]]:
    """Who may still be asked in this round: everybody once more before anybody twice more."""
    times = [
        (expert, sum(q.expert == expert.name for q in asked)) for expert in mixture.of_round(memory.round)
    ]
    most = max((expert.samples for expert, _ in times), default=0)
    return [[expert for expert, before in times if before <= turn < expert.samples] for turn in range(most)]


def _profile(at: Situation, expert: Expert) -> Profile:
    return at.memory.profiles.get(expert.name, expert.profile)


def _upcoming(at: Situation) -> Profile | None:
    """Who is asked next, as far as can be told before it is known what was heard."""
    asked = [q for q in at.memory.asked if q.kind == "expert" and q.round == at.memory.round]
    turns = (turn for turn in _available(at.mixture, at.memory, asked) if turn)
    profiles = {expert.name: _profile(at, expert) for expert in next(turns, [])}
    names = chosen(list(profiles.values()), count=1, diversity=at.mixture.diversity)
    return profiles[names[0]] if names else None


# -- the end -----------------------------------------------------------------------------------------------------


def _close(at: Situation, view: View) -> Step:
    """The experts are heard, and the gate did not pass."""
    mixture = at.mixture
    if not view.candidates:
        return _failed(at)
    kind = mixture.aggregator
    if not mixture.asks_a_model or (kind != "rank" and _is_enough(at, view)):
        return _answered(at, _counted(at, view, "majority" if kind == "majority" else "weighted"))
    if _is_spent(at):
        return _out_of(at, view, "budget", "the budget holds no more calls")
    closing = replace(at.memory, closing=True)
    if kind not in ("verify", "rank"):
        return _asked(at, closing, [("aggregator", "aggregator")])
    abouts = [candidate.indices[:1] for candidate in view.candidates]
    if kind == "rank":
        abouts = [(index,) for candidate in view.candidates for index in candidate.indices]
    return _asked(at, closing, [("verifier", "verifier")] * len(abouts), abouts)


def _is_enough(at: Situation, view: View) -> bool:
    """Whether the leader is sure enough to ask no aggregator, once all experts are heard."""
    return view.leader is not None and view.leader.probability >= at.mixture.enough


def _counted(at: Situation, view: View, kind: ChoiceBy) -> Choice:
    """The answer that most gave, or that weighs most; a tie goes to the weight, then to who came first."""
    leader = (majority(view) if kind == "majority" else view.leader) or view.candidates[0]
    total = sum(candidate.votes for candidate in view.candidates)
    why = f"{leader.votes} of {total} said {leader.answer.shown!r}, and no gate passed"
    if at.mixture.asks_a_model and not at.memory.closing:
        why += f"; it is right with probability {leader.probability:.2f}, so that no model is asked about it"
    return _choice(leader, kind, why)


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
    counted = _counted(at, view, "weighted")
    return replace(counted, why=f"{counted.why}; the verifier judged nothing")


def _synthesised(at: Situation, view: View, heard: Heard) -> Choice:
    """What the aggregator wrote; where it failed, what the experts' votes say."""
    if heard.answer is None:
        counted = _counted(at, view, "weighted")
        reason = heard.failed or f"its answer is {', '.join(heard.problems) or 'unreadable'}"
        return replace(counted, why=f"{counted.why}; the aggregator gave nothing: {reason}")
    by: ChoiceBy = "build" if at.mixture.aggregator == "build" else "synthesis"
    after = _with_vote(at, heard)
    leader = after.leader
    if at.mixture.whole or leader is None or leader.answer.key == heard.answer.key:
        probability = leader.probability if leader is not None else 0.0
        supporters = next((c.indices for c in view.candidates if c.answer.key == heard.answer.key), ())
        why = "no gate passed, the aggregator decided"
        return Choice(heard.answer.value, heard.answer.shown, probability, by, why, supporters)
    why = f"the aggregator said {heard.answer.shown!r}, and {leader.answer.shown!r} weighs more all the same"
    return replace(_choice(leader, "weighted", why), supporters=leader.indices)


def _with_vote(at: Situation, aggregated: Heard) -> View:
    """What is known when the aggregator's answer is one more vote."""
    memory = at.memory
    asked = [q for q in memory.asked if q.kind == "expert" and q.round == memory.round]
    heard = [at.heard[q.index] for q in asked if q.index in at.heard]
    profiles = {**memory.profiles, aggregated.expert: at.mixture.aggregating}
    return view_of(
        [*heard, aggregated], profiles, at.mixture.form, planned=len(heard) + 1, calibration=at.calibration
    )


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
