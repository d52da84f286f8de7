"""Reads JSON strictly: what two readers could understand differently is refused, and so is what is no JSON at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable
from email.message import Message
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

MOST_DEEP = 64
"""Lists and objects may stand in each other so deep."""
_IN_PLACE_BYTES = 65_536
"""What is longer is read by a thread, so that others need not wait."""


class Malformed(ValueError):
    """A body is no JSON, or says what it says in two ways."""


def strict_json(body: bytes) -> Any:
    """The value of a JSON text in UTF-8.

    Raises:
        Malformed: it is none; holds NaN, an infinity, a number beyond all floats, half a surrogate pair, or a name
            twice in one object; or is nested too deep.
    """
    try:
        value = msgspec.json.decode(body)
        _check_depth(value)
        json.loads(body, object_pairs_hook=_each_once)
    except RecursionError:
        raise Malformed(_TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"the body is no JSON: {error}") from None
    except ValueError as error:
        raise Malformed(str(error)) from None
    return value


_TOO_DEEP = f"the body is nested more than {MOST_DEEP} deep"


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_DEEP + 1):
        level = [part for each in level for part in _parts(each) if isinstance(part, (dict, list))]
        if not level:
            return
    raise Malformed(_TOO_DEEP)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _each_once(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise Malformed(f"the name {name[:100]!r} stands twice in one object")
        seen.add(name)


class _StrictRequest(Request):
    """A request whose body is strict JSON."""

    async def json(self) -> Any:
        """The body.

        Raises:
            HTTPException: 400, it is no strict JSON.
        """
        body = await self.body()
        try:
            is_short = len(body) <= _IN_PLACE_BYTES
            return strict_json(body) if is_short else await asyncio.to_thread(strict_json, body)
        except Malformed as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from None


class StrictRoute(APIRoute):
    """A route whose bodies are JSON, and say so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's, on a strict request."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            strict = _StrictRequest(request.scope, request.receive)
            if self.body_field is not None:
                _check_type(request.headers.get("content-type", ""))
            return await handle(strict)

        return strictly


def _check_type(content_type: str) -> None:
    told = Message()
    told["content-type"] = content_type
    charset = str(told.get_param("charset", "utf-8")).lower()
    if told.get_content_type() != "application/json" or charset not in ("utf-8", "utf8"):
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON, with the header `Content-Type: application/json`"
        )
