"""Asks a second time where the first answer does not come: the first that comes counts, and the other is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_S = 0.5
"""Whether a second time is worth it is asked again after so long: of a call that is stuck, the time grows."""


async def first_answer(
    first: Coroutine[Any, Any, T],
    second: Callable[[float], Awaitable[Coroutine[Any, Any, T] | None]],
    *,
    after_s: float,
    look_s: float = LOOK_S,
) -> T:
    """What comes first of two that ask for the same; an error counts only where no other is left.

    Args:
        second: told the seconds since the beginning, gives the second one, or None: not now.
        after_s: no second one before so long.
    """
    loop = asyncio.get_running_loop()
    begun, asked = loop.time(), {loop.create_task(first)}
    try:
        await asyncio.wait(asked, timeout=after_s)
        while not _are_over(asked):
            more = await second(loop.time() - begun) if len(asked) == 1 else None
            if more is not None and _are_over(asked):  # meanwhile
                more.close()
            elif more is not None:
                asked.add(loop.create_task(more))
            if _are_over(asked):
                break
            patience_s = look_s if len(asked) == 1 else None
            await asyncio.wait(_running(asked), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        return next((task for task in asked if _has_answered(task)), next(iter(asked))).result()
    finally:
        for task in _running(asked):
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


def _running(asked: set[asyncio.Task[T]]) -> set[asyncio.Task[T]]:
    return {task for task in asked if not task.done()}


def _are_over(asked: set[asyncio.Task[T]]) -> bool:
    """Whether there is an answer, or none can come any more. One that failed alone is not asked again."""
    return not _running(asked) or any(_has_answered(task) for task in asked)


def _has_answered(task: asyncio.Task[T]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


__all__ = ["first_answer"]
