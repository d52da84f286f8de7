"""What a mixture tells whom it asks: the item of each of its calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from mosaic_tasks.mixtures.asks import building_ask, discussing_ask, judging_ask, synthesis_ask
from mosaic_tasks.mixtures.beliefs import view_of
from mosaic_tasks.mixtures.mixture import QUOTING_NAMES, Memory, Mixture, Question, QuestionKind
from mosaic_tasks.mixtures.points import Built, build
from mosaic_tasks.mixtures.situation import Heards
from mosaic_tasks.mixtures.values import Heard, View


class Briefing:
    """What the calls of one step are told; what several of them are told is made once."""

    def __init__(self, mixture: Mixture, memory: Memory, heard: Heards) -> None:
        self._mixture, self._memory, self._heard = mixture, memory, heard
        self._roles = {expert.name: expert.role for expert in mixture.experts if expert.role}
        self._told: dict[tuple[QuestionKind, int, tuple[int, ...]], _Told] = {}

    def item(self, question: Question, names: Collection[str]) -> dict[str, Any]:
        """What the prompt of a call sees besides what the node sees.

        Args:
            names: that it reads; of those that quote answers, it is told no others.

        Returns:
            `kind`, `index`, `expert`, `role`, `round`; `answers`: what was heard in the round before, as
            `{expert, role, answer, text}`; `open_points`: what those differ in; `ask`: a text that says what to do
            with them, in which they are quoted.
        """
        told = self._told_to(question)
        quoting: dict[str, Callable[[], Any]] = {
            "answers": lambda: told.answers,
            "open_points": lambda: told.open_points,
            "ask": lambda: told.ask(_limit(self._mixture, self._memory, question)),
        }
        return {
            "kind": question.kind,
            "index": question.index,
            "expert": question.expert,
            "role": self._roles.get(question.expert, ""),
            "round": question.round,
            **{name: quoting[name]() for name in QUOTING_NAMES if name in names},
        }

    def _told_to(self, question: Question) -> _Told:
        key = question.kind, question.round, question.about
        if key not in self._told:
            about = _about(self._memory, self._heard, question)
            self._told[key] = _Told(self._mixture, self._memory, question.kind, about, self._roles)
        return self._told[key]


class _Told:
    """What calls of one kind are told of some answers."""

    def __init__(
        self,
        mixture: Mixture,
        memory: Memory,
        kind: QuestionKind,
        about: Sequence[Heard],
        roles: Mapping[str, str],
    ) -> None:
        self._mixture, self._memory, self._kind = mixture, memory, kind
        self._about, self._roles = about, roles
        self._asks: dict[int, str] = {}

    @cached_property
    def answers(self) -> list[dict[str, str]]:
        return [_told(one, self._roles) for one in self._about]

    @cached_property
    def open_points(self) -> list[str]:
        return [point.path or point.said[0][0] for point in self._built.open]

    def ask(self, limit_tokens: int) -> str:
        if limit_tokens not in self._asks:
            self._asks[limit_tokens] = self._ask(limit_tokens) if self._about else ""
        return self._asks[limit_tokens]

    def _ask(self, limit: int) -> str:
        if self._kind == "verifier":
            return judging_ask(self._about[0], limit_tokens=limit)
        if self._kind == "expert" and self._mixture.aggregator == "build":
            return building_ask(self._built, limit_tokens=limit)
        ask = synthesis_ask if self._kind == "aggregator" else discussing_ask
        return ask(self._about, self._view, roles=self._roles, limit_tokens=limit)

    @cached_property
    def _built(self) -> Built:
        return build(self._about, self._mixture.form)

    @cached_property
    def _view(self) -> View:
        mixture = self._mixture
        return view_of(self._about, self._memory.profiles, mixture.form, planned=mixture.planned)


def _about(memory: Memory, heard: Heards, question: Question) -> list[Heard]:
    """The answers that a call sees: those that it judges, of this round, or of the one before, whichever that was."""
    if question.kind == "verifier":
        return [heard[index] for index in question.about]
    number = question.round
    if question.kind == "expert":
        number = max((q.round for q in memory.asked if q.round < question.round), default=0)
    return [heard[q.index] for q in memory.of_round(number) if q.index in heard and heard[q.index].text]


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


__all__ = ["Briefing"]
