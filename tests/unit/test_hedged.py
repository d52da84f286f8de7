"""A second question where the first answer does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mosaic_tasks.execution.hedged import first_answer
from tests.unit import virtual_clock

ended: list[str] = []


async def answers(name: str, after_s: float, error: Exception | None = None) -> str:
    try:
        await asyncio.sleep(after_s)
    except asyncio.CancelledError:
        ended.append(f"{name} cancelled")
        raise
    if error is not None:
        raise error
    return name


def second(
    after_s: float, *, worth_from_s: float = 0.0, error: Exception | None = None
) -> Callable[[float], Any]:
    async def ask(elapsed_s: float) -> Coroutine[Any, Any, str] | None:
        return answers("second", after_s, error) if elapsed_s >= worth_from_s else None

    return ask


@pytest.mark.parametrize(
    ("first", "other", "expected", "cancelled"),
    [
        (answers, second(1.0), "first", []),
        (lambda name, _s: answers(name, 10.0), second(1.0), "second", ["first cancelled"]),
        (lambda name, _s: answers(name, 4.0), second(9.0), "first", ["second cancelled"]),
        (lambda name, _s: answers(name, 10.0), second(1.0, worth_from_s=6.0), "second", ["first cancelled"]),
        (lambda name, _s: answers(name, 10.0), second(1.0, error=ValueError()), "first", []),
        (lambda name, _s: answers(name, 4.0, ValueError()), second(9.0), "second", []),
    ],
)
def test_the_first_answer_counts(
    first: Callable[[str, float], Any], other: Any, expected: str, cancelled: list[str]
) -> None:
    ended.clear()
    assert virtual_clock.run(first_answer(first("first", 1.0), other, after_s=3.0)) == expected
    assert ended == cancelled


def test_an_error_counts_where_nobody_else_is_asked() -> None:
    with pytest.raises(ValueError, match="why"):
        virtual_clock.run(first_answer(answers("first", 1.0, ValueError("why")), second(1.0), after_s=3.0))


def ponders(for_s: float, then: float | None) -> Callable[[float], Any]:
    """Whom else to ask is found out in so many seconds: one who answers after `then`, or nobody."""

    async def ask(_elapsed_s: float) -> Coroutine[Any, Any, str] | None:
        await asyncio.sleep(for_s)
        return None if then is None else answers("second", then)

    return ask


@pytest.mark.parametrize("then", [600.0, None])
def test_an_answer_that_comes_while_it_is_found_out_whom_else_to_ask_counts_at_once(
    then: float | None,
) -> None:
    async def asked() -> tuple[str, float]:
        answer = await first_answer(answers("first", 4.0), ponders(2.0, then), after_s=3.0)
        return answer, asyncio.get_running_loop().time()

    ended.clear()
    assert virtual_clock.run(asked()) == ("first", 5.0)
    assert ended == []
