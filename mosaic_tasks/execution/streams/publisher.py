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

RESTS = 5
"""It rests so many times as long as its work took of the processor that the threads of a process share: a sixth of that
goes to telling what calls say, at most."""
REST_S = 0.1
"""It never rests longer: readers wait meanwhile."""

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
    along as there are, and readers hear of all at once; and not before the publisher has rested from the last ones.

    Args:
        began: monotonic time of a beat.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._rests_until = began
        self._is_resting = False
        self._due: dict[Flushed, float] = {}

    def enter(self, publication: Flushed, at: float) -> float:
        """Has a publication flushed at the last beat up to a time, or earlier if it is due already; 0: at once.

        Returns:
            When.
        """
        # By the number of the beat: of two times that nearly are the same, one would wake who sleeps until the other.
        beat = min(at, self._began + (at - self._began) // COALESCE_S * COALESCE_S)
        due_at = self._due[publication] = min(beat, self._due.get(publication, math.inf))
        return self._rested(due_at)

    def take(self, now: float) -> list[Flushed]:
        """Those that are due, which are not entered any more."""
        ready = [publication for publication, at in self._due.items() if self._rested(at) <= now]
        for publication in ready:
            del self._due[publication]
        self._is_resting = now < self._rests_until
        return ready

    def worked(self, for_s: float, *, now: float) -> None:
        """Those that were taken are flushed, which took so much of a processor. What went amid a rest does not
        prolong it: the others would wait as long as there is such."""
        if not self._is_resting:
            self._rests_until = now + min(RESTS * for_s, REST_S)

    @property
    def next_at(self) -> float:
        """When the next one is due; infinite: none is entered."""
        return min(map(self._rested, self._due.values()), default=math.inf)

    def _rested(self, due_at: float) -> float:
        """When what is due at a time goes: what is due at once waits for no rest."""
        return due_at if due_at <= 0.0 else max(due_at, self._rests_until)


class Publisher:
    """Flushes publications when they are due, in a thread of its own."""

    def __init__(self) -> None:
        self._timetable = Timetable(time.monotonic())
        self._changed = threading.Condition()
        self._sleeps_until = -math.inf
        self._thread = threading.Thread(target=self._run, name="mosaic-publisher", daemon=True)
        self._thread.start()

    def due(self, publication: Flushed, *, at: float) -> None:
        """Flushes a publication at a monotonic time or up to `COALESCE_S` before, or earlier if it is due already.
        While it rests up to `REST_S` later, except for what is due at once (0)."""
        with self._changed:
            if self._timetable.enter(publication, at) < self._sleeps_until:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            ready = self._next()
            begun = time.thread_time()  # waiting for a server is no work, and keeps nobody from it
            self._flush(ready)
            with self._changed:
                self._timetable.worked(time.thread_time() - begun, now=time.monotonic())

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
    return _publishers.get(os.getpid()) or _begun()


def _begun() -> Publisher:
    with _lock:  # another thread may have begun it meanwhile
        found = _publishers.get(os.getpid())
        if found is None:
            found = _publishers[os.getpid()] = Publisher()
        return found
