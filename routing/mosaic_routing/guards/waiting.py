"""How the calls of a process wait for a limit: in a line for each, of which only the first asks again.

So a free place costs one step, not one for each that waits, and nobody is overtaken by those who come later, unless
they are more urgent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from bisect import insort_right
from operator import attrgetter
from typing import Protocol

LONGEST_S = 3_600.0
"""Who waits longer looks in between."""


class Waiter(Protocol):
    """Who stands in a line.

    Attributes:
        priority: a lower one goes before.
    """

    priority: int

    def wake(self) -> None:
        """Has it look again; from any thread."""

    def reset(self) -> None:
        """Forgets what woke it, before it looks."""


class ThreadWaiter:
    """A thread that waits."""

    def __init__(self, priority: int = 0) -> None:
        self.priority = priority
        self._woken = threading.Event()

    def wake(self) -> None:
        """Has it look again."""
        self._woken.set()

    def reset(self) -> None:
        """Forgets what woke it."""
        self._woken.clear()

    def wait(self, timeout_s: float) -> None:
        """Until it is woken, or the time is over."""
        self._woken.wait(min(timeout_s, LONGEST_S))


class TaskWaiter:
    """A task that waits."""

    def __init__(self, priority: int = 0) -> None:
        self.priority = priority
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Has it look again, if its loop still runs."""
        with contextlib.suppress(RuntimeError):  # closed
            self._loop.call_soon_threadsafe(self._woken.set)

    def reset(self) -> None:
        """Forgets what woke it."""
        self._woken.clear()

    async def wait(self, timeout_s: float) -> None:
        """Until it is woken, or the time is over."""
        try:
            async with asyncio.timeout(min(timeout_s, LONGEST_S)):
                await self._woken.wait()
        except TimeoutError:
            return


class Lines:
    """The lines of a process, by what is waited for."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._lines: dict[str, list[Waiter]] = {}

    def find(self, names: tuple[str, ...]) -> str | None:
        """The first of these for which there is a line."""
        with self._mutex:
            return next((name for name in names if name in self._lines), None)

    def join(self, name: str, waiter: Waiter) -> None:
        """Takes its place behind those that are as urgent; one that so becomes the first looks once more."""
        with self._mutex:
            line = self._lines.setdefault(name, [])
            insort_right(line, waiter, key=attrgetter("priority"))
            if line[0] is waiter and len(line) > 1:
                waiter.wake()

    def leave(self, name: str, waiter: Waiter) -> None:
        """Gives its place up; where it was the first, the next looks."""
        with self._mutex:
            line = self._lines[name]
            was_first = line[0] is waiter
            line.remove(waiter)
            if not line:
                del self._lines[name]
            elif was_first:
                line[0].wake()

    def is_first(self, name: str, waiter: Waiter) -> bool:
        """Whether it may look."""
        with self._mutex:
            return self._lines[name][0] is waiter

    def ring(self, name: str) -> None:
        """The first in the line looks; of every line, where there is no name."""
        with self._mutex:
            for line in self._lines.values() if not name else filter(None, [self._lines.get(name)]):
                line[0].wake()
