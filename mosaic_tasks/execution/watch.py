"""A thread that looks at what this process runs, a few times a second while it runs anything."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import structlog
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)

TICK_S = 0.05


class Watched(Protocol):
    """What can be looked at from the watch's thread."""

    def look(self, now: float) -> None:
        """Acts on what takes too long; `now` is monotonic."""


W = TypeVar("W", bound=Watched)


class _Watch:
    def __init__(self) -> None:
        self._watched: set[Watched] = set()
        self._attended: set[Watched] = set()
        self._busy, self._hasty = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="mosaic-watch", daemon=True)
        self._thread.start()

    def add(self, watched: Watched) -> None:
        self._watched.add(watched)
        self._busy.set()

    def remove(self, watched: Watched) -> None:
        self._watched.discard(watched)

    def attend(self, watched: Watched) -> None:
        """Looks at it in every tick, once more when all work is done, but does not stay awake for it."""
        self._attended.add(watched)
        self._busy.set()

    def hasten(self) -> None:
        """Has it look now, if there is anything to look at."""
        self._hasty.set()

    def _run(self) -> None:
        while True:
            self._busy.wait()
            self._hasty.wait(TICK_S)
            self._hasty.clear()
            watched = list(self._watched)
            if not watched:
                self._busy.clear()
                if self._watched:
                    self._busy.set()
            for each in [*watched, *self._attended]:
                self._look(each)

    def _look(self, watched: Watched) -> None:
        try:
            watched.look(time.monotonic())
        except RedisError as error:
            log.warning("watch.failed", what="the watch could not act, it looks again", error=str(error))
        except Exception:
            log.exception("watch.error", what="the watch could not act, it looks again")


_watches: dict[int, _Watch] = {}
_lock = threading.Lock()


def _watch() -> _Watch:
    with _lock:
        watch = _watches.get(os.getpid())
        if watch is None:
            watch = _watches[os.getpid()] = _Watch()
        return watch


def attend(watched: Watched) -> None:
    """Has the watch look at `watched` from now on, while this process works and when it has finished."""
    _watch().attend(watched)


def hasten() -> None:
    """Has the watch look now, and not at its next tick."""
    _watch().hasten()


@contextmanager
def watching(watched: W) -> Iterator[W]:
    """Has the watch look at `watched` for as long as the context lasts."""
    watch = _watch()
    watch.add(watched)
    try:
        yield watched
    finally:
        watch.remove(watched)
