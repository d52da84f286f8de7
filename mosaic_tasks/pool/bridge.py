"""From the threads of a pool to the one of Celery's event loop, the hub: there alone are requests ended and messages
acknowledged."""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class Bridge:
    """Calls that one thread makes for all others, in their order."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._is_woken = False

    def fileno(self) -> int:
        """Readable when there are calls, for `hub.add_reader`."""
        return self._reader.fileno()

    def leave(self, function: Callable[[], object]) -> None:
        """Leaves a call, from any thread, for when the thread that makes the calls looks."""
        self._calls.append(function)

    def call(self, function: Callable[[], object]) -> None:
        """Leaves a call, and wakes that thread."""
        self.leave(function)
        self.wake()

    def wake(self) -> None:
        """Wakes the thread that makes the calls."""
        if not self._is_woken:
            self._is_woken = True
            with suppress(OSError):  # full: it is woken anyway; closed: nobody is there
                self._writer.send(b"\0")

    def wait(self, timeout_s: float) -> None:
        """Waits to be woken, in the thread that makes the calls."""
        with suppress(OSError):  # a signal's handler closed it
            select.select([self._reader], [], [], timeout_s)
            self.awake()

    def awake(self) -> None:
        """That thread is awake, and will look after this: what is left from now on wakes it again."""
        with suppress(BlockingIOError):
            self._reader.recv(4096)
        self._is_woken = False

    def run(self) -> None:
        """Makes the calls. One that raises does not keep the others from being made the next time."""
        try:
            while self._calls:
                self._calls.popleft()()
        except BaseException:
            self.wake()
            raise

    def close(self) -> None:
        """Calls that are left from now on are never made."""
        self._reader.close()
        self._writer.close()
