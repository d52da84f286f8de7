"""What the gateway's own process counts, in Prometheus's text format; `mosaic metrics` tells of all the rest.

Each gateway counts for itself, from its start: Prometheus asks each.
"""

from __future__ import annotations

import time
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mosaic_tasks.access.principal import Principal
from mosaic_tasks.gateway.callers import caller
from mosaic_tasks.gateway.readers import EVENT_STREAM
from mosaic_tasks.observability.origin import requested

PREFIX = "mosaic_gateway_"
UNMATCHED = "unmatched"
"""In the place of a route, where none was found: what people ask for could be anything."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REFUSED = {401: "unauthenticated", 403: "forbidden", 429: "quota", 413: "too_large"}
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

router = APIRouter(tags=["operations"])


class Meter:
    """The figures of one gateway."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Histogram(
            f"{PREFIX}request_seconds",
            "Requests, until their answer began.",
            ["method", "route", "status"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.streams = Gauge(f"{PREFIX}streams", "Streams of events that are read now.", registry=registry)
        self.refused = Counter(
            f"{PREFIX}refused", "Requests that were refused.", ["reason"], registry=registry
        )

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """The answer to a request began."""
        route = getattr(scope.get("route"), "path", UNMATCHED)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.requests.labels(method, route, str(status)).observe(seconds)
        if status in _REFUSED:
            self.refused.labels(_REFUSED[status]).inc()

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self.registry)


class Metered:
    """Around all routes: counts requests, and remembers in the course of which trace each came."""

    def __init__(self, app: ASGIApp, meter: Meter) -> None:
        self._app, self._meter = app, meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(self._meter, scope, send)
        token = requested.set(_traceparent(scope))
        try:
            await self._app(scope, receive, exchange.send)
        finally:
            requested.reset(token)
            exchange.end()


class _Exchange:
    """One request and its answer."""

    def __init__(self, meter: Meter, scope: Scope, send: Send) -> None:
        self._meter, self._scope, self._send = meter, scope, send
        self._since = time.perf_counter()
        self._status = 0
        self._streams = False

    async def send(self, message: Message) -> None:
        """A piece of the answer."""
        if message["type"] == "http.response.start":
            self._begin(message["status"])
            kinds = (value for name, value in message.get("headers", ()) if name.lower() == b"content-type")
            if any(kind.startswith(EVENT_STREAM.encode()) for kind in kinds):
                self._streams = True
                self._meter.streams.inc()
        await self._send(message)

    def _begin(self, status: int) -> None:
        self._status = status
        self._meter.answered(self._scope, status, time.perf_counter() - self._since)

    def end(self) -> None:
        """Nothing more comes; an answer that never began is the gateway's fault."""
        if not self._status:
            self._begin(500)
        if self._streams:
            self._meter.streams.dec()


def _traceparent(scope: Scope) -> str:
    found = (value for name, value in scope["headers"] if name == b"traceparent")
    return cast("bytes", next(found, b"")).decode("latin-1")


@router.get(
    "/metrics", operation_id="metrics", summary="What this gateway has counted", response_class=Response
)
def metrics(request: Request, _principal: Annotated[Principal, Depends(caller("operate"))]) -> Response:
    """In Prometheus's text format."""
    meter = cast("Meter", request.app.state.meter)
    return Response(meter.text(), media_type=CONTENT_TYPE_LATEST)


__all__ = ["Meter", "Metered", "router"]
