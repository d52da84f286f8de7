"""The runs of a batch: so many open at once, what they came to in the order of their items."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mosaic_queues.errors import PayloadError
from mosaic_queues.transitions import RunRecord
from mosaic_tasks.cli.batches.items import Item
from mosaic_tasks.client import Run, await_any
from mosaic_tasks.reports.result import Result, Usage

AHEAD = 16
"""Behind a run that takes long so many times `at_once` others may end; their outputs stay in the server."""
LOOK_S = 1.0
"""When for so long no run ends, it is looked whether somebody serves them."""


@dataclass
class _Started:
    """An item that has begun; `status` is empty while its run is open."""

    item: Item
    run: Run | None = None
    status: str = ""
    error: str = ""
    usage: Usage | None = None


class Window:
    """Opens a run an item.

    Args:
        start: opens the run of an item, or gives the one that is open.
        at_once: so many are open at most.
        patience_s: how long a queue may be without worker.
        ended: is called with a status for each item that is over, in any order.

    Attributes:
        open: the runs that are open, by id.
    """

    def __init__(
        self,
        start: Callable[[Item], Run],
        *,
        at_once: int,
        patience_s: float,
        ended: Callable[[str], object],
    ) -> None:
        self._start, self._at_once, self._patience_s, self._ended = start, at_once, patience_s, ended
        self.open: dict[str, _Started] = {}
        self._line: deque[_Started] = deque()
        self._unserved_since: float | None = None

    def results(self, items: Iterator[Item]) -> Iterator[Result]:
        """What the items came to, in their order.

        Raises:
            NoWorker: nobody serves a queue that the oldest open run waits for.
        """
        self._fill(items)
        while self._line:
            if not self._line[0].status:
                self._await()
            while self._line and self._line[0].status:
                yield _result(self._line.popleft())
            self._fill(items)

    def _fill(self, items: Iterator[Item]) -> None:
        while len(self.open) < self._at_once and len(self._line) < self._at_once * AHEAD:
            item = next(items, None)
            if item is None:
                return
            self._line.append(self._begin(item))

    def _begin(self, item: Item) -> _Started:
        if item.problem:
            self._ended("bad")
            return _Started(item, None, "bad", item.problem)
        begun = _Started(item, self._start(item))
        assert begun.run is not None
        self.open[begun.run.id] = begun
        return begun

    def _await(self) -> None:
        runs = [begun.run for begun in self.open.values() if begun.run is not None]
        over = await_any(runs, timeout_s=min(LOOK_S, max(self._patience_s, 0.05)))
        for run in over:
            self._end(run)
        if over:
            self._unserved_since = None
        else:
            self._look_for_workers(runs[0])

    def _end(self, run: Run) -> None:
        record = run.record()
        if record.status == "running":  # somebody had it run again meanwhile
            return
        begun = self.open.pop(run.id)
        begun.status, begun.error, begun.usage = record.status, record.error, _usage(run, record)
        self._ended(record.status)

    def _look_for_workers(self, oldest: Run) -> None:
        unserved, now = oldest.unserved_queues(), time.monotonic()
        self._unserved_since = (self._unserved_since or now) if unserved else None
        if self._unserved_since is not None and now - self._unserved_since >= self._patience_s:
            raise oldest.no_worker(unserved)


def _result(begun: _Started) -> Result:
    status, output, error = begun.status, None, begun.error
    if begun.run is not None and status == "done":
        try:
            output = begun.run.output()
        except PayloadError as lost:
            status, error = "failed", f"its output cannot be read: {lost}"
    return Result(
        line=begun.item.number,
        run=None if begun.run is None else begun.run.id,
        status=status,
        key=begun.item.key,
        output=output,
        error=error,
        usage=begun.usage,
    )


def _usage(run: Run, record: RunRecord) -> Usage:
    nodes = run.view().nodes
    sent, received = (sum(node.tokens[side] for node in nodes) for side in (0, 1))
    return Usage(
        began_ms=record.created_ms,
        ended_ms=record.ended_ms or record.created_ms,
        tokens=(sent, received),
        cost_usd=sum(node.cost_usd for node in nodes),
    )
