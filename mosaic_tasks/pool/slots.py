"""How much a worker runs at once: a counter that may change while it works."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Slots:
    """Thread-safe. What is used may exceed the limit: a message may bring more than there is room for.

    Args:
        limit: how many there are.
        on_free: called, from the thread that made room, when there is more of it.

    Attributes:
        ahead: so many calls beyond the limit may be fetched, since slots will be free for them by the time they are
            here.
    """

    def __init__(self, limit: int, *, on_free: Callable[[], None] = lambda: None) -> None:
        self._limit, self._used, self.ahead = limit, 0, 0
        self._on_free = on_free
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """At most so many; an engine lowers it when it has no memory for more, and raises it again."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        before, self._limit = self._limit, limit
        if limit > before:
            self._on_free()

    @property
    def used(self) -> int:
        """So many are taken."""
        return self._used

    @property
    def free(self) -> int:
        """So many more may be taken; never below 0."""
        return max(self._limit - self._used, 0)

    @property
    def room(self) -> int:
        """So many more may be fetched; never below 0."""
        return max(self._limit + self.ahead - self._used, 0)

    def take(self, count: int = 1) -> None:
        """Takes so many, whether they are free or not."""
        with self._lock:
            self._used += count

    def take_free(self) -> bool:
        """Takes one if one is free."""
        with self._lock:
            if self._used >= self._limit:
                return False
            self._used += 1
            return True

    def give(self, count: int = 1) -> None:
        """Gives so many back.

        Raises:
            ValueError: more than are taken.
        """
        with self._lock:
            if count > self._used:
                raise ValueError(f"cannot give back {count} slots, only {self._used} are taken")
            self._used -= count
        self._on_free()
