"""The other side: the same work written by hand with plain Celery and its stock Redis backend, in its best way.

Bodies do nothing but count. Results that nobody reads are not stored: header tasks and the steps of a chain ignore
them (a chord hands its header's results on all the same), and the client awaits the last task's own key.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from celery import Celery, chain, chord, group
from celery.canvas import Signature

URL = os.environ["BENCH_URL"]
TIMEOUT_S = 300.0

app = Celery("stock", broker=URL, backend=URL, set_as_current=True)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task(ignore_result=True)
def step(value: int) -> int:
    """One step of a chain."""
    return value + 1


@app.task
def last_step(value: int) -> int:
    """The last step, whose result is read."""
    return value + 1


@app.task(ignore_result=True)
def item(number: int) -> int:
    """One header task of a chord."""
    return number


@app.task
def total(results: list[int]) -> int:
    """The body of a chord."""
    return len(results)


@app.task(ignore_result=True)
def combine(values: list[int]) -> int:
    """One node of a layer: it reads all nodes of the layer before."""
    return max(values) + 1


@app.task(bind=True)
def next_layer(self: Any, values: list[int], width: int, left: int) -> Any:
    """The body of a layer's chord: replaces itself by the next layer's chord."""
    if left == 0:
        return max(values)
    return self.replace(layer(values, width, left))


def layer(values: list[int], width: int, left: int) -> Signature:
    """A layer that reads `values`, followed by `left - 1` more."""
    return chord(group(combine.s(values) for _ in range(width)), next_layer.s(width, left - 1))


def canvas(shape: str, size: int) -> Signature:
    """The canvas of a shape: a chain, a chord, or as many layers as they are wide."""
    if shape == "chain":
        return chain(step.s(0), *(step.s() for _ in range(size - 2)), last_step.s())
    if shape == "chord":
        return chord(group(item.s(number) for number in range(size)), total.s())
    if shape == "layers":
        return layer([0], size, size)
    raise ValueError(f"no shape {shape!r} on this side; give 'chain', 'chord' or 'layers'")


def prepare(shape: str, size: int) -> Callable[[], int]:
    """Defines the work; what it returns runs it once and gives its result."""
    work = canvas(shape, size)

    def run() -> int:
        # By its id alone: a result that knows its parents asks for each of the header's results.
        result: int = app.AsyncResult(work.apply_async().id).get(timeout=TIMEOUT_S)
        return result

    return run


def workers_answering(count: int) -> int:
    """How many of `count` workers answer now."""
    return len(app.control.ping(timeout=1.0, limit=count))
