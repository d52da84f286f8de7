"""Tools of the tests of faults in streams; some wait at a gate until their test opens it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mosaic_tasks import fold
from tests.integration.stream_tools import first, gate, tell


def says_and_fails(n: int) -> Iterator[int]:
    """0..n-1, and fails at the gate `more`."""
    yield from range(n)
    gate("more")
    raise RuntimeError("no such luck")


def first_waits_and_fails(n: int) -> Iterator[int]:
    """The first waits at the gate `zombie` and fails; others say 0..n-1, with the gate `more` before the last."""
    if first("zombie"):
        tell("begun", "zombie")
        yield 0
        gate("zombie")
        raise RuntimeError("the first one fails")
    tell("begun", "second")
    for number in range(n):
        if number == n - 1:
            gate("more")
        yield number


def gated_again(n: int, name: str) -> Iterator[int]:
    """0..n-1; from its second run on, shifted by 100, with a gate before the last."""
    shift = 0 if first(name) else 100
    for number in range(n):
        if shift and number == n - 1:
            tell("again", name)
            gate(name)
        yield number + shift


@fold(initial=(0, 0), finish=lambda state: [state[0] / state[1]])
def mean(state: list[int], values: list[int]) -> tuple[list[int], list[float]]:
    return [state[0] + sum(values), state[1] + len(values)], []


@fold(initial=())
def seen(state: list[int], values: list[int]) -> tuple[list[int], list[int]]:
    tell("seen", len(state) + len(values))
    return [*state, *values], values


def linger_source(n: int) -> Iterator[int]:
    """Says 0..6, then fails at the gate `fail`; then says 0, 101, 102, ..., n + 99."""
    is_first = first("linger")
    for number in range(7 if is_first else n):
        time.sleep(0 if is_first else 0.05)  # each in a chunk of its own
        yield number if is_first or not number else number + 100
    if is_first:
        gate("fail")
        raise RuntimeError("breaks once")


def told_item(x: Any) -> Any:
    tell("item", x)
    return x


@fold(initial=(0, 0), output="state")
def pairs(state: list[int], x: list[int], y: list[int]) -> tuple[list[int], list[int]]:
    """How much came of each."""
    return [state[0] + len(x), state[1] + len(y)], []


@fold(initial=0)
def two_batches_fail_once(state: int, values: list[int]) -> tuple[int, list[int]]:
    if state in (2, 4) and first(f"batch {state}"):
        raise RuntimeError(f"batch {state} fails")
    return state + 1, list(values)
