"""What is done while an answer does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mosaic_tasks.execution.placing.hedged import watched
from tests.unit import virtual_clock


async def answers(after_s: float, error: Exception | None = None) -> str:
    await asyncio.sleep(after_s)
    if error is not None:
        raise error
    return "answer"


def looking(at: list[float], *, enough_at: int) -> Callable[[float], Awaitable[bool]]:
    """Notes when it was called; so often is enough."""

    async def look(elapsed_s: float) -> bool:
        at.append(elapsed_s)
        return len(at) == enough_at

    return look


@pytest.mark.parametrize(
    ("takes_s", "enough_at", "looks"),
    [
        (2.0, 1, []),
        (10.0, 1, [3.0]),
        (10.0, 3, [3.0, 5.0, 7.0]),
        (6.0, 9, [3.0, 5.0]),
    ],
)
def test_it_is_looked_again_and_again_until_that_is_enough_or_the_answer_is_there(
    takes_s: float, enough_at: int, looks: list[float]
) -> None:
    async def asked() -> tuple[str, float]:
        look = looking(at, enough_at=enough_at)
        answer = await watched(answers(takes_s), look, after_s=3.0, look_s=2.0)
        return answer, asyncio.get_running_loop().time()

    at: list[float] = []
    assert virtual_clock.run(asked()) == ("answer", takes_s)
    assert at == looks


def test_an_error_is_that_of_the_answer() -> None:
    with pytest.raises(ValueError, match="why"):
        virtual_clock.run(watched(answers(4.0, ValueError("why")), looking([], enough_at=9), after_s=3.0))


def test_an_answer_that_comes_during_a_look_does_not_wait_for_it() -> None:
    async def ponders(_elapsed_s: float) -> bool:
        await asyncio.sleep(600.0)
        return True

    async def asked() -> float:
        await watched(answers(4.0), ponders, after_s=3.0)
        return asyncio.get_running_loop().time()

    assert virtual_clock.run(asked()) == 4.0


def test_what_is_cancelled_is_not_looked_at_any_more() -> None:
    async def asked() -> list[float]:
        task = asyncio.create_task(watched(answers(600.0), looking(at, enough_at=9), after_s=3.0, look_s=2.0))
        await asyncio.sleep(4.0)
        task.cancel()
        await asyncio.sleep(60.0)
        return at

    at: list[float] = []
    assert virtual_clock.run(asked()) == [3.0]
