"""What a mixture does next: whom it asks, whom it cuts off, or what it answers. Pure: what is remembered and heard goes
in, the next step comes out.

A round asks experts in waves. As soon as the gate passes, in mid-wave too, whoever still works is cut off and the
leading answer is the mixture's; no aggregator is asked. Where it never passes, the next round shows the experts each
other's answers, and after the last one the aggregator decides: by counting, by a verifier's judgement, or by a model.
A limit that is reached makes the best answer so far the mixture's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from mosaic_tasks.mixtures.closing import abouts, choice_of, counted, is_settled, judged, settled, synthesised
from mosaic_tasks.mixtures.gates import verdict
from mosaic_tasks.mixtures.mixture import Choice, ChoiceBy, Memory, Mixture, Question, QuestionKind
from mosaic_tasks.mixtures.selection import Left
from mosaic_tasks.mixtures.situation import Situation, due_ms
from mosaic_tasks.mixtures.values import Heard, View
from mosaic_tasks.mixtures.waves import view_now, view_so_far, wanted, wave


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


def decide(at: Situation) -> Step:
    """The next step; deciding again, after a crash, gives the same one."""
    memory = at.memory
    if memory.choice is not None or memory.failure:
        return Step(memory, failure=memory.failure)
    view = view_now(at)
    if not memory.closing and (choice := _gated(at, view)) is not None:
        return _answered(at, choice)
    if at.is_late:
        return _out_of(at, "deadline", f"the deadline of {at.mixture.limits.seconds:g} s has passed")
    if waiting := memory.waiting():
        need = len(waiting) if memory.closing else min(wanted(at, view), len(waiting))
        return Step(memory, need=need)
    return _closing(at, view) if memory.closing else _next_wave(at, view)


def _gated(at: Situation, view: View) -> Choice | None:
    """The leading answer, where the gate passes and enough have answered."""
    votes = sum(candidate.votes for candidate in view.candidates)
    passed = verdict(at.mixture.gate, view)
    if view.leader is None or votes < at.mixture.min_experts or not passed.passed:
        return None
    return choice_of(view.leader, "gate", passed.why)


def _next_wave(at: Situation, view: View) -> Step:
    """Everybody who was asked has answered: ask more, or begin the next round, or come to an end."""
    if names := wave(at, view, at.left):
        return _asked(at, at.memory, [(name, "expert") for name in names])
    if wave(at, view, Left()):
        return _out_of_budget(at)
    number = _next_round(at)
    return _close(at, view) if number is None else _begun(at, number)


def _next_round(at: Situation) -> int | None:
    """The next one in which somebody may be asked: between layers there may be rounds of nobody."""
    later = range(at.memory.round + 1, at.mixture.rounds + 1)
    return next((number for number in later if at.mixture.of_round(number)), None)


def _begun(at: Situation, number: int) -> Step:
    """A round: experts see what was said in the one before."""
    later = at._replace(memory=replace(at.memory, round=number))
    if names := wave(later, view_now(later), at.left):
        return _asked(later, later.memory, [(name, "expert") for name in names])
    return _out_of_budget(at)


def _close(at: Situation, view: View) -> Step:
    """The experts are heard, and the gate did not pass."""
    if not view.candidates:
        return _fallen_back(at)
    if is_settled(at, view):
        return _answered(at, settled(at, view))
    if at.is_spent:
        return _out_of_budget(at)
    closing = replace(at.memory, closing=True)
    if at.mixture.aggregator not in ("verify", "rank"):
        return _asked(at, closing, [("aggregator", "aggregator")])
    about = abouts(at, view)
    return _asked(at, closing, [("verifier", "verifier")] * len(about), about)


def _closing(at: Situation, view: View) -> Step:
    """The verifier or the aggregator has answered."""
    asked = [question for question in at.memory.asked if question.kind != "expert"]
    if asked[-1].kind == "aggregator":
        return _answered(at, synthesised(at, view, at.heard[asked[-1].index]))
    return _answered(at, judged(at, view, asked))


# -- the end -----------------------------------------------------------------------------------------------------


def _answered(at: Situation, choice: Choice) -> Step:
    """It answers, and whoever still works is cut off."""
    waiting = at.memory.waiting()
    cut = (*at.memory.cut, *(question.index for question in waiting))
    return Step(replace(at.memory, choice=choice, cut=cut), cut=[question.call for question in waiting])


def _out_of(at: Situation, by: ChoiceBy, why: str) -> Step:
    """A limit is reached: the best answer so far, if there is one."""
    leader = view_so_far(at).leader
    if leader is None:
        return _failed(at, why)
    return _answered(at, choice_of(leader, by, f"{why}; {leader.answer.shown!r} is the best so far"))


def _out_of_budget(at: Situation) -> Step:
    return _out_of(at, "budget", f"the budget holds no {'more calls' if at.memory.asked else 'call'}")


def _fallen_back(at: Situation) -> Step:
    """No answer of the last round counts: what weighed most in an earlier one, where some did."""
    view = view_so_far(at)
    if not view.candidates:
        return _failed(at)
    found = counted(view, "weighted")
    return _answered(at, replace(found, why=f"{found.why}; no answer of round {at.memory.round} counts"))


def _failed(at: Situation, why: str = "") -> Step:
    """No answer counts: why not, by expert."""
    waiting = at.memory.waiting()
    reasons = [_reason(q, at.heard[q.index]) for q in at.memory.asked if q.index in at.heard]
    told = why or ("no answer of its experts counts" if reasons else "it could ask nobody")
    failure = told + (f": {'; '.join(dict.fromkeys(reasons))}" if reasons else "")
    memory = replace(at.memory, cut=(*at.memory.cut, *(q.index for q in waiting)), failure=failure)
    return Step(memory, cut=[q.call for q in waiting], failure=failure)


def _reason(question: Question, heard: Heard) -> str:
    told = heard.failed or ", ".join(heard.problems) or "no answer could be read"
    return f"{question.expert}: {told}"


# -- questions ---------------------------------------------------------------------------------------------------


def _asked(
    at: Situation,
    memory: Memory,
    asked: Sequence[tuple[str, QuestionKind]],
    abouts: Sequence[tuple[int, ...]] = (),
) -> Step:
    """Makes questions; of those to experts, so many answers are waited for as the gate needs at least."""
    made = _questions(at, memory, asked, abouts)
    memory = replace(memory, asked=(*memory.asked, *made))
    if memory.closing:
        return Step(memory, made, need=len(made))
    after = at._replace(memory=memory)
    return Step(memory, made, need=min(wanted(after, view_now(after)), len(made)))


def _questions(
    at: Situation,
    memory: Memory,
    asked: Sequence[tuple[str, QuestionKind]],
    abouts: Sequence[tuple[int, ...]],
) -> list[Question]:
    """Their calls count on from those that their nodes have."""
    nodes, made = _nodes(at.mixture), list[Question]()
    calls = Counter(question.expert for question in memory.asked)
    for place, (name, kind) in enumerate(asked):
        number = nodes[name]
        call = f"{number}.{calls[name]}"
        calls[name] += 1
        about = abouts[place] if abouts else ()
        index = len(memory.asked) + place
        made.append(Question(index, call, name, kind, memory.round, about, at.now_ms))
    return made


def _nodes(mixture: Mixture) -> dict[str, int]:
    nodes = {expert.name: expert.node for expert in mixture.experts}
    judges = (("verifier", mixture.verifier), ("aggregator", mixture.synthesizer))
    return nodes | {name: number for name, number in judges if number is not None}


__all__ = ["Situation", "Step", "decide", "due_ms"]
