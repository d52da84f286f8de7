"""The thread that flushes the publications of a process in the background, those that are due together in one trip."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from typing import Protocol

import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import ClaimLost, PayloadError
from mosaic_tasks.execution.streams.flushing import Flushing, flush_together
from mosaic_tasks.execution.streams.outlets import COALESCE_S

log = structlog.get_logger(__name__)

AGAIN_S = 0.2
"""Pause before chunks are sent again to a server that does not answer."""


class Flushed(Protocol):
    """A publication, as its publisher sees it."""

    def flushing(self, *, all_: bool) -> Flushing:
        """A flush that others may share their trips with; `all_`: also of what waits for more of its kind."""

    def next_due(self) -> float:
        """When something is to be published that waits still (monotonic); infinite: nothing waits."""


class Timetable:
    """When publications are due. What need not go at once goes on a beat that all share, so that a trip takes as many
    along as there are, and readers hear of all at once.

    Args:
        began: monotonic time of a beat.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._due: dict[Flushed, float] = {}

    def enter(self, publication: Flushed, at: float) -> float:
        """Has a publication flushed at the last beat up to a time, or earlier if it is due already.

        Returns:
            When.
        """
        beat = at - (at - self._began) % COALESCE_S
        due_at = self._due[publication] = min(beat, self._due.get(publication, math.inf))
        return due_at

    def take(self, now: float) -> list[Flushed]:
        """Those that are due, which are not entered any more."""
        ready = [publication for publication, at in self._due.items() if at <= now]
        for publication in ready:
            del self._due[publication]
        return ready

    @property
    def next_at(self) -> float:
        """When the next one is due; infinite: none is entered."""
        return min(self._due.values(), default=math.inf)


class Publisher:
    """Flushes publications when they are due, in a thread of its own."""

    def __init__(self) -> None:
        self._timetable = Timetable(time.monotonic())
        self._changed = threading.Condition()
        self._sleeps_until = -math.inf
        self._thread = threading.Thread(target=self._run, name="mosaic-publisher", daemon=True)
        self._thread.start()

    def due(self, publication: Flushed, *, at: float) -> None:
        """Flushes a publication at a monotonic time or up to `COALESCE_S` before, or earlier if it is due already."""
        with self._changed:
            if self._timetable.enter(publication, at) < self._sleeps_until:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            self._flush(self._next())

    def _next(self) -> list[Flushed]:
        with self._changed:
            while not (ready := self._timetable.take(now := time.monotonic())):
                self._sleeps_until = self._timetable.next_at
                self._changed.wait(self._sleeps_until - now if self._sleeps_until < math.inf else None)
                self._sleeps_until = -math.inf  # it looks anyway before it sleeps again
            return ready

    def _flush(self, publications: Sequence[Flushed]) -> None:
        flushes = [publication.flushing(all_=False) for publication in publications]
        flush_together(flushes)
        for publication, flushing in zip(publications, flushes, strict=True):
            self._go_on(publication, flushing.error)

    def _go_on(self, publication: Flushed, error: Exception | None) -> None:
        told = None if error is None else str(error)
        match error:
            case None:
                if (at := publication.next_due()) < math.inf:
                    self.due(publication, at=at)
            case ClaimLost():
                log.info("publisher.lost", what="chunks refused, the call ends at its next one", error=told)
            case RedisError():
                log.warning("publisher.down", what="server does not answer, chunks wait", error=told)
                self.due(publication, at=time.monotonic() + AGAIN_S)
            case PayloadError():
                log.info("publisher.refused", what="chunks cannot be stored, the call fails", error=told)
            case _:
                what = "chunks could not be published, the call fails"
                log.error("publisher.failed", what=what, exc_info=error)


_publishers: dict[int, Publisher] = {}
_lock = threading.Lock()


def publisher() -> Publisher:
    """This process's publisher."""
    with _lock:
        found = _publishers.get(os.getpid())
        if found is None:
            found = _publishers[os.getpid()] = Publisher()
        return found
