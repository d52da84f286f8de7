"""Signing in and out: a key is pasted into a form, once; the browser then has a session."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response

from mosaic_queues.errors import Unauthenticated
from mosaic_tasks.gateway.callers import Here, sign_in, sign_out
from mosaic_tasks.gateway.pages.rendering import PageRoute, page, see

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/login")
def login_page(gateway: Here) -> Response:
    """The form; where anybody is let in there is none."""
    try:
        gateway.gate.admit(None)
    except Unauthenticated:
        return page("login", None, wrong="")
    return see("/")


@router.post("/login")
def login(request: Request, key: Annotated[str, Form(max_length=8192)]) -> Response:
    """Begins a session."""
    answer = see("/")
    try:
        sign_in(request, answer, key.strip())
    except Unauthenticated as error:
        return page("login", None, status=HTTPStatus.UNAUTHORIZED, wrong=str(error))
    return answer


@router.post("/logout")
def logout(request: Request) -> Response:
    """Ends the session."""
    answer = see("/login")
    sign_out(request, answer)
    return answer
