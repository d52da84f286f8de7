"""Shows a run while it runs: a table that renews itself on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mosaic_queues.events import Event
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.inspection.arranging import arranged, label
from mosaic_tasks.inspection.decisions import in_short
from mosaic_tasks.inspection.progress import NodeState, NodeView, Progress, state_counts
from mosaic_tasks.inspection.wording import duration, listed

if TYPE_CHECKING:
    from mosaic_queues.transitions import RunRecord
    from mosaic_tasks.client import Run

_REFRESH_PER_S = 8
_LAST_EVENTS_S = 5.0
"""Once the run is over its last events are at hand."""
_STEPS = 10
"""A fan-out tells its progress in so many lines."""
_ORDER: tuple[NodeState, ...] = (
    "failed",
    "running",
    "ready",
    "done",
    "skipped",
    "cancelled",
    "cut",
    "waiting",
)
_STYLES: dict[NodeState, tuple[str, str]] = {
    "waiting": ("·", "dim"),
    "ready": ("○", "yellow"),
    "running": ("●", "cyan"),
    "done": ("✓", "green"),
    "skipped": ("-", "dim"),
    "failed": ("✗", "bold red"),
    "cancelled": ("-", "red"),
    "cut": ("×", "dim"),
}


class Display(Protocol):
    """Shows events as they come."""

    def know(self, event: Event) -> None:
        """Takes in what happened earlier."""

    def show(self, event: Event) -> None:
        """Takes the next event in."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def watch(
    run: Run,
    console: Console,
    *,
    known: Sequence[Event] = (),
    timeout_s: float | None = None,
    no_worker_s: float | None,
) -> RunRecord:
    """Shows a run's progress until its end.

    Args:
        console: a terminal gets the table, anything else lines.
        known: what happened so far and is not to be told again.
        timeout_s: as `Run.wait`.
        no_worker_s: as `Run.wait`.

    Raises:
        WaitTimeout: the time is over.
        NoWorker: nobody serves a queue that the run waits for.
    """
    with display(run.plan(), run.id, console) as shown:
        for event in known:
            shown.know(event)
        after = known[-1].id if known else "0"
        follower = threading.Thread(target=_follow, args=(run, shown, after), name="mosaic-live", daemon=True)
        follower.start()
        record = run.wait(timeout_s, no_worker_s=no_worker_s)
        follower.join(_LAST_EVENTS_S)
    return record


def _follow(run: Run, shown: Display, after: str) -> None:
    from redis.exceptions import RedisError

    try:
        for event in run.events(follow=True, after=after):
            shown.show(event)
    except (RedisError, OSError, ValueError):
        return  # the server is away, which whoever waits tells, or the connection was closed under the reader


def display(plan: Plan, run_id: str, console: Console) -> Display:
    """The display that suits a console."""
    can_redraw = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
    return (Board if can_redraw else Lines)(plan, run_id, console)


class Board:
    """A table of the nodes that matter most now, renewed several times a second."""

    def __init__(self, plan: Plan, run_id: str, console: Console) -> None:
        self._progress, self._console = Progress(plan, run_id=run_id), console
        self._nodes = list(self._progress.view().nodes)
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=_REFRESH_PER_S, transient=False
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        """Takes the next event in."""
        for number in self._progress.apply(event):
            self._nodes[number] = self._progress.node(number)

    know = show

    def _render(self) -> Group:
        return render(self._progress, list(self._nodes), int(time.time() * 1000), self._console.height - 3)


def render(progress: Progress, nodes: Sequence[NodeView], now_ms: int, rows: int) -> Group:
    """The table of at most `rows` nodes, what mixtures asked below them, and a line about the whole."""
    table = Table(box=None, show_header=False, pad_edge=False, expand=True)
    for justify in ("left", "left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for node in chosen(arranged(nodes), max(rows, 1)):
        mark, style = _STYLES[node.state]
        cells = (mark, label(node), node.state, _time(node, now_ms), _calls(node))
        notes = [f"epoch {node.epoch}" if node.epoch else "", _note(node, now_ms)]
        table.add_row(
            *(Text(cell, style=style) for cell in cells), Text(", ".join(filter(None, notes)), style="dim")
        )
    about = Text(summary(progress, nodes, now_ms), style="bold", no_wrap=True, overflow="ellipsis")
    return Group(table, about)


def chosen(nodes: Sequence[NodeView], rows: int) -> list[NodeView]:
    """The nodes to show where not all fit: what failed and runs first, in the plan's order."""
    if len(nodes) <= rows:
        return list(nodes)
    rank = {state: place for place, state in enumerate(_ORDER)}
    best = sorted(range(len(nodes)), key=lambda number: (rank[nodes[number].state], number))[:rows]
    return [nodes[number] for number in sorted(best)]


def summary(progress: Progress, nodes: Iterable[NodeView], now_ms: int) -> str:
    """Workflow, run, time, and how many nodes are in each state."""
    counts = state_counts(nodes)
    told = ", ".join(f"{counts[state]} {state}" for state in _ORDER if state in counts)
    since = progress.begun_ms if progress.begun_ms is not None else now_ms
    took = duration((progress.closed_ms or max(now_ms, since)) - since)
    return f"{progress.plan.name} {progress.run_id}: {progress.status}, {took}: {told}"


def _time(node: NodeView, now_ms: int) -> str:
    took = node.running_ms(now_ms)
    return "" if took is None else duration(took)


def _calls(node: NodeView) -> str:
    if node.grows and node.calls:
        return f"{node.calls_done} of {node.calls}+ items"
    return f"{node.calls_done}/{node.calls}" if node.calls > 1 else ""


def _note(node: NodeView, now_ms: int) -> str:
    if node.state == "failed":
        return node.error
    if node.retry_at_ms is not None:
        return f"next attempt {_due(node.retry_at_ms - now_ms)}, after: {node.error}"
    if node.state == "cut":
        return "not needed any more"
    if node.is_over and (node.record is not None or node.asked_by):
        return _outcome(node)
    if node.losses and not node.is_over:
        return f"its process died {node.losses} times" if node.losses > 1 else "its process died"
    return f"in queue {node.queue}" if node.state == "ready" else ""


def _outcome(node: NodeView) -> str:
    """What a mixture came to, or one whom it asked."""
    if node.record is not None:
        return in_short(node.record)
    cut = f"{node.calls_cut} cut off" if node.calls_cut else ""
    return ", ".join(filter(None, (f"not counted: {node.error}" if node.error else "", cut)))


def _due(left_ms: int) -> str:
    return f"in {duration(left_ms)}" if left_ms > 0 else "is due"


class Lines:
    """A line for each change of a node's state, and ten for the items of a fan-out; some more where it grows."""

    def __init__(self, plan: Plan, run_id: str, console: Console) -> None:
        self._progress, self._console = Progress(plan, run_id=run_id), console
        self._states: list[NodeState] = ["waiting"] * len(plan.nodes)
        self._told_done = [0] * len(plan.nodes)
        self._told_retries = [0] * len(plan.nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put back."""

    def know(self, event: Event) -> None:
        """Takes in what happened earlier; prints nothing."""
        for number in self._progress.apply(event):
            self._take_over(number)

    def show(self, event: Event) -> None:
        """Takes the next event in and prints what it changed."""
        touched = self._progress.apply(event)
        if event.kind == "opened":
            self._print(event, f"run {self._progress.run_id} of {event.detail}")
        elif event.kind == "redo":
            self._run_again(touched, event)
        for number in touched:
            for told in self._changes(number, event):
                self._print(event, told)
        if event.kind == "closed":
            self._print(event, f"run {event.detail}")

    def _run_again(self, numbers: Sequence[int], event: Event) -> None:
        names = [self._progress.plan.nodes[number].name for number in numbers]
        self._print(
            event, f"epoch {event.detail}: {listed(names)} {'run' if len(names) > 1 else 'runs'} again"
        )
        for number in numbers:
            self._take_over(number)

    def _take_over(self, number: int) -> None:
        """Goes on from a node's state as from one that was told."""
        node = self._progress.node(number)
        self._states[number], self._told_retries[number] = node.state, node.retries
        self._told_done[number] = node.calls_done

    def _print(self, event: Event, told: str) -> None:
        since = event.at_ms - (self._progress.begun_ms or event.at_ms)
        self._console.print(f"{duration(since):>10}  {told}", soft_wrap=True)

    def _changes(self, number: int, event: Event) -> Iterator[str]:
        node, before = self._progress.node(number), self._states[number]
        self._states[number] = node.state
        if node.asked_by and not node.calls:
            return
        if node.retries > self._told_retries[number]:
            self._told_retries[number] = node.retries
            yield (
                f"{node.name}: {_note(node, event.at_ms)}"
                if node.retry_at_ms
                else f"{node.name}: {node.error}"
            )
        elif event.kind == "lost":
            yield f"{node.name}: process {event.holder} died, its work is taken over"
        elif node.state != before and node.state != "cancelled":
            yield _line(node, event)
        elif node.calls > 1 and node.calls_done - self._told_done[number] >= math.ceil(node.calls / _STEPS):
            self._told_done[number] = node.calls_done
            yield f"{node.name}: {_calls(node)}"


def _line(node: NodeView, event: Event) -> str:
    took = f" after {_time(node, event.at_ms)}" if node.is_over and node.started_ms is not None else ""
    note = _note(node, event.at_ms)
    return f"{node.name}: {node.state}{took}{f' ({note})' if note else ''}"
