"""Awaits an answer, and looks again and again what to do about one that does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_S = 0.5
"""Whether a second time is worth it is asked again after so long: of a call that is stuck, the time grows."""


async def watched(
    answer: Coroutine[Any, Any, T],
    look: Callable[[float], Awaitable[bool]],
    *,
    after_s: float,
    look_s: float = LOOK_S,
) -> T:
    """The answer.

    Args:
        look: told the seconds since the beginning; True: that was all that can be done.
        after_s: it is not called before so long.
    """
    watch = asyncio.get_running_loop().create_task(_watch(look, after_s, look_s))
    try:
        return await answer
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def _watch(look: Callable[[float], Awaitable[bool]], after_s: float, look_s: float) -> None:
    loop = asyncio.get_running_loop()
    begun, pause_s = loop.time(), after_s
    while True:
        await asyncio.sleep(pause_s)
        if await look(loop.time() - begun):
            return
        pause_s = look_s


__all__ = ["watched"]
