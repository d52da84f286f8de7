"""Messages whose calls block: a few threads drive them beside the event loop, as a worker without one would."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import structlog

from mosaic_tasks.execution.driver import drive
from mosaic_tasks.execution.hosted_run import Ticket
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.process import Process

log = structlog.get_logger(__name__)

THREADS = 4


class BlockingCalls(NamedTuple):
    """What a message brought of calls that block."""

    run_id: str
    plan: PreparedPlan
    calls: Sequence[str]
    ticket: Ticket
    since: float


class Blocking:
    """All but the driving happens in the clerk's thread. The threads are daemons: a call that does not end must not
    keep the process from ending, which `concurrent.futures` would.

    Args:
        ended: called in a thread when it has driven what it was given; `go_on` is to follow.
    """

    def __init__(self, process: Process, *, ended: Callable[[BlockingCalls], object]) -> None:
        self._process, self._told = process, ended
        self._waiting: deque[BlockingCalls] = deque()
        self._work: SimpleQueue[BlockingCalls | None] = SimpleQueue()
        self._running = self._threads = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not (self._running or self._waiting)

    def give(self, calls: BlockingCalls) -> None:
        """Drives them as soon as a thread is free."""
        self._waiting.append(calls)
        self._begin()

    def go_on(self) -> None:
        """A thread is free again."""
        self._running -= 1
        self._begin()

    def late(self, before: float) -> list[BlockingCalls]:
        """Those that have waited for a thread since before this monotonic time; they are not driven any more."""
        late = []
        while self._waiting and self._waiting[0].since < before:
            late.append(self._waiting.popleft())
        return late

    def close(self) -> None:
        """Ends its threads, once what they drive is over."""
        for _ in range(self._threads):
            self._work.put(None)

    def _begin(self) -> None:
        while self._waiting and self._running < THREADS:
            self._running += 1
            if self._running > self._threads:
                self._threads += 1
                threading.Thread(target=self._drive, name="mosaic-blocking", daemon=True).start()
            self._work.put(self._waiting.popleft())

    def _drive(self) -> None:
        while (given := self._work.get()) is not None:
            try:
                drive(self._process, given.run_id, given.calls)
            except BaseException:
                log.exception("host.drive", what="a message could not be driven", run=given.run_id)
            self._told(given)
