"""What every request passes first: its id, its host, the size of its body; and what every answer passes last.

Pure ASGI, so that nothing is buffered on the way.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Collection
from http import HTTPStatus

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mosaic_tasks.gateway.problems import AGAIN_S, problem, told

log = structlog.get_logger(__name__)

REQUEST_ID = "X-Request-ID"
MOST_QUERY_BYTES = 8_192
BODIES_AT_ONCE = 16
"""So many bodies of full length are held at once. They come before it is known from whom, so this is what strangers can
take of the memory; whoever comes when it is taken is told to come again."""
SLOWEST_BYTES_PER_S = 16_384
"""A body has the patience for its beginning, and this for the rest: a byte now and then would keep it here for ever."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers of answers that do not say otherwise."""


class Entrance:
    """Lets requests in that can be served, and sees answers out.

    Args:
        hosts: names by which the gateway may be called, so that no page can reach it by a name of its own (DNS
            rebinding); empty: any.
        body_bytes: a longer body is refused while it comes.
        patience_s: whoever sends nothing of the body for so long is refused.
    """

    def __init__(self, web: ASGIApp, *, hosts: Collection[str], body_bytes: int, patience_s: float) -> None:
        self._web, self._hosts = web, frozenset(hosts)
        self._body_bytes, self._patience_s = body_bytes, patience_s
        self._room = _Room(BODIES_AT_ONCE * body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._web(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        answer = _Answer(send, request_id, is_head=scope["method"] == "HEAD")
        with structlog.contextvars.bound_contextvars(request=request_id):
            await self._serve(scope, headers, receive, answer)

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, answer: _Answer) -> None:
        body = _Body(receive, answer, self._room, most_bytes=self._body_bytes, patience_s=self._patience_s)
        scope = {**scope, "method": "GET"} if answer.is_head else scope
        try:
            self._check(scope, headers)
            await self._web(scope, body.receive, answer.send)
        except HTTPException as error:
            await _refuse(error, scope, receive, answer)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever asks is told no more than that it is ours
            response = told(error)
            if not answer.has_begun:
                await response(scope, receive, answer.send)
        finally:
            body.drop()
        await answer.end_head()

    def _check(self, scope: Scope, headers: Headers) -> None:
        """What can be told before the body comes."""
        if self._hosts and _name_of(headers.get("host", "")) not in self._hosts:
            raise HTTPException(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this gateway is not known by the name in the header Host; `mosaic serve --allowed-host NAME` lets "
                "it be",
            )
        if len(scope["query_string"]) > MOST_QUERY_BYTES:
            told = f"the query is too long; at most {MOST_QUERY_BYTES} bytes are taken"
            raise HTTPException(HTTPStatus.REQUEST_URI_TOO_LONG, told)
        if "content-length" in headers and "transfer-encoding" in headers:
            told = "the length of the body is told in two ways, which a proxy may understand otherwise (smuggling)"
            raise HTTPException(HTTPStatus.BAD_REQUEST, told, headers={"Connection": "close"})
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._body_bytes:
            raise _too_large(self._body_bytes)


def _request_id(headers: Headers) -> str:
    """The one that a proxy has given, where it is one; else a new one."""
    given = headers.get(REQUEST_ID, "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _name_of(host: str) -> str:
    """A host without its port."""
    return re.sub(r":\d*$", "", host).lower()


def _too_large(most_bytes: int) -> HTTPException:
    return HTTPException(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is too large; at most {most_bytes} bytes are taken"
    )


async def _refuse(error: HTTPException, scope: Scope, receive: Receive, answer: _Answer) -> None:
    if not answer.has_begun:
        response = problem(HTTPStatus(error.status_code), error.detail, headers=error.headers)
        await response(scope, receive, answer.send)


class _Room:
    """What the bodies of all requests may take together."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes

    def take(self, size: int) -> bool:
        """Whether there was room; it is taken in any case, until it is given back."""
        self._left -= size
        return self._left >= 0

    def give_back(self, size: int) -> None:
        """It is free again."""
        self._left += size


class _Body:
    """The body of a request, while it comes, and while it is held."""

    def __init__(
        self, receive: Receive, answer: _Answer, room: _Room, *, most_bytes: int, patience_s: float
    ) -> None:
        self._receive, self._answer, self._room = receive, answer, room
        self._most_bytes, self._patience_s, self._is_complete = most_bytes, patience_s, False
        self._size, self._held, self._begun_s = 0, 0, time.monotonic()

    async def receive(self) -> Message:
        """The next piece; then, whether the client is gone. Who asked for the head alone is, once it has begun."""
        if self._is_complete:
            self.drop()  # whoever asks for more has taken it in
            return {"type": "http.disconnect"} if self._answer.is_told else await self._receive()
        try:
            async with asyncio.timeout(self._left_s()):
                message = await self._receive()
        except TimeoutError:
            told = (
                f"no piece of the body came for {self._patience_s:g} s, or too little; send it again, at once"
            )
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, told) from None
        self._is_complete = not message.get("more_body", False)
        self._take(len(message.get("body", b"")))
        return message

    def _left_s(self) -> float:
        """So long it is waited for the next piece."""
        has_s = self._patience_s + self._size / SLOWEST_BYTES_PER_S
        return min(self._patience_s, self._begun_s + has_s - time.monotonic())

    def _take(self, size: int) -> None:
        self._size += size
        if self._size > self._most_bytes:
            raise _too_large(self._most_bytes)
        self._held += size
        if not self._room.take(size):
            told = "too many bodies of requests come at once; ask again later"
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, told, headers={"Retry-After": str(AGAIN_S)})

    def drop(self) -> None:
        """It is held no more."""
        self._room.give_back(self._held)
        self._held = 0


class _Answer:
    """The answer to a request, while it goes.

    Attributes:
        is_head: the head alone is wanted.
        has_begun: the status is sent.
    """

    def __init__(self, send: Send, request_id: str, *, is_head: bool) -> None:
        self._send, self._request_id, self.is_head = send, request_id, is_head
        self.has_begun = self._has_ended = False

    @property
    def is_told(self) -> bool:
        """Whether nothing more is wanted."""
        return self.is_head and self.has_begun

    async def send(self, message: Message) -> None:
        """Passes a message on; its first with the headers that all answers have."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = MutableHeaders(scope=message)
            for name, value in _ALWAYS.items():
                headers.setdefault(name, value)
            headers[REQUEST_ID] = self._request_id
        elif message["type"] == "http.response.body":
            self._has_ended = not message.get("more_body", False)
        await self._send(message)

    async def end_head(self) -> None:
        """Ends an answer of which the head alone is wanted, also where the body would go on and on."""
        if self.is_told and not self._has_ended:
            await self._send({"type": "http.response.body", "body": b""})
