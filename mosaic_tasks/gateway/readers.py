"""Those who read server-sent events: each costs some tasks and a bounded buffer, no thread and no connection behind.

A reader that does not read blocks its own sending alone: nothing is gathered for it beyond what the transport and the
socket hold, since what it lacks stays in the server. When it has read nothing for too long, it is dropped. One that is
gone is noticed at once. When the gateway stops, all are told to read on elsewhere, from the last id that they have; so
is one whose key was revoked, or whose token is over, within `CHECK_S`: it is not let in again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from typing import Protocol, TypeVar

import msgspec
import structlog
from fastapi import Response
from redis.exceptions import RedisError
from starlette.types import Receive, Scope, Send

from mosaic_queues.errors import MosaicError
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.inspection.documents import to_json
from mosaic_tasks.inspection.reading import AsyncReading

log = structlog.get_logger(__name__)

T = TypeVar("T")
PRINCIPAL = "principal"
"""Where the state of a request holds who asks."""
EVENT_STREAM = "text/event-stream"
RETRY_MS = 1_000
"""A browser that loses its connection comes again after so long."""
_SENT_BYTES = 65_536
"""So much is given to the transport at once, as far as single events are no longer."""
_STOP_S = 1.0
HERE = b": here\n\n"
"""Said in a long silence, so that proxies and readers know that the connection lives."""
_ELSEWHERE = (
    b": the gateway stops, its server is away, or who reads may not any more; read on from the last id\n\n"
)
CHECK_S = 3.0
"""Whether those who read still may is asked so often."""


def frame(kind: str, data: object, *, event_id: str = "") -> bytes:
    """A server-sent event; JSON has no line breaks."""
    told_id = f"id: {event_id}\n" if event_id else ""
    return f"{told_id}event: {kind}\ndata: ".encode() + to_json(data) + b"\n\n"


async def frames(
    reading: AsyncReading[T],
    encode: Callable[[T], bytes],
    ending: Callable[[], bytes],
    *,
    silence_s: float,
) -> AsyncGenerator[bytes, None]:
    """What is read as server-sent events, with comments in a long silence; in the end what `ending` says.

    Where the server behind is away for long, the stream ends without an end: its reader comes again.
    """
    yield f"retry: {RETRY_MS}\n\n".encode()
    try:
        async with reading:
            while True:
                try:
                    async with asyncio.timeout(silence_s):
                        events = await reading.several()
                except TimeoutError:
                    yield HERE
                    continue
                if not events:
                    break
                for part in _gathered(map(encode, events)):
                    yield part
        yield await asyncio.to_thread(ending)
    except (RedisError, MosaicError) as error:
        log.warning("gateway.stream", what="cannot read on", error=str(error))
        yield _ELSEWHERE


def _gathered(parts: Iterable[bytes]) -> Iterable[bytes]:
    """Parts put together, as long as they are short."""
    held, size = list[bytes](), 0
    for part in parts:
        if held and size + len(part) > _SENT_BYTES:
            yield b"".join(held)
            held, size = [], 0
        held.append(part)
        size += len(part)
    yield b"".join(held)


class Stream(Protocol):
    """An answer that somebody reads while it is made."""

    def stop(self) -> None:
        """Ends it, as the gateway does."""


class Readers:
    """The readers of this process.

    Args:
        stands: whether what a principal has shown is still worth something; asks the server.
        check_s: it is asked so often.
    """

    def __init__(
        self, stands: Callable[[Principal], bool] = lambda _: True, *, check_s: float = CHECK_S
    ) -> None:
        self._stands, self._check_s = stands, check_s
        self._open: dict[Stream, Principal | None] = {}
        self._checking: asyncio.Task[None] | None = None
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, stream: Stream, principal: Principal | None = None) -> None:
        """It is read, by this one; it ends at once where the gateway ends already."""
        self._open[stream] = principal
        if self._is_stopped:
            stream.stop()
        if self._checking is None:
            self._checking = asyncio.create_task(self._check())

    def drop(self, stream: Stream) -> None:
        """It is read no more."""
        self._open.pop(stream, None)
        if not self._open and self._checking is not None:
            self._checking.cancel()
            self._checking = None

    def stop(self) -> None:
        """Ends all, as the gateway does, those too whose requests are still on their way to `add`."""
        self._is_stopped = True
        for stream in self._open:
            stream.stop()

    async def _check(self) -> None:
        """Ends the streams of those who may not read any more."""
        while True:
            await asyncio.sleep(self._check_s)
            shown = {_shown(each) for each in self._open.values() if each is not None}
            over = await asyncio.to_thread(self._over, shown)
            for stream, principal in list(self._open.items()):
                if principal is not None and _shown(principal) in over:
                    stream.stop()

    def _over(self, shown: Iterable[Principal]) -> set[Principal]:
        try:
            return {each for each in shown if not self._stands(each)}
        except (RedisError, MosaicError) as error:
            log.warning("gateway.check", what="cannot see who may read; asks again", error=str(error))
            return set()


def _shown(principal: Principal) -> Principal:
    """From wherever it asks, it has shown the same."""
    return msgspec.structs.replace(principal, address="")


class EventStream(Response):
    """An answer of server-sent events.

    Args:
        body: its frames.
        readers: of the process.
        held: left when nobody reads it any more.
        patience_s: a reader that takes nothing for so long is dropped.
    """

    media_type = EVENT_STREAM

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        readers: Readers,
        *,
        held: AbstractAsyncContextManager[object],
        patience_s: float,
    ) -> None:
        self._body, self._readers, self._held, self._patience_s = body, readers, held, patience_s
        self._writing: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.status_code, self.background = 200, None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it to its end, or until its reader is gone, asleep or sent elsewhere."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._held)
            await stack.enter_async_context(aclosing(self._body))
            stack.callback(self._readers.drop, self)
            self._readers.add(self, scope.get("state", {}).get(PRINCIPAL))
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            if not self._is_stopped:
                self._writing = asyncio.create_task(self._write(send))
                await until_either(self._writing, asyncio.create_task(gone(receive)))
            if self._is_stopped:
                await self._part(send)

    def stop(self) -> None:
        """Sends the reader elsewhere."""
        self._is_stopped = True
        if self._writing is not None:
            self._writing.cancel()

    async def _write(self, send: Send) -> None:
        try:
            async for part in self._body:
                async with asyncio.timeout(self._patience_s):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            async with asyncio.timeout(self._patience_s):
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            log.info(
                "gateway.reader", what="a reader that reads nothing was dropped", after_s=self._patience_s
            )

    async def _part(self, send: Send) -> None:
        try:
            async with asyncio.timeout(_STOP_S):
                await send({"type": "http.response.body", "body": _ELSEWHERE, "more_body": False})
        except TimeoutError:
            return


async def gone(receive: Receive) -> None:
    """Waits until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_either(*tasks: asyncio.Task[None]) -> None:
    """Until one of them ends; the others are cancelled, and what went wrong is raised."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()


__all__ = [
    "CHECK_S",
    "EVENT_STREAM",
    "HERE",
    "PRINCIPAL",
    "RETRY_MS",
    "EventStream",
    "Readers",
    "frame",
    "frames",
    "gone",
    "until_either",
]
