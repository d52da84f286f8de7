"""Tools that stream; some wait at a gate until their test opens it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from random import Random
from typing import Any

from redis import Redis

from mosaic_queues.ledger import Ledger
from mosaic_tasks import fold

GATE_S = 30


def _server() -> Redis:
    return Redis.from_url(os.environ["MOSAIC_REDIS_URL"], socket_timeout=2 * GATE_S)


def gate(name: str) -> None:
    """Waits until the test opens the gate."""
    with _server() as server:
        if server.blpop([f"test:gate:{name}"], timeout=GATE_S) is None:
            raise TimeoutError(f"nobody opened the gate {name!r}")


def open_gate(client: Redis, name: str, times: int = 1) -> None:
    """Lets `times` waiting calls pass."""
    client.rpush(f"test:gate:{name}", *range(times))


def open_engines(client: Redis, *names: str) -> None:
    """Has the gated engines (`hedge_gates`) of these names answer, those to come too."""
    for name in names:
        client.xadd(f"test:open:{name}", {"is": "open"})
        client.expire(f"test:open:{name}", 2 * GATE_S)


def happened(client: Redis, what: str) -> list[str]:
    """What the tools told under a name."""
    return [raw.decode() for raw in client.lrange(f"test:told:{what}", 0, -1)]


def await_told(client: Redis, what: str, size: int) -> list[str]:
    """Waits until so much was told."""
    while len(told := happened(client, what)) < size:  # bells of what was seen without waiting may be left
        if client.blpop([f"test:bell:{what}"], timeout=GATE_S) is None:
            break
    return told


def tell(what: str, value: Any) -> None:
    """Tells the test something."""
    with _server() as server:
        server.rpush(f"test:told:{what}", str(value))
        server.rpush(f"test:bell:{what}", 1)


def first(what: str) -> bool:
    """Whether this is the first to ask."""
    with _server() as server:
        return int(server.incr(f"test:first:{what}")) == 1


def numbers(n: int) -> Iterator[int]:
    yield from range(n)


def gated_numbers(n: int, gate_at: int = 1) -> Iterator[int]:
    """0..n-1, waiting at the gate `more` before the number `gate_at`."""
    for number in range(n):
        if number == gate_at:
            gate("more")
        yield number


async def async_numbers(n: int) -> AsyncIterator[int]:
    for number in range(n):
        await asyncio.sleep(0)
        yield number


@fold(initial=0)
def totals(state: int, values: list[int]) -> tuple[int, list[int]]:
    """The running total after each number."""
    emitted = []
    for value in values:
        state += value
        emitted.append(state)
    tell("totals", state)
    return state, emitted


@fold(initial=0, output="state")
async def total(state: int, values: list[int]) -> tuple[int, list[int]]:
    await asyncio.sleep(0)
    return state + sum(values), []


@fold(initial=(), finish=lambda state: [f"({len(state)})"], output="text")
def spelled(state: list[int], values: list[int], mark: str = ",") -> tuple[list[int], list[str]]:
    return [*state, *values], [f"{value}{mark}" for value in values]


@fold(initial="")
def upper(state: str, text: str) -> tuple[str, list[str]]:
    return state + text, [text.upper()]


@fold(initial=0)
def sized(state: int, values: list[int]) -> tuple[int, list[int]]:
    """How many numbers each batch had."""
    return state + len(values), [len(values)]


@fold(initial=0)
def third_batch_fails_once(state: int, values: list[int]) -> tuple[int, list[int]]:
    if state == 2 and first("third"):
        raise RuntimeError("the third batch fails")
    return state + 1, list(values)


def double(x: int) -> int:
    tell("doubled", x)
    return 2 * x


def both(a: Any, b: Any) -> list[Any]:
    return [a, b]


def told(x: Any) -> Any:
    tell("seen", x)
    return x


@fold(initial=0)
def listed(state: int, texts: list[str]) -> tuple[int, list[str]]:
    return state + len(texts), [text.upper() for text in texts]


def sentences(n: int) -> Iterator[str]:
    for number in range(n):
        yield f"The value number {number} is noted."


def breaks_once(n: int, after: int, shift: int = 0) -> Iterator[int]:
    """Raises once after `after` numbers were told on; then all but the first are shifted."""
    is_first = first("break")
    for number in range(n):
        if is_first and number == after:
            gate_until_published()
            raise RuntimeError("breaks once")
        yield number if is_first or not number else number + shift


def gate_until_published() -> None:
    """Waits until a consumer has seen what there is: the totals tell each batch."""
    with _server() as server:
        while server.llen("test:told:totals") < 1:
            server.blpop(["test:bell:totals"], timeout=GATE_S)


def loses_its_claim_once(n: int) -> Iterator[int]:
    """The first attempt is taken for dead when it has published all of it, and then fails."""
    yield from range(n)
    if first("loses"):
        gate_until_published()
        with _server() as server:
            ledger = Ledger(server)
            ((run_id, _),) = ledger.listed_runs()
            (claim,) = [call for call in ledger.live_calls(run_id) if call.call == "0"]
            ledger.take_back(run_id, [(claim.call, claim.fence)], holder=claim.holder)
        raise RuntimeError("it fails too late")


def counted(name: str, after: Any = None) -> int:
    """How often it ran under this name."""
    with _server() as server:
        return int(server.incr(f"test:counted:{name}"))


def fails_once(x: Any) -> Any:
    if first("fails"):
        raise RuntimeError("fails once")
    return x


def changes_its_mind() -> Iterator[int]:
    """Says something else when it runs again, once a reader can have heard the first."""
    is_first = first("mind")
    yield 0
    yield from (10,) if is_first else (20, 30)
    if is_first:
        gate("heard")
        raise RuntimeError("it changes its mind")


def fails(x: Any = None) -> None:
    raise RuntimeError("no such luck")


def told_numbers(n: int, every: int) -> Iterator[int]:
    """0..n-1, telling every so manyth."""
    for number in range(n):
        if number % every == 0:
            tell("number", number)
        yield number


@fold(initial=0)
def gated_count(state: int, values: list[int]) -> tuple[int, list[int]]:
    """Holds its first batch until the gate opens."""
    if not state:
        tell("holds", len(values))
        gate("more")
    return state + len(values), values


def endless() -> Iterator[int]:
    """Never ends."""
    yield from itertools.count()


def long_texts() -> Iterator[str]:
    """16 MB, far more than a connection holds, in few pieces; once the gate is open, the end."""
    for number in range(160):
        yield f"{number} " + "x" * 100_000
    gate("more")
    yield "the end"


def texts_of_bytes(pieces: list[str], errors: str) -> Iterator[str]:
    """Decodes bytes (as hexadecimal digits) piece by piece, as it must not be done."""
    for piece in pieces:
        yield bytes.fromhex(piece).decode("utf-8", errors)


def numbers_then(n: int, bad: str) -> Iterator[Any]:
    """More numbers than can wait for the publisher, the first of them no value that can be stored."""
    yield {"bad": object() if bad == "object" else bad}
    yield from range(n)


def large_pieces(n: int, megabytes: int) -> Iterator[bytes]:
    """Bytes that cannot be compressed."""
    for seed in range(n):
        yield Random(seed).randbytes(megabytes << 20)


@fold(initial=())
def digests(state: list[str], pieces: list[bytes]) -> tuple[list[str], list[str]]:
    return state, [sha256(piece).hexdigest() for piece in pieces]


@fold(initial=0)
def slow_sizes(state: int, values: list[int]) -> tuple[int, list[int]]:
    """How many numbers each batch had; waits at the gate before the first."""
    if not state:
        tell("slow", len(values))
        gate("slow")
    return state + len(values), [len(values)]


@fold(initial="", output="text")
def surrogate(state: str, values: list[int]) -> tuple[str, list[str]]:
    return state, ["\ud800" for _ in values]


def shifted(n: int) -> Iterator[int]:
    """0..n-1; says something else from the second on when it runs again."""
    is_first = first("shifted")
    for number in range(n):
        yield number if is_first or not number else number + 1


def slow_numbers(n: int) -> Iterator[int]:
    """0..n-1, in two parts: the first is published before the call ends."""
    yield from _in_two(numbers(n), n)


def slow_shifted(n: int) -> Iterator[int]:
    """The same of what `shifted` gives."""
    yield from _in_two(shifted(n), n)


def _in_two(values: Iterator[int], n: int) -> Iterator[int]:
    for place, value in enumerate(values):
        if place == n // 2:
            time.sleep(0.2)
        yield value


def paced(n: int, pause_s: float) -> Iterator[int]:
    """0..n-1, not all at once."""
    for number in range(n):
        time.sleep(pause_s)
        yield number


def stops_once(n: int) -> Iterator[int]:
    """0..n-1; stops its process in the middle, the first time."""
    for number in range(n):
        if number == n // 2 and first("stop"):
            tell("stopped", os.getpid())
            os.kill(os.getpid(), signal.SIGSTOP)
        yield number
