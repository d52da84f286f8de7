"""Tools of workflows on a worker that runs the calls of many messages on one event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from functools import cache

from mosaic_tasks import fold
from tests.integration.stream_tools import _server, first, gate, tell


def count(n: int) -> list[int]:
    return list(range(n))


async def nothing(x: int) -> int:
    return x


async def later(x: int, pause_s: float) -> int:
    await asyncio.sleep(pause_s)
    return x


async def at_hand(x: int) -> int:
    """Takes a moment, and says how many messages workers have."""
    await asyncio.sleep(0.01)
    with _server() as server:
        return int(server.hlen("unacked"))


@cache
def _meeting(_name: str, n: int) -> asyncio.Barrier:
    return asyncio.Barrier(n)


async def meets(x: int, n: int) -> int:
    """Ends when `n` calls are in flight."""
    async with asyncio.timeout(30):
        await _meeting("meets", n).wait()
    return x


def note(name: str, by: int) -> None:
    """Counts up or down, for the test."""
    with _server() as server:
        server.incrby(f"test:count:{name}", by)


async def opened(x: int, name: str) -> int:
    """Never ends, and counts what is open and what was begun."""
    note(f"begun:{name}", 1)
    tell(name, x)
    note(name, 1)
    try:
        await asyncio.Event().wait()
    finally:
        note(name, -1)
    return x


async def gated(x: int, name: str) -> int:
    """Tells that it runs, and in which process; waits at the gate."""
    tell(name, f"{x} {os.getpid()}")
    await asyncio.to_thread(gate, name)
    return x


async def told(x: int, name: str) -> int:
    """Tells that it has run."""
    tell(name, x)
    return x


async def tells_and_goes_on(x: int, name: str, pause_s: float) -> int:
    """Tells that it runs, and needs no server any more."""
    tell(name, x)
    await asyncio.sleep(pause_s)
    return x


async def pid(x: int, pause_s: float) -> int:
    await asyncio.sleep(pause_s)
    return os.getpid()


def thread(x: int) -> list[object]:
    """Where a plain function runs."""
    return [x, threading.current_thread().name]


async def loop_thread(x: int) -> str:
    """Where a coroutine runs."""
    await asyncio.sleep(0)
    return threading.current_thread().name


async def fails_at_first(x: int) -> int:
    if first(f"fails:{x}"):
        raise RuntimeError("fails at first")
    return x


async def fails(x: int) -> int:
    raise RuntimeError(f"cannot do {x}")


async def tells_attempt(x: int, name: str) -> int:
    """How often it ran, from the second time on."""
    tell(name, x)
    if first(f"attempt:{name}:{x}"):
        await asyncio.Event().wait()
    return x


async def blocks(seconds: float) -> str:
    """Blocks its event loop, the first time."""
    if first("blocks"):
        time.sleep(seconds)
    return "went on"


async def cancels_itself() -> None:
    raise asyncio.CancelledError("by itself")


@fold(initial=0)
async def summed(state: int, values: list[int]) -> tuple[int, list[int]]:
    await asyncio.sleep(0)
    return state + sum(values), [len(values)]


def held_in_thread(x: int) -> int:
    """Tells that it runs, and in which process; waits at the gate, in its thread."""
    tell("thread", f"{x} {os.getpid()}")
    gate("thread")
    return x


async def ends_once(x: int, name: str) -> int:
    """Does not end by itself, the first time, and tells when it is ended."""
    tell(name, x)
    if first(f"{name}:{x}"):
        try:
            await asyncio.Event().wait()
        finally:
            tell(f"end of {name}", x)
    return x


def ends_once_in_thread(x: int, name: str) -> int:
    """The same, in a thread."""
    tell(name, x)
    if first(f"{name}:{x}"):
        try:
            while True:
                time.sleep(0.01)
        finally:
            tell(f"end of {name}", x)
    return x


def fails_when_told(name: str) -> None:
    """Fails once the gate is open."""
    gate(name)
    raise RuntimeError("told to fail")
