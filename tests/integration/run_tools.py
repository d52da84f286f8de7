"""Tools of the workflows in these tests; workers import them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel
from redis.exceptions import ConnectionError as RedisConnectionError


class Order(BaseModel):
    city: str
    total: int = 0


def cheapest(orders: list[Order]) -> Order:
    return min(orders, key=lambda order: order.total)


def city_of(order: Order) -> str:
    return order.city


def one(**_anything: Any) -> int:
    return 1


def count(n: int) -> list[int]:
    return list(range(n))


def double(x: int) -> int:
    return 2 * x


def total(values: list[Any]) -> int:
    return sum(value for value in values if value is not None)


def add(a: int, b: int) -> int:
    return a + b


def echo(value: Any) -> Any:
    return value


def change(value: list[Any]) -> list[Any]:
    value.append("changed")
    return value


def letters(n: int) -> Iterator[str]:
    yield from "abcdefghij"[:n]


async def later(x: int, pause_s: float = 0.05) -> int:
    await asyncio.sleep(pause_s)
    return x + 1


async def drops(n: int) -> AsyncIterator[int]:
    for number in range(n):
        await asyncio.sleep(0)
        yield number


def pause(x: int, pause_s: float) -> int:
    time.sleep(pause_s)
    return x


def pid(x: int, pause_s: float) -> int:
    time.sleep(pause_s)
    return os.getpid()


def boom(x: Any = None) -> None:
    raise ValueError(f"cannot do {x!r}")


def boom_on(x: int, bad: int) -> int:
    if x == bad:
        raise ValueError(f"{x} is bad")
    return x


def boom_until(path: str, attempts: int) -> int:
    """Fails until it was called so often; counts in a file."""
    file = Path(path)
    tried = len(file.read_text()) + 1 if file.exists() else 1
    file.write_text("x" * tried)
    if tried < attempts:
        raise ConnectionError(f"attempt {tried} failed")
    return tried


def unserializable() -> Any:
    return {"items": [1, {"lock": object()}]}


def large(megabytes: int, seed: int = 0) -> bytes:
    """Bytes that cannot be compressed, the same for each seed."""
    return Random(seed).randbytes(megabytes << 20)


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def leave(code: int) -> None:
    sys.exit(code)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path: str) -> str:
    """Kills its process the first time."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def hang() -> None:
    while True:
        time.sleep(3600)


def hang_for_good() -> None:
    """Resists being interrupted."""
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            continue


def mark(x: int, directory: str) -> None:
    """Leaves a file for each time that a call ran."""
    (Path(directory) / f"{x}-{time.monotonic_ns()}").touch()


def write_down(x: Any, path: str) -> Any:
    with Path(path).open("a") as file:
        print(x, file=file)
    return x


async def write_down_on_loop(x: Any, path: str) -> Any:
    return write_down(x, path)


def mark_and_pause(x: int, directory: str, pause_s: float) -> int:
    mark(x, directory)
    time.sleep(pause_s)
    return x


HELD = 2
_met, _freed = threading.Barrier(HELD + 1), threading.Event()


def hold(x: int, directory: str) -> int:
    """Runs until `free` ran in the same process."""
    mark(x, directory)
    meet()
    assert _freed.wait(30)
    return x


def meet() -> None:
    """Waits until all that `hold` run, and itself."""
    _met.wait(30)


def free() -> None:
    _freed.set()


def spin() -> None:
    """Hangs in Python code, where any thread can be interrupted."""
    while True:
        time.sleep(0.01)


async def never() -> None:
    await asyncio.Event().wait()


async def blocks() -> None:
    """Blocks its event loop."""
    time.sleep(3600)


async def stubborn() -> None:
    """Does not let itself be cancelled."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


class OwnError(BaseException):
    """Not an Exception."""


def raises(name: str) -> None:
    kinds: dict[str, type[BaseException]] = {
        "own": OwnError,
        "keyboard": KeyboardInterrupt,
        "generator": GeneratorExit,
        "timeout": TimeoutError,
        "redis": RedisConnectionError,
    }
    raise kinds[name]("by itself")


async def raises_async(name: str) -> None:
    if name == "cancelled":
        raise asyncio.CancelledError("by itself")
    raises(name)


def stop_once(path: str) -> int:
    """Writes its process into the file and stops it, the first time; answers with its process."""
    if not Path(path).exists():
        Path(path).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    return os.getpid()


def read(path: str) -> str:
    """What a file holds; for a named pipe, what the next writer puts in."""
    return Path(path).read_text()
