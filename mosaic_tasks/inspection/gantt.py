"""A run's lanes as bars on a raster, for a page: the same facts that `timeline` draws as text and as a file.

Pure. Of very many lanes those that people want to see first are kept: what failed, what runs, what ran longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mosaic_tasks.inspection.diagram import URGENCY
from mosaic_tasks.inspection.timeline import (
    Lane,
    Timeline,
    column_of,
    lane_label,
    lane_note,
    stretches,
    told_loss,
)
from mosaic_tasks.inspection.wording import duration

MOST_LANES = 100
COLUMNS = 640
_TICKS = 4


class Bar(NamedTuple):
    """A stretch of one activity, in columns."""

    activity: str
    start: int
    width: int


class Mark(NamedTuple):
    """Where an attempt was lost, and what is told of it."""

    column: int
    words: str


class Row(NamedTuple):
    """A lane: its label, bars and losses, how it ended, and all of it in words."""

    lane: Lane
    label: str
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    note: str
    words: str


class Gantt(NamedTuple):
    """The chart.

    Attributes:
        ticks: (column, time) of the axis.
        hidden: so many lanes are left out.
    """

    rows: tuple[Row, ...]
    ticks: tuple[tuple[int, str], ...]
    hidden: int


def gantt(chart: Timeline) -> Gantt:
    """The chart of a run's lanes."""
    lanes = _kept(chart.lanes)
    length_ms = chart.end_ms - chart.start_ms
    ticks = tuple(
        (COLUMNS * step // _TICKS, duration(length_ms * step / _TICKS) if step else "0")
        for step in range(_TICKS + 1)
    )
    rows = tuple(_row(lane, chart) for lane in lanes)
    return Gantt(rows, ticks, len(chart.lanes) - len(lanes))


def _kept(lanes: Sequence[Lane]) -> list[Lane]:
    """At most so many as are shown, in their order."""
    first = sorted(lanes, key=lambda lane: (URGENCY.index(lane.state), -lane.total_ms("run")))[:MOST_LANES]
    kept = set(map(id, first))
    return [lane for lane in lanes if id(lane) in kept]


def _row(lane: Lane, chart: Timeline) -> Row:
    bars = tuple(
        Bar("failed" if lane.state == "failed" and activity == "run" else activity, start, end - start)
        for activity, start, end in stretches(lane, chart, COLUMNS)
    )
    marks = tuple(Mark(column_of(loss.at_ms, chart, COLUMNS), told_loss(loss, chart)) for loss in lane.losses)
    return Row(lane, lane_label(lane), bars, marks, lane_note(lane), _words(lane, marks))


def _words(lane: Lane, marks: Sequence[Mark]) -> str:
    named = f"{lane.name} (epoch {lane.epoch})" if lane.epoch else lane.name
    times = f"ran {duration(lane.total_ms('run'))}, waited {duration(lane.total_ms('wait'))}"
    told = (f"{named}: {lane.state}, {times}", lane.hedges, lane.decision, *(mark.words for mark in marks))
    return "; ".join(filter(None, told))


__all__ = ["COLUMNS", "MOST_LANES", "Bar", "Gantt", "Mark", "Row", "gantt"]
