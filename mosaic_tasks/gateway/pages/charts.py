"""Runs that people look at, each folded as far as its events go: a look costs what is new, and not the whole run."""

from __future__ import annotations

import threading
from collections import OrderedDict

from mosaic_queues.events import read_events
from mosaic_queues.following import last_entry
from mosaic_queues.ledger import Ledger
from mosaic_queues.streams import Position, position_of
from mosaic_tasks.client import Run
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.inspection.diagram import Diagram, diagram
from mosaic_tasks.inspection.progress import RunView
from mosaic_tasks.inspection.timeline import Charting, Timeline

MOST_NODES = 20_000
"""So many nodes of all runs together are kept: some 30 MB."""


class Chart:
    """One run; may be shared by threads."""

    def __init__(self, run: Run, ledger: Ledger) -> None:
        self.plan: Plan = run.plan()
        self._run_id, self._ledger, self._lock = run.id, ledger, threading.Lock()
        self._diagram: Diagram | None = None
        self._begin()

    def _begin(self) -> None:
        self._charting, self._seen = Charting(self.plan, run_id=self._run_id), "0"

    def diagram(self) -> Diagram:
        """The drawing of its plan, made once."""
        with self._lock:
            if self._diagram is None:
                self._diagram = diagram(self.plan)
            return self._diagram

    def look(self, *, now_ms: int) -> tuple[RunView, Timeline]:
        """The run as it is now."""
        with self._lock:
            view = self._fold()
            return view, self._charting.timeline(view, now_ms=now_ms)

    def view(self) -> RunView:
        """The state of its nodes as it is now."""
        with self._lock:
            return self._fold()

    def _fold(self) -> RunView:
        """Takes in what is new. A server that lost its last second has not what was taken in: all is read again."""
        client, keys = self._ledger.client, self._ledger.keys
        events = keys.run(self._run_id)[3]
        if self._seen != "0" and position_of(last_entry(client, events)) < _entry(self._seen):
            self._begin()
        for event in read_events(client, keys, self._run_id, after=self._seen):
            self._charting.apply(event)
            self._seen = event.id
        return self._charting.progress.view()


def _entry(event_id: str) -> Position:
    return position_of(event_id.partition("/")[0])


class Charts:
    """Those of the runs that were looked at last."""

    def __init__(self, ledger: Ledger, *, most_nodes: int = MOST_NODES) -> None:
        self._ledger, self._most_nodes, self._nodes = ledger, most_nodes, 0
        self._kept: OrderedDict[str, Chart] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, run: Run) -> Chart:
        """That of a run; it is up to date once it is looked at."""
        with self._lock:
            if run.id in self._kept:
                self._kept.move_to_end(run.id)
                return self._kept[run.id]
        chart = Chart(run, self._ledger)
        with self._lock:
            return self._keep(run.id, chart)

    def _keep(self, run_id: str, chart: Chart) -> Chart:
        if run_id not in self._kept:
            self._kept[run_id] = chart
            self._nodes += len(chart.plan.nodes)
        while self._nodes > self._most_nodes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._nodes -= len(oldest.plan.nodes)
        return self._kept[run_id]
