"""Decides how work is shared out: what a process goes on to itself, and how many calls a message carries.

Pure: lengths, counts and budgets in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

UNKNOWN_LENGTH_S = 0.002
"""Taken for a call that was never measured. Low on purpose: a batch that turns out long is handed back."""
MESSAGE_COST_S = 0.003
"""What a message costs its worker and the client together, measured (Celery 5.7, loopback)."""


COST_COUNTS = 50
"""Beside calls of so many times its cost, a message costs next to nothing."""
TOGETHER = 32
"""Calls that run together on one event loop."""


def calls_to_keep(
    ready: int, *, length_s: float | None, workers: int, budget_calls: int, budget_s: float
) -> int:
    """How many of `ready` calls the process that made them ready runs itself.

    All, when sending them costs more than running them; otherwise its fair share, within its budget, and never
    less than one: the process is at hand, and the values are warm.
    """
    length = UNKNOWN_LENGTH_S if length_s is None else length_s
    if ready == 0 or budget_calls <= 0 or budget_s <= 0:
        return 0
    share = ready if ready * length <= 2 * MESSAGE_COST_S else math.ceil(ready / max(workers, 1))
    affordable = max(1, _fitting(budget_s, length, ready))
    return min(share, affordable, budget_calls)


def batch_size(
    waiting: int,
    *,
    length_s: float | None,
    workers: int,
    batch_s: float,
    batch_calls: int,
    concurrent: bool = False,
    hosted: bool = False,
) -> int:
    """How many of `waiting` calls one message carries: `batch_s` of work, and something for every worker.

    Args:
        concurrent: they run together on an event loop, so that their lengths do not add up.
        hosted: each worker runs those of all its messages together. They share a message as far as its cost counts
            beside them: where it does not, each travels alone and goes where a slot is free.
    """
    length = UNKNOWN_LENGTH_S if length_s is None else length_s
    if concurrent:
        together = _fitting(COST_COUNTS * MESSAGE_COST_S, length, TOGETHER) if hosted else TOGETHER
        return max(1, min(math.ceil(waiting / max(workers, 1)), together, batch_calls))
    by_time = _fitting(batch_s, length, batch_calls)
    by_workers = math.ceil(waiting / max(2 * workers, 1))
    return max(1, min(by_time, by_workers, batch_calls))


def claim_size(length_s: float | None, *, window_s: float, most: int) -> int:
    """How many calls of a batch to claim at once: what starts within the window."""
    length = UNKNOWN_LENGTH_S if length_s is None else length_s
    return max(1, _fitting(window_s, length, most))


def calls_ahead(slots: int, *, length_s: float, batch_s: float) -> int:
    """How many calls a host has at hand beyond its slots: what will begin within `batch_s`, and no more than it has
    slots. So a slot that becomes free does not wait for a message."""
    return _fitting(slots * batch_s, length_s, slots)


def patience_s(*, length_s: float, batch_s: float) -> float:
    """How long a call that is at hand waits for a slot before somebody else is to have it: twice a message's share of
    work. Where nobody else could run it, for as long as two calls take, too: calls that began together end together, so
    all slots may become free at once and none before.

    Args:
        length_s: of calls, as far as a host looks ahead and is alone; 0: it is not.
    """
    return 2 * max(batch_s, length_s)


def _fitting(time_s: float, length_s: float, most: int) -> int:
    """How many calls of a length fit into a time, at most `most`; a length may be next to nothing."""
    return most if length_s * most <= time_s else int(time_s / length_s)


class Lengths:
    """Measured lengths of calls in seconds, by kind of call: a running mean that follows changes."""

    WEIGHT = 0.2

    def __init__(self) -> None:
        self._lengths: dict[Hashable, float] = {}

    def get(self, kind: Hashable) -> float | None:
        """The expected length, None when never measured."""
        return self._lengths.get(kind)

    def add(self, kind: Hashable, length_s: float) -> None:
        """Takes a measurement in."""
        known = self._lengths.get(kind)
        self._lengths[kind] = length_s if known is None else known + self.WEIGHT * (length_s - known)
