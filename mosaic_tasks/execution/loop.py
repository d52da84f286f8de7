"""The event loop of a thread: kept between messages, so that connections to engines stay open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from mosaic_tasks.engines.registry import close_engines

T = TypeVar("T")


class _Local(threading.local):
    runner: asyncio.Runner | None = None


_local = _Local()


def run_on_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end on this thread's loop."""
    if _local.runner is None:
        _local.runner = asyncio.Runner()
    return _local.runner.run(coroutine)


def forget_loop() -> None:
    """Leaves this thread's loop as it is, with a coroutine that would not end; the next call makes another."""
    _local.runner = None


def close_loop() -> None:
    """Closes the engines of this thread's loop and ends it, where it has one."""
    if _local.runner is not None:
        _local.runner.run(close_engines())
        _local.runner.close()
        _local.runner = None
