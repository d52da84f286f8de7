"""Tools of runs whose server goes away: they wait for what is no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def piped_numbers(path: str) -> Iterator[int]:
    """0 to 4; waits after the first until somebody writes into a named pipe."""
    yield 0
    Path(path).read_text("utf-8")
    yield from range(1, 5)
