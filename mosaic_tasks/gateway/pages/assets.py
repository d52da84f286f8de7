"""The files that pages load: a style sheet, a script and an icon, each under an address that changes with it."""

from __future__ import annotations

import hashlib
from functools import cache
from http import HTTPStatus
from importlib.resources import files

from fastapi import APIRouter, HTTPException, Response

_KINDS = {"status.css": "text/css", "status.js": "text/javascript", "icon.svg": "image/svg+xml"}

router = APIRouter(prefix="/assets", include_in_schema=False)


@cache
def _content(name: str) -> bytes:
    return files("mosaic_tasks.gateway.pages").joinpath("assets", name).read_bytes()


def address(name: str) -> str:
    """Where a file is found."""
    return f"/assets/{name}?v={hashlib.sha256(_content(name)).hexdigest()[:12]}"


@router.get("/{name}")
def asset(name: str) -> Response:
    """A file; who asks is of no interest.

    Raises:
        HTTPException: 404, there is no such file.
    """
    if name not in _KINDS:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no file {name!r} here")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(_content(name), headers=headers, media_type=_KINDS[name])
