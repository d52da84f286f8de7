"""Connections of clients: one on which nothing is asked for too long is closed, and so is one too many.

The HTTP server itself waits without end for the first request, for the rest of a head that comes slowly, and for the
rest of a body that was refused; so some hundred idle sockets would keep everybody else out. And a process that has no
file descriptor left reaches its own server no more, and logs each client that it cannot accept.
"""

from __future__ import annotations

import asyncio
import resource
import time
from functools import lru_cache
from typing import Any, cast

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from mosaic_queues.settings import settings

log = structlog.get_logger(__name__)

_MOST_FILES = 65_536
BACKLOG = 256
"""Clients that wait to be accepted; so many are accepted, twice maybe, before one of them is counted."""
_OWN_FILES = 64 + 2 * BACKLOG
"""File descriptors that are kept for what is not counted as a connection."""
_SAY_S = 10.0


class Room:
    """How many connections this process has room for; makes as much as it may.

    Attributes:
        connections: so many at once.
    """

    def __init__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        self.connections = max(most - _OWN_FILES, most // 2)
        self._said_s = -_SAY_S

    def exceeded(self) -> None:
        """Says that there are too many, from time to time."""
        if (now_s := time.monotonic()) - self._said_s >= _SAY_S:
            self._said_s = now_s
            what = "too many connections, new ones are closed; raise the limit of open files (ulimit -n)"
            log.warning("gateway.crowded", what=what, connections=self.connections)


room = lru_cache(Room)
"""That of this process."""


class PatientProtocol(H11Protocol):
    """HTTP/1.1 for a client that has `gateway_patience_s` for the head of each request."""

    _overseeing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to watch it."""
        super().connection_made(transport)
        if len(self.connections) > room().connections:
            room().exceeded()
            transport.abort()
        self._idle_since_s = self.loop.time()
        self._oversee()

    def on_response_complete(self) -> None:
        """From now on it is idle."""
        self._idle_since_s = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the watch."""
        if self._overseeing is not None:
            self._overseeing.cancel()
        super().connection_lost(exc)

    def _oversee(self) -> None:
        """Closes it when it was idle for too long; else looks again when it could be."""
        now_s, patience_s = self.loop.time(), settings().gateway_patience_s
        cycle = cast("Any", self.cycle)
        is_under_way = cycle is not None and not cycle.response_complete
        if is_under_way or self.transport.get_write_buffer_size():
            self._idle_since_s = now_s
        left_s = self._idle_since_s + patience_s - now_s
        if left_s <= 0:
            self.transport.abort()
        else:
            self._overseeing = self.loop.call_later(left_s, self._oversee)


__all__ = ["BACKLOG", "PatientProtocol", "Room", "room"]
