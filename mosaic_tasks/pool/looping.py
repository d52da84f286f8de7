"""An event loop in a thread of its own, and how others give it work."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)


class LoopThread:
    """Attributes:
    loop: once it is started.
    at_end: what is awaited on it before it ends.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.at_end: list[Callable[[], Awaitable[object]]] = []
        self._work: deque[Callable[[], object]] = deque()
        self._is_woken = False
        self._runs = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mosaic-pool-loop", daemon=True)

    def start(self) -> None:
        """Returns when it runs."""
        self._thread.start()
        self._runs.wait()

    def submit(self, function: Callable[[], object]) -> None:
        """Has a function called on the loop, in order; wakes it once for all that gathers meanwhile."""
        self._work.append(function)
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon_threadsafe(self._do)

    def stop(self, timeout_s: float) -> None:
        """Cancels what is left and ends. What does not end in time, or blocks the loop, ends with the process."""
        if not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("pool.loop", what=f"the event loop did not end within {timeout_s:g} s")

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._runs.set()
        await self._over.wait()
        for last in self.at_end:
            await last()

    def _do(self) -> None:
        self._is_woken = False  # before looking: what comes from now on wakes it again
        try:
            while self._work:
                self._work.popleft()()
        except BaseException:
            self.loop.call_soon(self._do)  # one that raises does not keep the others
            raise
