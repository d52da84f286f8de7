"""What tells the lists of runs that are open of runs that come, end, or run again.

One reader of the process's hub follows the changes for all lists, while there are any; each list hears of what concerns
it. So an open list costs nothing while nothing happens, and those of other tenants or of other workflows nothing then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

from mosaic_queues.changes import RunChange, changes_of
from mosaic_queues.following import Entry, Found
from mosaic_queues.ledger import Ledger
from mosaic_queues.streams import ENTRIES_READ
from mosaic_tasks.gateway.pages.bells import Bell

REST_S = 0.05
"""Where much happens, changes are taken together so often; no list is renewed more often than that."""

Concerns = Callable[[RunChange], bool]


class Changes:
    """The changes of all runs in one server, for the lists that are open in this process."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._open: set[Listening] = set()
        self._follows: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    def listen(self, concerns: Concerns) -> Listening:
        """News of the runs that concern a list."""
        return Listening(self, concerns)

    async def enter(self, listening: Listening) -> None:
        """It hears of all that happens after this."""
        self._open.add(listening)
        if self._follows is None:
            self._begun = asyncio.Event()
            self._follows = asyncio.create_task(self._follow(self._begun))
        await self._begun.wait()

    async def leave(self, listening: Listening) -> None:
        """It hears no more. With the last one the following ends."""
        self._open.discard(listening)
        if self._open or self._follows is None:
            return
        follows, self._follows = self._follows, None
        follows.cancel()
        await asyncio.wait([follows])

    async def _follow(self, begun: asyncio.Event) -> None:
        heard: list[Sequence[Entry]] = []

        def hear(found: Found) -> None:
            heard.extend(found.values())

        try:
            async with Bell(self._ledger, [self._ledger.keys.changes], hear=hear) as bell:
                begun.set()
                while True:
                    await bell.news()
                    self._tell(heard)
                    heard.clear()
                    await asyncio.sleep(REST_S)
        except Exception as error:  # noqa: BLE001 - whatever it is, the lists must be told
            if begun is self._begun:  # the lists are not those of another one that follows since
                self._fail(error)
        finally:
            begun.set()

    def _tell(self, heard: Sequence[Sequence[Entry]]) -> None:
        """Rings whom it concerns. The stream keeps more than a page: only before a full one some may be gone."""
        may_have_missed = any(len(page) >= ENTRIES_READ for page in heard)
        changes = [change for page in heard for change in changes_of(page)]
        for listening in self._open:
            if may_have_missed or any(map(listening.concerns, changes)):
                listening.ring()

    def _fail(self, error: Exception) -> None:
        """The server is away: the lists are told, and the next one that is opened begins anew."""
        lost, self._open, self._follows = self._open, set(), None
        for listening in lost:
            listening.fail(error)


class Listening:
    """The news of one list."""

    def __init__(self, changes: Changes, concerns: Concerns) -> None:
        self.concerns = concerns
        self._changes, self._rung = changes, asyncio.Event()
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._changes.enter(self)
        except BaseException:  # nobody reads it any more
            await self._changes.leave(self)
            raise
        return self

    def ring(self) -> None:
        """There is news."""
        self._rung.set()

    def fail(self, error: Exception) -> None:
        """There will be none any more."""
        self._error = error
        self.ring()

    async def news(self) -> None:
        """Waits until something came since the last time, which may be at once.

        Raises:
            redis.RedisError: the server does not answer.
        """
        await self._rung.wait()
        self._rung.clear()
        if self._error is not None:
            raise self._error

    async def __aexit__(self, *_error: object) -> None:
        await self._changes.leave(self)


__all__ = ["Changes", "Listening"]
