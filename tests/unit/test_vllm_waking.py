"""A stream is woken by what comes of its answer, before it waits or while it does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from mosaic_tasks.engines.vllm.waking import Waking


async def waits(coroutine: Coroutine[Any, Any, None]) -> bool:
    """Whether it waits still, once all that can go on has."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0)
    if task.done():
        return False
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return True


def test_what_came_before_is_not_waited_for() -> None:
    async def main() -> list[bool]:
        waking = Waking(is_set=True)
        found = [await waits(waking.wait())]
        waking.clear()
        found.append(await waits(waking.wait()))
        waking.set()
        return [*found, await waits(waking.wait())]

    assert asyncio.run(main()) == [False, True, False]


def test_who_waits_goes_on_when_something_comes_also_twice() -> None:
    async def main() -> None:
        waking = Waking(is_set=False)
        for _ in range(2):
            task = asyncio.ensure_future(waking.wait())
            await asyncio.sleep(0)
            assert not task.done()
            waking.set()
            waking.set()  # before the first one was heard
            await task
            waking.clear()

    asyncio.run(main())
