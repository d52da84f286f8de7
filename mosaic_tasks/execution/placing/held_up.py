"""Calls that limits did not let through where they were sent: they go elsewhere, or wait as long as limits say.

Not all limits are known when a call is placed: those of tenants are not, nor whether a rate has room for so much.
Without this such a call would be sent to the same target again at once, and come back, as fast as messages travel.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import NamedTuple

from mosaic_routing.guards import Limited

KEPT = 4_096
"""Calls of which it is kept; the latest."""


class Stop(NamedTuple):
    """Where a call was held up, until when (monotonic), and what limits said last."""

    targets: tuple[str, ...]
    until_s: float
    reason: str

    @property
    def left_s(self) -> float:
        """Until the limits may let it through; 0: now."""
        return max(self.until_s - time.monotonic(), 0.0)


class HeldUp:
    """What this process knows of it. Thread-safe, and it never blocks: calls tell it from the event loop."""

    def __init__(self) -> None:
        self._stops: OrderedDict[str, Stop] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, permit: str, target: str, error: Limited) -> None:
        """A call was held up at one more target."""
        with self._lock:
            targets = (*self.targets(permit), target)
            self._stops.pop(permit, None)
            self._stops[permit] = Stop(targets, time.monotonic() + error.wait_s, str(error))
            if len(self._stops) > KEPT:
                self._stops.popitem(last=False)

    def targets(self, permit: str) -> tuple[str, ...]:
        """Where a call is held up."""
        stop = self._stops.get(permit)
        return stop.targets if stop and stop.left_s else ()

    def end(self, permit: str) -> Stop | None:
        """A call that is held up wherever it could go waits now, and may then go anywhere again."""
        with self._lock:
            return self._stops.pop(permit, None)


__all__ = ["HeldUp", "Stop"]
