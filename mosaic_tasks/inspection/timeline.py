"""Draws when each node of a run waited and ran: a Gantt chart as text or as SVG.

Pure: a plan and its events in, a drawing out. A node has a lane for each time that it was executed, labelled with the
epoch. The calls of a fan-out share their node's lane: it shows a run while any of them runs. Where a call lost its
process, the lane is broken, and the loss is told. What a mixture asked stands below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape

from mosaic_queues.events import Event
from mosaic_queues.transitions import RunStatus
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.inspection.arranging import arranged, label
from mosaic_tasks.inspection.decisions import in_short
from mosaic_tasks.inspection.progress import NodeState, NodeView, Progress, RunView, told_hedges
from mosaic_tasks.inspection.wording import duration

Activity = Literal["wait", "pause", "idle", "run"]


class Segment(NamedTuple):
    """A stretch of time with one activity: `wait` in a queue, `pause` before a retry, `idle` until there is more to
    read, or `run`."""

    activity: Activity
    start_ms: int
    end_ms: int


class Loss(NamedTuple):
    """The end of an attempt whose process died."""

    at_ms: int
    process: str


class Lane(NamedTuple):
    """One execution of a node, begun in an epoch. `calls` is above 1 where a fan-out's items are merged; `hedges` tells
    of calls that took long and were asked a second time, `decision` what a mixture came to that `asked_by` names."""

    name: str
    state: NodeState
    calls: int
    segments: tuple[Segment, ...]
    epoch: int = 0
    losses: tuple[Loss, ...] = ()
    hedges: str = ""
    asked_by: str = ""
    decision: str = ""

    def total_ms(self, activity: Activity) -> int:
        """How long it did that."""
        return sum(part.end_ms - part.start_ms for part in self.segments if part.activity == activity)


class Timeline(NamedTuple):
    """A run's lanes by the time of their start, those of a mixture below it; nodes that never started come last."""

    run_id: str
    name: str
    status: RunStatus
    start_ms: int
    end_ms: int
    lanes: tuple[Lane, ...]


class Charting:
    """The lanes of a run, event by event.

    Attributes:
        progress: the state of the run.
    """

    def __init__(self, plan: Plan, *, run_id: str = "") -> None:
        self.progress = Progress(plan, run_id=run_id)
        self._tracks = [_Track() for _ in plan.nodes]
        self._earlier: list[Lane] = []
        self._last_ms = 0

    def apply(self, event: Event) -> None:
        """Takes the next event in."""
        self._last_ms = event.at_ms
        if event.kind == "redo":
            self._begin_again(event)
        for number in self.progress.apply(event):
            if event.kind == "lost":
                self._tracks[number].lose(event)
            self._tracks[number].enter(_activity(self.progress.node(number)), event.at_ms)

    def timeline(self, view: RunView, *, now_ms: int) -> Timeline:
        """The lanes so far; what is not over reaches to `now_ms`.

        Args:
            view: that of `progress`.
        """
        end_ms = view.closed_ms or max(now_ms, self._last_ms)
        lanes = [*self._earlier]
        lanes += [_lane(node, track, end_ms) for node, track in zip(view.nodes, self._tracks, strict=True)]
        lanes.sort(key=lambda lane: lane.segments[0].start_ms if lane.segments else end_ms + 1)
        start_ms = view.opened_ms or min(
            (lane.segments[0].start_ms for lane in lanes if lane.segments), default=end_ms
        )
        return Timeline(view.run_id, view.name, view.status, start_ms, end_ms, tuple(arranged(lanes)))

    def _begin_again(self, event: Event) -> None:
        """Keeps the lanes of nodes that run again, as far as they had come."""
        for number in map(int, event.calls):
            node = self.progress.node(number)
            ended = node if node.is_over else node._replace(state="cancelled")
            lane = _lane(ended, self._tracks[number], event.at_ms)
            self._tracks[number] = _Track()
            if lane.segments:
                self._earlier.append(lane)


def timeline(plan: Plan, events: Iterable[Event], *, now_ms: int, run_id: str = "") -> Timeline:
    """The lanes of a run; what is not over reaches to `now_ms`."""
    charting = Charting(plan, run_id=run_id)
    for event in events:
        charting.apply(event)
    return charting.timeline(charting.progress.view(), now_ms=now_ms)


def _lane(node: NodeView, track: _Track, end_ms: int) -> Lane:
    return Lane(
        node.name,
        node.state,
        node.calls,
        track.segments(end_ms),
        node.epoch,
        tuple(track.losses),
        told_hedges(node),
        node.asked_by,
        "" if node.record is None else in_short(node.record),
    )


class _Track:
    """Collects one lane's segments and losses."""

    def __init__(self) -> None:
        self.losses: list[Loss] = []
        self._segments: list[Segment] = []
        self._current: Activity | None = None
        self._since = 0

    def enter(self, activity: Activity | None, at_ms: int) -> None:
        if activity == self._current:
            return
        self._leave(at_ms)
        self._current, self._since = activity, at_ms

    def lose(self, event: Event) -> None:
        """Ends the segment, whatever goes on beside the attempt that is lost."""
        self._leave(event.at_ms)
        self.losses.append(Loss(event.at_ms, event.holder))

    def segments(self, until_ms: int) -> tuple[Segment, ...]:
        """Those so far; what goes on reaches to `until_ms`."""
        if self._current is None:
            return tuple(self._segments)
        return (*self._segments, Segment(self._current, self._since, until_ms))

    def _leave(self, at_ms: int) -> None:
        if self._current is not None:
            self._segments.append(Segment(self._current, self._since, at_ms))
            self._current = None


def _activity(node: NodeView) -> Activity | None:
    if node.is_over or node.ready_ms is None:
        return None
    if node.calls_running:
        return "run"
    if node.retry_at_ms is not None:
        return "pause"
    return "idle" if node.is_idle else "wait"


# -- drawing: both forms paint the lane on a raster first ----------------------------------------------------

Cell = Activity | Literal["lost"] | None

_WEIGHT: dict[Cell, int] = {None: 0, "idle": 1, "wait": 2, "pause": 3, "run": 4}


def column_of(at_ms: int, chart: Timeline, columns: int) -> int:
    """Where a moment stands on so many columns."""
    scale = columns / max(chart.end_ms - chart.start_ms, 1)
    return min(int((at_ms - chart.start_ms) * scale), columns - 1)


def _raster(lane: Lane, chart: Timeline, columns: int) -> list[Cell]:
    """What stands in each column; where activities meet, running wins, so that short runs are seen."""
    cells: list[Cell] = [None] * columns
    scale = columns / max(chart.end_ms - chart.start_ms, 1)
    for activity, start_ms, end_ms in lane.segments:
        first = column_of(start_ms, chart, columns)
        last = max(first + 1, min(round((end_ms - chart.start_ms) * scale), columns))
        for column in range(max(first, 0), last):
            if _WEIGHT[activity] > _WEIGHT[cells[column]]:
                cells[column] = activity
    return cells


_MARKS: dict[Cell, str] = {None: " ", "idle": "·", "wait": "░", "pause": "▒", "run": "█", "lost": "×"}
_ASCII_MARKS: dict[Cell, str] = {None: " ", "idle": "~", "wait": ".", "pause": "-", "run": "#", "lost": "x"}
_MEANINGS: dict[Activity, str] = {
    "run": "runs",
    "wait": "waits in queue",
    "pause": "waits to retry",
    "idle": "waits for more",
}
_NAME_WIDTH = 28
_NARROWEST_BAR = 10


def draw_text(chart: Timeline, *, width: int = 80, ascii_only: bool = False) -> str:
    """The chart in `width` columns: a scale, a line a node, what the marks mean, a line a loss, what was asked a second
    time, and what mixtures came to."""
    marks = _ASCII_MARKS if ascii_only else _MARKS
    labels = [lane_label(lane) for lane in chart.lanes]
    notes = [lane_note(lane) for lane in chart.lanes]
    name_width = max(map(len, labels), default=0)
    bar = max(width - name_width - max(map(len, notes), default=0) - 4, _NARROWEST_BAR)
    lines = [_title(chart)]
    lines.append(f"{'':{name_width}} |{_scale(chart, bar)}|")
    for lane, named, note in zip(chart.lanes, labels, notes, strict=True):
        cells = _raster(lane, chart, bar)
        for loss in lane.losses:
            cells[column_of(loss.at_ms, chart, bar)] = "lost"
        painted = "".join(marks[cell] for cell in cells)
        lines.append(f"{named:{name_width}} |{painted}| {note}".rstrip())
    lines.append("  ".join(f"{marks[activity]} {meaning}" for activity, meaning in _MEANINGS.items()))
    for lane, named in zip(chart.lanes, map(str.lstrip, labels), strict=True):
        lines += [_cut(f"{marks['lost']} {named}: {told_loss(loss, chart)}", width) for loss in lane.losses]
        lines += [_cut(f"{named}: {told}", width) for told in (lane.hedges, lane.decision) if told]
    return "\n".join(lines)


def told_loss(loss: Loss, chart: Timeline) -> str:
    """What is told of a loss."""
    return f"process {loss.process} died, lost after {duration(loss.at_ms - chart.start_ms)}"


def _title(chart: Timeline) -> str:
    return f"{chart.name}: {chart.status}, {duration(chart.end_ms - chart.start_ms)}"


def lane_label(lane: Lane) -> str:
    """The name, which is cut where it is too long, with the number of items and the epoch behind it."""
    behind = f" x{lane.calls}" if lane.calls > 1 else ""
    behind += f" (epoch {lane.epoch})" if lane.epoch else ""
    return _cut(label(lane), _NAME_WIDTH - len(behind)) + behind


def lane_note(lane: Lane) -> str:
    """How long it ran, and how it ended where that is not well; the state of a node that never started."""
    if not lane.segments:
        return lane.state
    ran = duration(lane.total_ms("run"))
    return ran if lane.state == "done" else f"{ran} {lane.state}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 2]}.."


def _scale(chart: Timeline, width: int) -> str:
    """`0`, the middle and the end of the run's time, spread over `width`."""
    total = chart.end_ms - chart.start_ms
    middle, end = duration(total / 2), duration(total)
    if 1 + len(middle) + len(end) + 4 > width:
        return f"0{end:>{width - 1}}"
    left = f"0{middle:>{width // 2 + len(middle) // 2 - 1}}"
    return f"{left}{end:>{width - len(left)}}"


_ROW, _TOP, _LEFT, _BAR, _RIGHT = 22, 58, 210, 680, 120
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328; } .title { font-size: 15px; font-weight: 600; }
  .end { text-anchor: end; } .middle { text-anchor: middle; } .faint { fill: #59636e; }
  .ground { fill: #ffffff; } .grid { stroke: #d1d9e0; }
  .run { fill: #1f6feb; } .wait { fill: #c8d1da; } .idle { fill: #b6e3ff; } .pause { fill: #d4a72c; }
  .failed, .lost { fill: #cf222e; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .faint { fill: #9198a1; } .ground { fill: #0d1117; } .grid { stroke: #3d444d; }
    .run { fill: #4493f8; } .wait { fill: #4b535d; } .idle { fill: #0c2d6b; } .pause { fill: #d29922; }
    .failed, .lost { fill: #f85149; }
  }
"""


def draw_svg(chart: Timeline) -> str:
    """The chart as one self-contained SVG file; it follows the viewer's light or dark mode."""
    width, height = _LEFT + _BAR + _RIGHT, _TOP + _ROW * len(chart.lanes) + 16
    title = escape(_title(chart))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title">',
        f'<title id="title">{title}</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{height}"/>',
        f'<text class="title" x="12" y="24">{title}</text>',
        *_svg_legend(width),
        *_svg_grid(chart, height),
        *(part for row, lane in enumerate(chart.lanes) for part in _svg_lane(lane, chart, _TOP + _ROW * row)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _svg_legend(width: int) -> Iterator[str]:
    x = width - sum(34 + 8 * len(meaning) for meaning in _MEANINGS.values())
    for activity, meaning in _MEANINGS.items():
        yield f'<rect class="{activity}" x="{x}" y="14" width="12" height="12" rx="2"/>'
        yield f'<text class="faint" x="{x + 17}" y="24">{meaning}</text>'
        x += 34 + 8 * len(meaning)


def _svg_grid(chart: Timeline, height: int, parts: int = 4) -> Iterator[str]:
    for step in range(parts + 1):
        x = _LEFT + _BAR * step // parts
        at = duration((chart.end_ms - chart.start_ms) * step / parts) if step else "0"
        yield f'<line class="grid" x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{height - 10}"/>'
        yield f'<text class="faint middle" x="{x}" y="{_TOP - 12}">{at}</text>'


def _svg_lane(lane: Lane, chart: Timeline, y: int) -> Iterator[str]:
    baseline = y + 13
    ran, waited = duration(lane.total_ms("run")), duration(lane.total_ms("wait"))
    named = f"{lane.name} (epoch {lane.epoch})" if lane.epoch else lane.name
    about = "".join(f"; {told}" for told in (lane.hedges, lane.decision) if told)
    yield f"<g><title>{escape(f'{named}: {lane.state}, ran {ran}, waited {waited}{about}')}</title>"
    yield f'<text class="end" x="{_LEFT - 10}" y="{baseline}">{escape(lane_label(lane))}</text>'
    for activity, first, last in stretches(lane, chart, _BAR):
        looks = "failed" if lane.state == "failed" and activity == "run" else activity
        yield f'<rect class="{looks}" x="{_LEFT + first}" y="{y + 2}" width="{last - first}" height="14"/>'
    for loss in lane.losses:
        yield f'<rect class="lost" x="{_LEFT + column_of(loss.at_ms, chart, _BAR)}" y="{y}" width="3" height="18">'
        yield f"<title>{escape(told_loss(loss, chart))}</title></rect>"
    yield f'<text class="faint" x="{_LEFT + _BAR + 8}" y="{baseline}">{escape(lane_note(lane))}</text></g>'


def stretches(lane: Lane, chart: Timeline, columns: int) -> Iterator[tuple[str, int, int]]:
    """The lane on so many columns: neighbouring ones with the same activity, as (activity, first, end)."""
    column = 0
    for activity, group in groupby(_raster(lane, chart, columns)):
        length = len(list(group))
        if activity is not None:
            yield activity, column, column + length
        column += length
