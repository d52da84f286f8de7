"""What a coroutine waits at that reads a run: rung where there may be more, or when its time has come."""

from __future__ import annotations

import asyncio


class LoopBell:
    """What a coroutine waits at. It is rung in the loop's thread; its alarm outlasts many waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._event, self._until_s = loop, asyncio.Event(), 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self.is_rung = False

    def ring(self) -> None:
        """There may be more."""
        self.is_rung = True
        self._event.set()

    def hush(self) -> None:
        """It is rung anew from now on."""
        self.is_rung = False
        self._event.clear()

    async def wait(self, until_s: float) -> None:
        """Until it rings, or the time has come by the loop's clock."""
        self._until_s = until_s
        if self._alarm is None or self._alarm.when() > until_s:
            self._set_alarm()
        await self._event.wait()

    def _set_alarm(self) -> None:
        self.end()
        self._alarm = self._loop.call_at(self._until_s, self._wake)

    def _wake(self) -> None:
        self._alarm = None
        if self._loop.time() < self._until_s:  # a later wait goes on for longer
            self._set_alarm()
        else:
            self._event.set()

    def end(self) -> None:
        """Nobody waits at it any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


__all__ = ["LoopBell"]
