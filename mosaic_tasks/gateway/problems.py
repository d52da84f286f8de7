"""Errors over HTTP, in the form of RFC 9457 (`application/problem+json`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from mosaic_queues import errors
from mosaic_queues.connection import told_error
from mosaic_queues.texts import bounded

log = structlog.get_logger(__name__)

STATUS: dict[type[errors.MosaicError], HTTPStatus] = {
    errors.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    errors.ProviderUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Forbidden: HTTPStatus.FORBIDDEN,
    errors.QuotaExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.UnknownRun: HTTPStatus.NOT_FOUND,
    errors.InputError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.PayloadTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.ServerError: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""The status of each kind of error; what is not here is the gateway's own fault, and told as 500 without its words."""

MOST_DETAIL_CHARS = 2_000
MOST_ERRORS = 20
"""What is wrong quotes what was sent; an answer is no longer than this all the same."""
AGAIN_S = 2
"""Whoever meets a server that is away may ask again after so long."""
_MOST_NAME_CHARS = 100
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
_OWN_FAULT = "something went wrong here; the log says what, under the id of this request"
_AWAY = "the server behind this gateway does not serve now; ask again later"


def problem(
    status: HTTPStatus, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> JSONResponse:
    """An answer that says what is wrong."""
    told = bounded(detail, MOST_DETAIL_CHARS)
    body = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": told, **more}
    return JSONResponse(
        body, status_code=status.value, media_type="application/problem+json", headers=dict(headers or {})
    )


def told(error: Exception) -> JSONResponse:
    """The answer to whoever met an error; what is the gateway's own is logged, and not told."""
    if isinstance(error, RedisError):
        error = told_error(error) or error
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), None)
    if status is None:
        log.error("gateway.failed", what="a request met an error of ours", exc_info=error)
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, _OWN_FAULT)
    if isinstance(error, errors.ServerError):
        log.warning("gateway.away", what="the server does not serve", error=str(error))
        return problem(status, _AWAY, headers={"Retry-After": str(AGAIN_S)})
    return problem(status, str(error), headers=_headers(error))


def _headers(error: Exception) -> dict[str, str]:
    if isinstance(error, errors.Unauthenticated):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, errors.QuotaExceeded | errors.ProviderUnavailable):
        return {"Retry-After": str(max(1, round(error.retry_after_s)))}
    return {}


def _place(error: Mapping[str, Any]) -> dict[str, Any]:
    """Where something does not fit, and why."""
    said = "there is no such field" if error["type"] == "extra_forbidden" else str(error["msg"])
    loc = [bounded(part, _MOST_NAME_CHARS) if isinstance(part, str) else part for part in error["loc"]]
    return {"loc": loc, "msg": bounded(said, MOST_DETAIL_CHARS)}


def install(web: FastAPI, *, page: Callable[[JSONResponse], Response]) -> None:
    """Has all errors told as problems.

    Args:
        page: what says the same to people: a browser that is at a wrong address is shown that.
    """

    @web.exception_handler(errors.MosaicError)
    @web.exception_handler(RedisError)
    async def own(_request: Request, error: Exception) -> JSONResponse:
        return told(error)

    @web.exception_handler(RequestValidationError)
    async def unfit(_request: Request, error: RequestValidationError) -> JSONResponse:
        found = [_place(each) for each in error.errors()[:MOST_ERRORS]]
        where = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found)
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"the request does not fit: {where}", errors=found)

    @web.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        status, headers = HTTPStatus(error.status_code), dict(error.headers or {})
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(sorted(_methods(web.routes, request.scope)))
            if request.method == "OPTIONS":
                return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)
        detail = error.detail if error.detail != status.phrase else status.description or status.phrase
        answer = problem(status, detail, headers=headers)
        return page(answer) if status == HTTPStatus.NOT_FOUND and _is_browser(request) else answer


def _is_browser(request: Request) -> bool:
    """Whether somebody reads the answer: programs take anything, or say what they take."""
    return "text/html" in request.headers.get("accept", "")


def _methods(routes: list[BaseRoute], scope: Scope) -> set[str]:
    """The methods that a path has, over all its routes."""
    found = {
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] == Match.FULL for route in routes)
    }
    return found | {"OPTIONS"} | ({"HEAD"} if "GET" in found else set())
