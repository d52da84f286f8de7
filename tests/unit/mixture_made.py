"""Answers, profiles and views for the tests of mixtures' policies."""

from __future__ import annotations

from typing import Any

from mosaic_tasks.mixtures.beliefs import view_of
from mosaic_tasks.mixtures.values import Answer, AnswerForm, Heard, Profile, View

NUMBER = AnswerForm(form="number")


def said(*answers: str | None, **given: Any) -> list[Heard]:
    """Calls to experts `e0`, `e1`, ..., in this order; None is one whose answer does not count."""
    return [_heard(index, answer, given) for index, answer in enumerate(answers)]


def _heard(index: int, answer: str | None, given: dict[str, Any]) -> Heard:
    known = None if answer is None else Answer(key=answer, shown=answer, value=answer)
    return Heard(index=index, expert=f"e{index}", text=f"It is {answer}.", answer=known, **given)


def viewed(*answers: str | None, quality: float = 0.8, planned: int = 5, **given: Any) -> View:
    """What is known after such answers of experts that are all as good."""
    return view_of(said(*answers), profiles(len(answers), quality=quality), NUMBER, planned=planned, **given)


def profiles(count: int, **given: Any) -> dict[str, Profile]:
    """Profiles of `e0`, `e1`, ..., all alike."""
    return {f"e{n}": Profile(name=f"e{n}", **given) for n in range(count)}
