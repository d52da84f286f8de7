"""An event loop on which time passes only while there is nothing to do, so that timers cost none and are exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class _NoWaiting(selectors.SelectSelector):
    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.skipped_s += timeout or 0.0
        return super().select(0 if timeout else timeout)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock jumps to the next timer."""

    def __init__(self, begins_s: float) -> None:
        self._begins_s, self._skipping = begins_s, _NoWaiting()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._begins_s + self._skipping.skipped_s


def run(coroutine: Coroutine[Any, Any, T], *, begins_s: float = 0.0) -> T:
    """Where the clock does not begin at 0, a time cannot be taken for a length unnoticed."""
    with asyncio.Runner(loop_factory=partial(VirtualLoop, begins_s)) as runner:
        return runner.run(coroutine)
