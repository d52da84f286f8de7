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

    def call(self, function: Callable[[], object]) -> None:
        """Leaves a call, from any thread."""
        self._calls.append(function)
        self.wake()

    def wake(self) -> None:
        """Wakes the thread that makes the calls."""
        if not self._is_woken:
            self._is_woken = True
            with suppress(OSError):  # full: it is woken anyway; closed: nobody is there
                self._writer.send(b"\0")

    def wait(self, timeout_s: float) -> None:
        """Waits for calls, in the thread that makes them."""
        with suppress(OSError):  # a signal's handler closed it
            select.select([self._reader], [], [], timeout_s)

    def run(self) -> None:
        """Makes the calls. One that raises does not keep the others from being made the next time."""
        with suppress(BlockingIOError):
            self._reader.recv(4096)
        self._is_woken = False  # before looking: what is left from now on wakes again
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
