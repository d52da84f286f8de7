"""Wakes a stream when something of its answer has come."""

from __future__ import annotations

import asyncio


class Waking:
    """Stands for the `asyncio.Event` of one of vLLM's queues, for which one stream alone waits.

    An event asks for the running loop each time that somebody waits for it, and that is a call into the kernel: for
    each token, a fourteenth of the loop's time.

    Args:
        is_set: something has come already.
    """

    __slots__ = ("_is_set", "_loop", "_waiting")

    def __init__(self, *, is_set: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_set = is_set
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Something has come."""
        self._is_set = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def clear(self) -> None:
        """It was taken."""
        self._is_set = False

    async def wait(self) -> None:
        """Until something has come."""
        if not self._is_set:
            self._waiting = self._loop.create_future()
            await self._waiting


__all__ = ["Waking"]
