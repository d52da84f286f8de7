"""Errors over HTTP, in the form of RFC 9457 (`application/problem+json`)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from mosaic_queues import errors

STATUS: dict[type[errors.MosaicError], HTTPStatus] = {
    errors.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    errors.Forbidden: HTTPStatus.FORBIDDEN,
    errors.QuotaExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.UnknownRun: HTTPStatus.NOT_FOUND,
    errors.InputError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.ServerError: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""The status of each kind of error; what is not here is the gateway's own fault, and told as 500 without its words."""


def problem(status: HTTPStatus, detail: str, **more: Any) -> JSONResponse:
    """An answer that says what is wrong."""
    body = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail, **more}
    return JSONResponse(body, status_code=status.value, media_type="application/problem+json")


def install(web: FastAPI) -> None:
    """Has errors of this project told as problems."""

    @web.exception_handler(errors.MosaicError)
    async def told(_request: Request, error: errors.MosaicError) -> JSONResponse:
        kinds = [kind for kind in type(error).__mro__ if kind in STATUS]
        if not kinds:
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "something went wrong here; the log says what")
        return problem(STATUS[kinds[0]], str(error))
