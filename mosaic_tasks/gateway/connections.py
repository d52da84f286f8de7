"""Connections of clients: one on which nothing is asked for too long is closed.

The HTTP server itself waits without end for the first request, for the rest of a head that comes slowly, and for the
rest of a body that was refused; so some hundred idle sockets would keep everybody else out.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from mosaic_queues.settings import settings


class PatientProtocol(H11Protocol):
    """HTTP/1.1 for a client that has `gateway_patience_s` for the head of each request."""

    _overseeing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to watch it."""
        super().connection_made(transport)
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


__all__ = ["PatientProtocol"]
