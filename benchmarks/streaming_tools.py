"""What the workers of the streaming benchmark run: producers that keep a pace, folds that note what reaches them, and a
bare Celery task."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

import time
from collections.abc import Iterator

from mosaic_tasks import fold
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import process_for

BARE_TASK = "bench.noted"
BARE_NOTES = "bench:noted"
"""The list of what the bare task notes, in seconds."""


@app.task(name=BARE_TASK, ignore_result=True)
def noted_by_task(sent_s: float) -> None:
    """Notes how long ago it was sent."""
    latency_s = time.time() - sent_s
    process_for(app).client.rpush(BARE_NOTES, latency_s)


def ticking(count: int, period_s: float, phase_s: float = 0.0) -> Iterator[float]:
    """The time, again and again; a late tick does not shift those after it."""
    start_s = time.monotonic() + phase_s
    for number in range(count):
        time.sleep(max(0.0, start_s + number * period_s - time.monotonic()))
        yield time.time()


@fold()
def noted(state: None, times: list[float]) -> tuple[None, list[float]]:
    """How long ago each of these times was when the batch began."""
    now_s = time.time()
    return state, [now_s - told_s for told_s in times]


@fold()
def passed(state: None, values: list[float]) -> tuple[None, list[float]]:
    """The values as they are."""
    return state, values


@fold(initial=0, output="state")
def counted(state: int, values: list[float]) -> tuple[int, list[float]]:
    """How many values came."""
    return state + len(values), []


@fold()
def sized(state: None, values: list[float]) -> tuple[None, list[int]]:
    """How many values each batch had."""
    return state, [len(values)]


def numbers(count: int) -> Iterator[float]:
    """As fast as they can be had."""
    yield from map(float, range(count))
