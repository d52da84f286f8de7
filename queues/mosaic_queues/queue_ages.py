"""How long calls have waited and run, by queue: what one look at all unfinished runs comes to. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mosaic_queues.transitions import LiveCall


class QueueAge(msgspec.Struct):
    """Of one queue; ages in milliseconds, of the oldest.

    Attributes:
        ready: calls that wait to be claimed.
        claimed: calls that run.
    """

    ready: int = 0
    claimed: int = 0
    ready_ms: int = 0
    claimed_ms: int = 0


class QueueAges(msgspec.Struct):
    """Of all queues that calls wait or run in.

    Attributes:
        runs: that are not over.
    """

    runs: int = 0
    queues: dict[str, QueueAge] = {}

    def add(self, calls: Iterable[LiveCall], *, now_ms: int) -> None:
        """Takes in the calls of a run."""
        self.runs += 1
        for call in calls:
            if call.state not in ("ready", "claimed"):
                continue
            age, ms = self.queues.setdefault(call.queue, QueueAge()), max(now_ms - call.at_ms, 0)
            if call.state == "ready":
                age.ready, age.ready_ms = age.ready + 1, max(age.ready_ms, ms)
            else:
                age.claimed, age.claimed_ms = age.claimed + 1, max(age.claimed_ms, ms)


__all__ = ["QueueAge", "QueueAges"]
