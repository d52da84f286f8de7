"""Waits that may be long, on an event loop: each in a thread of its own.

The threads of the loop's executor are few (six on two processors), and all that talks to the server needs them: calls
that wait there for others would keep from working whom they wait for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def wait_in_a_thread(function: Callable[[], T]) -> T:
    """What a function returns that may block for long. It is not ended where whoever waits for it is cancelled."""
    told: Future[T] = Future()
    told.set_running_or_notify_cancel()

    def run() -> None:
        try:
            told.set_result(function())
        except BaseException as error:  # noqa: BLE001 - whoever waits handles it
            told.set_exception(error)

    threading.Thread(target=run, name="mosaic-waits", daemon=True).start()
    return await asyncio.wrap_future(told)


__all__ = ["wait_in_a_thread"]
