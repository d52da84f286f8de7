"""Errors in the form of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`.

Errors of the gateway as a whole (who asks, quotas, bodies, a server that is away) are problems (`gateway.problems`),
wherever they arise. On the routes of this API a middleware says them in this form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import Response
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATHS = ("/v1/chat/completions", "/v1/models")
"""The routes of this API, and what lies below them."""

_TYPES = {
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
_CODES = {
    HTTPStatus.UNAUTHORIZED: "invalid_api_key",
    HTTPStatus.FORBIDDEN: "insufficient_permissions",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_exceeded",
    HTTPStatus.SERVICE_UNAVAILABLE: "service_unavailable",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
}
_OF_CONTENT = ("content-type", "content-length")
ASK_ONCE = {"x-should-retry": "false"}
"""OpenAI's clients ask again after many errors: not where the same would come, and cost as much."""


class ErrorBody(BaseModel):
    """What is wrong."""

    message: str = Field(description="a sentence for people")
    type: str = Field(description="the kind of error, as OpenAI calls it")
    param: str | None = Field(description="the field that does not fit")
    code: str | None = Field(description="for programs")


class ErrorReply(BaseModel):
    """An error."""

    error: ErrorBody = Field(description="what is wrong")


class Refused(Exception):
    """A request that gets an error for its answer.

    Attributes:
        status: of the answer, as long as none has begun.
        param: the field of the request that is to blame.
        code: for programs.
    """

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.message, self.param = status, message, param
        self.code = code or _CODES.get(status)
        self.headers = dict(headers or {})
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        """It as JSON."""
        kind = _TYPES.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")
        error = ErrorBody(message=self.message, type=kind, param=self.param, code=self.code)
        return ErrorReply(error=error).model_dump()

    def response(self) -> Response:
        """It as an answer."""
        data = msgspec.json.encode(self.body())
        return Response(data, self.status.value, self.headers, media_type="application/json")


_CAUSE = re.compile(r"node '[^']*'(?:, item \d+)?: (\w+): ")
"""How the error of a run begins: where, and the kind of what was raised."""


def cause_of(error: str) -> str:
    """The kind of the error that a run failed with, such as `ContextTooLong`; empty: it is not told."""
    found = _CAUSE.match(error)
    return found[1] if found else ""


def of_failed_run(error: str) -> Refused:
    """The answer where a run failed."""
    match cause_of(error):
        case "ContextTooLong":
            return Refused(
                HTTPStatus.BAD_REQUEST,
                error,
                param="messages",
                code="context_length_exceeded",
                headers=ASK_ONCE,
            )
        case "EngineOverloaded" | "EngineGone":
            return Refused(HTTPStatus.SERVICE_UNAVAILABLE, error, code="engine_overloaded")
        case "CallTimeout":
            return Refused(HTTPStatus.GATEWAY_TIMEOUT, error, code="timeout", headers=ASK_ONCE)
        case _:
            return Refused(HTTPStatus.INTERNAL_SERVER_ERROR, error, code="run_failed", headers=ASK_ONCE)


def of_cancelled_run(error: str) -> Refused:
    """The answer where somebody cancelled the run."""
    told = f"the run was cancelled: {error}" if error else "the run was cancelled"
    return Refused(HTTPStatus.CONFLICT, told, code="run_cancelled", headers=ASK_ONCE)


def of_problem(problem: Mapping[str, Any]) -> Refused:
    """A problem of the gateway (RFC 9457) in this form."""
    status = HTTPStatus(problem["status"])
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        status = HTTPStatus.BAD_REQUEST
    first: dict[str, Any] = next(iter(problem.get("errors", ())), {})
    places = [str(step) for step in first.get("loc", ()) if step != "body"]
    return Refused(status, str(problem["detail"]), param=".".join(places) or None)


def of_response(response: Response) -> Refused:
    """An answer that is a problem, likewise."""
    refused = of_problem(msgspec.json.decode(bytes(response.body)))
    refused.headers = {name: value for name, value in response.headers.items() if name not in _OF_CONTENT}
    return refused


class InOurWords:
    """Says problems in the form that clients of this API read, on its routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        is_ours = scope["type"] == "http" and _is_below(scope["path"])
        await self._app(scope, receive, _Translator(send) if is_ours else send)


def _is_below(path: str) -> bool:
    return any(path == ours or path.startswith(f"{ours}/") for ours in PATHS)


class _Translator:
    """Sends what it is given; holds problems back until they are whole, and says them in other words."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_problem(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._translated(self._start)

    async def _translated(self, start: Message) -> None:
        refused = of_problem(msgspec.json.decode(self._body))
        body = msgspec.json.encode(refused.body())
        kept = [pair for pair in start["headers"] if pair[0].decode().lower() not in _OF_CONTENT]
        ours = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({**start, "status": refused.status.value, "headers": [*kept, *ours]})
        await self._send({"type": "http.response.body", "body": body})


def _is_problem(start: Message) -> bool:
    kind = Headers(raw=start["headers"]).get("content-type", "")
    return kind.startswith("application/problem+json")
