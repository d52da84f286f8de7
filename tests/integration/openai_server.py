"""A real HTTP server that speaks OpenAI's chat completions by a script, well and badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from tests.services import READY_S


class Asked(msgspec.Struct):
    """A request as the server saw it."""

    headers: dict[str, str]
    body: dict[str, Any]
    at_s: float


class Connection:
    """The server's side of one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def head(self, status: int, **headers: str) -> None:
        lines = [
            f"HTTP/1.1 {status} Status",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]
        self._writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        await self._writer.drain()

    async def send(self, *data: bytes) -> None:
        self._writer.writelines(data)
        await self._writer.drain()

    async def gone(self) -> None:
        """Waits until the client closed."""
        await self._reader.read()

    def reset(self) -> None:
        self._writer.transport.abort()


Reply = Callable[[Connection], Awaitable[None]]


class Server:
    """Answers requests with the replies of a script, in order; the last one again and again."""

    def __init__(self, *script: Reply) -> None:
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self.url = ""
        self._script = list(script)
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.most_at_once = max(self.most_at_once, len(self._open))
        try:
            with suppress(ConnectionError):  # the client leaves, where a test wants it
                await self._answer(reader, writer)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        finally:
            self._open.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.asked.append(Asked(headers, body, asyncio.get_running_loop().time()))
        assert head[0] == "POST /v1/chat/completions HTTP/1.1"
        reply = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        await reply(Connection(reader, writer))

    async def settled(self) -> None:
        """Waits until no request is being answered."""
        while self._open:
            await asyncio.wait(self._open)


@asynccontextmanager
async def serving(*script: Reply) -> AsyncIterator[Server]:
    server = Server(*script)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    async with listener, asyncio.timeout(2 * READY_S):  # a worker may have to start meanwhile
        yield server
        await server.settled()


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"id": "1", "object": "chat.completion.chunk", **fields}).encode() + b"\n\n"


def delta(text: str | None = None, *, finish: str | None = None, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text, **more}, "finish_reason": finish}])


USAGE = event(choices=[], usage={"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200})
DONE = b"data: [DONE]\n\n"


def streamed(*events: bytes, **headers: str) -> Reply:
    async def reply(connection: Connection) -> None:
        await connection.head(200, content_type="text/event-stream", **headers)
        await connection.send(*events)

    return reply


def said(*pieces: str, **headers: str) -> Reply:
    return streamed(*(delta(piece) for piece in pieces), delta(finish="stop"), USAGE, DONE, **headers)


def refused(
    status: int, message: str = "no", *, code: str | None = None, param: str | None = None, **headers: str
) -> Reply:
    body = json.dumps({"error": {"message": message, "code": code, "param": param, "type": "t"}}).encode()

    async def reply(connection: Connection) -> None:
        await connection.head(
            status, content_type="application/json", content_length=str(len(body)), **headers
        )
        await connection.send(body)

    return reply


async def hanging(connection: Connection) -> None:
    await connection.head(200, content_type="text/event-stream")
    await connection.gone()
