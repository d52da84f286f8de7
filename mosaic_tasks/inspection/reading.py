"""Reads a part of a run while it runs, such as a node: texts and items as they come, to its end.

All of it goes through the process's hub (`mosaic_queues.following`), so readers take no connection each and do not
poll.
"""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from mosaic_queues.following import Following, Found
from mosaic_queues.ledger import Ledger
from mosaic_queues.streams import ENTRIES_READ
from mosaic_tasks.inspection.loop_bell import LoopBell
from mosaic_tasks.inspection.parts import Part

T = TypeVar("T")
LOOK_S = 30.0
"""Whoever heard nothing for so long looks whether there still is a run: one that a server lost, or that is past its
retention before anybody was told of its end, says nothing any more."""
_AT_ONCE = 128
"""So many events are held at once: a fan-out may have a hundred thousand items that are done already."""


class _Reading(Generic[T]):
    """What both ways to read have in common.

    Args:
        open_part: how it is read; may need trips to the server.
        ring: called when there may be more: in the thread of `loop`, else in another one.
        stands: raises where what is read is there no more; asks the server.
        page: entries of a stream that are held at once.

    Attributes:
        _must_step: the next step may give something though nothing rang.
    """

    def __init__(
        self,
        ledger: Ledger,
        open_part: Callable[[], Part[T]],
        *,
        follow: bool,
        ring: Callable[[], object],
        loop: asyncio.AbstractEventLoop | None,
        stands: Callable[[], object],
        page: int,
    ) -> None:
        self._ledger, self._open_part, self._follow, self._stands = ledger, open_part, follow, stands
        self._options: dict[str, Any] = {"ring": ring, "loop": loop, "page": page}
        self._ready: deque[T] = deque()
        self._coming: Iterator[T] | None = None
        self._may_be_more = False
        self._must_step = True
        self._is_over = False
        self._part: Part[T] | None = None
        self._following: Following | None = None

    def _open(self) -> tuple[Part[T], Following]:
        """The part and its streams; opened once. A reading that is dropped leaves."""
        if self._part is None or self._following is None:
            client, keys = self._ledger.client, self._ledger.keys
            self._part = self._open_part()
            self._following = Following(client, keys, self._part.cursors(), **self._options)
            weakref.finalize(self, self._following.abandon).atexit = False
        return self._part, self._following

    def _step(self) -> None:
        """Takes what came, piece by piece, from the server where it has to. Leaves when nothing more comes."""
        try:
            part, following = self._open()
            found = None
            if self._coming is None:
                found = following.take(follow=self._follow, ask=part.ask if part.must_ask else None)
            self._take_in(part, found)
        except BaseException:
            self._is_over = True
            raise
        finally:
            if self._is_over:
                self._leave()

    def _take_in(self, part: Part[T], found: Found | None) -> None:
        """What was found as events; None: more of the last time, while others may have come."""
        if found is not None:
            self._coming, self._may_be_more = part.take_in(found), found.may_be_more
        taken = list(islice(self._coming or (), _AT_ONCE))
        self._ready.extend(taken)
        if len(taken) < _AT_ONCE:
            self._coming = None
            is_all = not (self._follow or self._may_be_more or part.must_ask)
            self._is_over = self._is_over or part.is_over or is_all
        self._must_step = found is None or self._coming is not None or self._may_be_more or part.must_ask

    def _leave(self) -> None:
        """It is rung no more, where it was opened."""
        if self._following is not None:
            self._following.leave()

    def _at_hand(self) -> Found | None:
        """What the next step can take in without a trip to the server; None: it needs one."""
        part, following = self._part, self._following
        if part is None or following is None or self._coming is not None or part.must_ask:
            return None
        found = following.at_hand()
        return found if found is not None and part.is_local(found) else None

    def _wait_s(self) -> float:
        """It waits for so long, if at all."""
        return math.inf


class Reading(_Reading[T]):
    """Events, one after the other: an iterator, to be closed where it is left before its end.

    `close` may be called from any thread; whoever waits for the next event then is told that there is none.
    """

    def __init__(
        self,
        ledger: Ledger,
        open_part: Callable[[], Part[T]],
        *,
        follow: bool,
        stands: Callable[[], object],
        page: int = ENTRIES_READ,
    ) -> None:
        self._bell = threading.Event()
        super().__init__(
            ledger, open_part, follow=follow, ring=self._bell.set, loop=None, stands=stands, page=page
        )
        self._open()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._ready:
            if self._is_over:
                raise StopIteration
            if not (self._must_step or self._bell.is_set()):
                self._await_more()
            self._bell.clear()
            if not self._is_over:
                self._step()
        return self._ready.popleft()

    def _await_more(self) -> None:
        """Until it rings, or has to look."""
        wait_s = self._wait_s()
        if not self._bell.wait(min(LOOK_S, wait_s)) and wait_s > LOOK_S:
            self._stands()

    def close(self) -> None:
        """Ends it."""
        self._is_over = True
        self._leave()
        self._bell.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncReading(_Reading[T]):
    """Events for coroutines. One that is cancelled while it waits for an event loses none.

    What needs a trip to the server goes through a thread; what the hub has read already does not.
    """

    def __init__(
        self,
        ledger: Ledger,
        open_part: Callable[[], Part[T]],
        *,
        follow: bool,
        stands: Callable[[], object],
        page: int = ENTRIES_READ,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._bell, self._look_s = LoopBell(self._loop), self._loop.time() + LOOK_S
        super().__init__(
            ledger, open_part, follow=follow, ring=self._bell.ring, loop=self._loop, stands=stands, page=page
        )
        self._trip: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not (self._ready or await self._has_more()):
            raise StopAsyncIteration
        return self._ready.popleft()

    async def open(self) -> None:
        """Finds what is read; the first event does so too.

        Raises:
            InputError: there is nothing of that kind.
        """
        await asyncio.to_thread(self._open)

    async def several(self) -> list[T]:
        """The next events: all that are at hand, and at least one; none when that was all."""
        await self._has_more()
        found = list(self._ready)
        self._ready.clear()
        return found

    async def _has_more(self) -> bool:
        """Waits for an event; False: that was all."""
        while not self._ready:
            if self._trip is None:
                if not (self._must_step or self._bell.is_rung or self._is_over):
                    await self._await_more()
                if self._is_over:
                    return False
                self._bell.hush()
                if (found := self._at_hand()) is not None:
                    await self._step_here(found)
                    continue
            await self._step_there()
        return True

    async def _await_more(self) -> None:
        """Until it rings, or has to look. Whoever waits in pieces looks as often as whoever waits in one."""
        await self._bell.wait(min(self._look_s, self._loop.time() + self._wait_s()))
        if self._bell.is_rung:
            self._look_s = self._loop.time() + LOOK_S
        elif self._loop.time() >= self._look_s:
            await asyncio.to_thread(self._stands)
            self._look_s = self._loop.time() + LOOK_S  # not before: who is cancelled meanwhile looks again

    async def _step_here(self, found: Found) -> None:
        """A step without a trip."""
        part, following = self._open()
        try:
            following.advance(found)
            self._take_in(part, found)
        except BaseException:
            self._is_over = True
            raise
        finally:
            if self._is_over:
                await self._leave_here()

    async def _step_there(self) -> None:
        """A step with one; who is cancelled meanwhile finds it when it comes again."""
        if self._trip is None:
            self._trip = asyncio.create_task(asyncio.to_thread(self._step))
        trip = self._trip
        try:
            await asyncio.shield(trip)
        finally:
            if trip.done():
                self._trip = None

    async def aclose(self) -> None:
        """Ends it."""
        self._is_over = True
        self._bell.ring()
        await self._leave_here()

    async def _leave_here(self) -> None:
        """Leaves; a thread is needed for the last one that does."""
        self._bell.end()
        end = self._following.part() if self._following is not None else None
        if end is not None:
            await asyncio.to_thread(end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


__all__ = ["AsyncReading", "Reading"]
