"""What a call to a server costs in memory: many at once through one process. Run: python benchmarks/api_memory.py

The server is a process of its own; each of its answers stays open until all calls have had their first token, so that
all are under way when memory is read.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from contextlib import aclosing

import msgspec
import psutil

from mosaic_tasks.engines.openai import OpenAIEngine
from mosaic_tasks.engines.protocol import EngineRequest, Finished, Message

CALLS = 256
PROMPT = "word " * 400
PIECE = "A piece of an answer, some ten tokens long. "
PIECES = 50
MIB = 1 << 20


class Memory(msgspec.Struct, frozen=True):
    """Resident memory of the process that calls, in MiB."""

    calls: int
    before_mib: float
    under_way_mib: float
    after_mib: float

    @property
    def mib_a_call(self) -> float:
        """By how much it grew at most for each call."""
        return (max(self.under_way_mib, self.after_mib) - self.before_mib) / self.calls


def measure(calls: int = CALLS) -> Memory:
    """The memory of this process before, during and after so many calls at once."""
    command = [sys.executable, __file__, "serve", str(calls)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            return asyncio.run(_measured(f"http://127.0.0.1:{server.stdout.readline().strip()}/v1", calls))
        finally:
            server.kill()


async def _measured(url: str, calls: int) -> Memory:
    engine = OpenAIEngine(base_url=url)
    under_way: list[float] = []
    started = 0

    async def call() -> None:
        nonlocal started
        request = EngineRequest((Message("user", PROMPT),), model="m", timeout_s=120.0)
        async with aclosing(engine.stream(request)) as events:
            first = await anext(events)
            started += 1
            if started == calls:
                under_way.append(_resident_mib())
            assert not isinstance(first, Finished)
            async for _ in events:
                pass

    await _warm(engine)  # loads what is loaded once
    before = _resident_mib()
    await asyncio.gather(*(call() for _ in range(calls)))
    await engine.aclose()
    return Memory(calls, before, under_way[0], _resident_mib())


async def _warm(engine: OpenAIEngine) -> None:
    async with aclosing(engine.stream(EngineRequest((Message("user", "warm"),), model="m"))) as events:
        async for _ in events:
            pass


def _resident_mib() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss) / MIB


async def _serve(calls: int) -> None:
    open_now, all_open = 0, asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(int(length.split(b":")[1]))
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + _event(PIECE)
        )
        await writer.drain()
        if PROMPT.strip().encode() in body:
            open_now += 1
            if open_now == calls:
                all_open.set()
            await all_open.wait()
        for _ in range(PIECES):
            writer.write(_event(PIECE))
            await writer.drain()
        writer.write(_event(None, finish="stop") + b"data: [DONE]\n\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=calls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _event(text: str | None, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    chunk = {"id": "1", "object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def main() -> None:
    """Serves, where asked to; else measures and prints."""
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(_serve(int(sys.argv[2])))
        return
    memory = measure()
    print(
        f"{memory.calls} calls at once: {memory.before_mib:.1f} MiB before, {memory.under_way_mib:.1f} MiB under way, "
        f"{memory.after_mib:.1f} MiB after: {memory.mib_a_call * 1024:.0f} KiB a call"
    )


if __name__ == "__main__":
    main()
