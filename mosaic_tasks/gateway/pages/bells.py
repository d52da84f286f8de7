"""Rings when something comes into streams of the server: how a page that is open learns that there is news."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Self

from mosaic_queues.following import FROM_NOW_ON, Following, Found
from mosaic_queues.ledger import Ledger


class Bell:
    """Listens to some streams through the process's hub: no thread, no connection, no poll of its own.

    Args:
        hear: called with what came, in a thread, before `news` ends.
    """

    def __init__(
        self, ledger: Ledger, streams: Iterable[str], *, hear: Callable[[Found], object] = lambda _: None
    ) -> None:
        self._ledger, self._streams, self._hear = ledger, tuple(streams), hear
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(event.set)

        self._event, self._ring, self._has_news = event, ring, False
        self._turn = threading.Lock()
        self._following: Following | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._open)
        return self

    def _open(self) -> None:
        cursors = dict.fromkeys(self._streams, FROM_NOW_ON)
        self._following = Following(self._ledger.client, self._ledger.keys, cursors, ring=self._ring)
        # Whoever goes away while this thread still opens never gets to close.
        weakref.finalize(self, self._following.abandon).atexit = False
        self._following.take()  # it rings from now on

    async def news(self) -> None:
        """Waits until something came since the last time, which may be at once.

        Raises:
            redis.RedisError: the server does not answer.
        """
        while True:
            self._event.clear()
            await asyncio.to_thread(self._take)
            if self._has_news:
                self._has_news = False
                return
            await self._event.wait()

    def _take(self) -> None:
        """Takes all that came. Whoever stops waiting for it meanwhile is told the next time."""
        with self._turn:  # of a thread that goes on though nobody waits for it any more
            while self._following is not None and (found := self._following.take()):
                self._hear(found)
                self._has_news = True

    async def __aexit__(self, *_error: object) -> None:
        if self._following is not None:
            await asyncio.to_thread(self._following.leave)
