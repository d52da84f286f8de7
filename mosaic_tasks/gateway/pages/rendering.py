"""Makes pages: templates, what they need to know of wording and drawing, and the headers that all pages have."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException

from mosaic_queues.errors import Unauthenticated
from mosaic_routing.drawing import gib
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.gateway.pages.assets import address
from mosaic_tasks.gateway.problems import problem, told
from mosaic_tasks.inspection import decisions
from mosaic_tasks.inspection.diagram import WIDTH, is_fan_out, items
from mosaic_tasks.inspection.layering import Point
from mosaic_tasks.inspection.progress import told_hedges
from mosaic_tasks.inspection.wording import counted, dollars, duration, shortened

GLYPHS: Mapping[str, str] = {
    "waiting": "·",
    "ready": "○",
    "running": "●",
    "done": "✓",
    "skipped": "–",
    "failed": "✗",
    "cancelled": "⊘",
    "cut": "✂",
}
"""States by shape, for those who do not see them by colour."""
_UNFIT = "this address or form has a value that makes no sense"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: a form would then say `Origin: null`, and look like one from elsewhere.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("mosaic_tasks.gateway.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "counted": counted,
        "dollars": dollars,
        "duration": duration,
        "gib": gib,
        "moment": moment,
        "shortened": shortened,
        "wire": wire,
    }
    made.globals |= {
        "address": address,
        "box_width": WIDTH,
        "decisions": decisions,
        "glyph": GLYPHS.__getitem__,
        "is_fan_out": is_fan_out,
        "items": items,
        "told_hedges": told_hedges,
    }
    return made


def moment(at_ms: int) -> str:
    """A time for people: `2026-11-30 08:45:12 UTC`."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def wire(points: Sequence[Point]) -> str:
    """The path of a wire: curves between layers, straight where it passes one."""
    x, y = points[0]
    path = [f"M{x:.0f} {y:.1f}"]
    for place, ((ax, ay), (bx, by)) in enumerate(pairwise(points)):
        middle = (ax + bx) / 2
        path.append(
            f"L{bx:.0f} {by:.1f}"
            if place % 2
            else f"C{middle:.0f} {ay:.1f} {middle:.0f} {by:.1f} {bx:.0f} {by:.1f}"
        )
    return "".join(path)


def fragment(name: str, **values: Any) -> str:
    """A part of a page. Half of a character, which JSON may hold and UTF-8 not, becomes a question mark."""
    return _templates().get_template(f"{name}.html.j2").render(values).encode("utf-8", "replace").decode()


def page(
    name: str, principal: Principal | None, *, status: HTTPStatus = HTTPStatus.OK, **values: Any
) -> Response:
    """A whole page."""
    body = fragment(name, principal=principal, **values)
    return Response(body, status.value, HEADERS, media_type="text/html")


def see(place: str) -> RedirectResponse:
    """Sends a browser on, after a form or to where it signs in."""
    return RedirectResponse(place, HTTPStatus.SEE_OTHER, headers=HEADERS)


class PageRoute(APIRoute):
    """A route whose errors are pages; who has not said who it is goes to where that is done."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with what happens to errors."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except Unauthenticated:
                return see("/login")
            except RequestValidationError:
                return failure(problem(HTTPStatus.UNPROCESSABLE_ENTITY, _UNFIT))
            except HTTPException as error:
                return failure(problem(HTTPStatus(error.status_code), error.detail))
            except Exception as error:  # noqa: BLE001 - whatever it is, people are told so on a page
                return failure(told(error))

        return handled


def failure(answer: Response) -> Response:
    """A page that says what a problem document says."""
    document = msgspec.json.decode(answer.body)
    status = HTTPStatus(answer.status_code)
    return page("failure", None, status=status, title=document["title"], detail=document["detail"])


__all__ = ["GLYPHS", "HEADERS", "PageRoute", "failure", "fragment", "moment", "page", "see", "wire"]
