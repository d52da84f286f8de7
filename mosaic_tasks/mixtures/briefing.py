"""What a mixture tells whom it asks: the item of each of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mosaic_tasks.mixtures.asks import building_ask, discussing_ask, judging_ask, synthesis_ask
from mosaic_tasks.mixtures.beliefs import view_of
from mosaic_tasks.mixtures.mixture import Memory, Mixture, Question
from mosaic_tasks.mixtures.points import build
from mosaic_tasks.mixtures.situation import Heards
from mosaic_tasks.mixtures.values import Heard, View


def brief(mixture: Mixture, memory: Memory, heard: Heards, question: Question) -> dict[str, Any]:
    """What the prompt of a call sees besides what the node sees.

    Returns:
        `kind`, `index`, `expert`, `role`, `round`; `answers`: what was heard in the round before, as
        `{expert, role, answer, text}`; `open_points`: what those differ in; `ask`: a text that says what to do with
        them, in which they are quoted.
    """
    roles = {expert.name: expert.role for expert in mixture.experts if expert.role}
    about = _about(memory, heard, question)
    view = view_of(about, memory.profiles, mixture.form, planned=mixture.planned)
    return {
        "kind": question.kind,
        "index": question.index,
        "expert": question.expert,
        "role": roles.get(question.expert, ""),
        "round": question.round,
        "answers": [_told(one, roles) for one in about],
        "open_points": [point.path or point.said[0][0] for point in build(about, mixture.form).open]
        if about
        else [],
        "ask": _ask(mixture, question, about, view, roles, _limit(mixture, memory, question))
        if about
        else "",
    }


def _about(memory: Memory, heard: Heards, question: Question) -> list[Heard]:
    """The answers that a call sees: those that it judges, of this round, or of the one before."""
    if question.kind == "verifier":
        return [heard[index] for index in question.about]
    seen = question.round if question.kind == "aggregator" else question.round - 1
    return [heard[q.index] for q in memory.of_round(seen) if q.index in heard and heard[q.index].text]


def _ask(
    mixture: Mixture, question: Question, about: list[Heard], view: View, roles: Mapping[str, str], limit: int
) -> str:
    if question.kind == "verifier":
        return judging_ask(about[0], limit_tokens=limit)
    if question.kind == "aggregator":
        return synthesis_ask(about, view, roles=roles, limit_tokens=limit)
    if mixture.aggregator == "build":
        return building_ask(build(about, mixture.form), limit_tokens=limit)
    return discussing_ask(about, view, roles=roles, limit_tokens=limit)


def _limit(mixture: Mixture, memory: Memory, question: Question) -> int:
    """Tokens that may be quoted: half of what its reader can read, where that is known; the rest is the question's."""
    reader = memory.profiles.get(question.expert)
    if question.kind == "aggregator":
        reader = mixture.aggregating
    readable = reader.context_tokens if reader is not None else 0
    return min(mixture.quoted_tokens, readable // 2) if readable else mixture.quoted_tokens


def _told(one: Heard, roles: Mapping[str, str]) -> dict[str, str]:
    answer = one.answer.shown if one.answer is not None else ""
    return {"expert": one.expert, "role": roles.get(one.expert, ""), "answer": answer, "text": one.text}


__all__ = ["brief"]
