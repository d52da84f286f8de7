"""How far a batch is: one line that renews itself on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mosaic_tasks.inspection.wording import duration

_STEPS = 10
"""So many lines at least, where they cannot renew themselves."""
_EVERY_S = 60.0
_REFRESH_PER_S = 4


@dataclass
class Progress:
    """Counts lines.

    Attributes:
        total: lines of the batch.
        earlier: of these, those whose results an earlier try wrote.
        failed: lines that came to something else than an output; those of earlier tries too.
    """

    total: int
    earlier: int = 0
    done: int = 0
    failed: int = 0
    begun_s: float = field(default_factory=time.monotonic)

    def ended(self, status: str) -> None:
        """Counts a line."""
        self.done += status == "done"
        self.failed += status != "done"

    def told(self, running: int, now_s: float) -> str:
        """All in one line."""
        over = self.done + self.failed
        rate = (over - self.earlier) / max(now_s - self.begun_s, 1e-3)
        parts = [
            f"{self.done:,} of {self.total:,} lines done",
            f"{self.failed:,} failed",
            f"{running:,} running",
        ]
        parts += [f"{rate:,.1f} a second"]
        if rate and over < self.total:
            parts.append(f"{duration(1000 * (self.total - over) / rate)} left")
        return ", ".join(parts)


@contextmanager
def shown(progress: Progress, running: Callable[[], int], console: Console) -> Iterator[Callable[[], None]]:
    """Shows progress as long as the context lasts; what it gives is to be called after each change."""

    def line() -> str:
        return progress.told(running(), time.monotonic())

    if not console.is_terminal or console.is_dumb_terminal:
        yield _Lines(progress, lambda: console.print(line(), soft_wrap=True)).renew
        return
    with Live(
        console=console,
        get_renderable=lambda: Text(line(), no_wrap=True, overflow="ellipsis"),
        refresh_per_second=_REFRESH_PER_S,
    ):
        yield lambda: None  # it renews itself


class _Lines:
    """A line for each tenth of the batch, and one a minute."""

    def __init__(self, progress: Progress, tell: Callable[[], None]) -> None:
        self._progress, self._tell = progress, tell
        self._step = math.ceil(progress.total / _STEPS)
        self._told, self._told_s = progress.done + progress.failed, time.monotonic()

    def renew(self) -> None:
        """Prints a line if one is due."""
        over, now_s = self._progress.done + self._progress.failed, time.monotonic()
        if over - self._told >= self._step or now_s - self._told_s >= _EVERY_S:
            self._told, self._told_s = over, now_s
            self._tell()
