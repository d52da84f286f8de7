"""Puts the gateway's routes together."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from mosaic_queues.settings import settings
from mosaic_tasks.access.gates import stands
from mosaic_tasks.gateway import describing, health, metrics, problems, runs, streams, workflows
from mosaic_tasks.gateway.callers import Gateway
from mosaic_tasks.gateway.completions import routes as completions
from mosaic_tasks.gateway.entrance import REQUEST_ID, Entrance
from mosaic_tasks.gateway.pages import routes as pages
from mosaic_tasks.gateway.pages.rendering import failure
from mosaic_tasks.gateway.readers import Readers

_CORS: dict[str, Any] = {
    "allow_methods": ("GET", "POST"),
    "allow_headers": ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"),
    "expose_headers": ("Location", "Retry-After", REQUEST_ID),
}


def application(gateway: Gateway, *, hosts: Collection[str] = ()) -> FastAPI:
    """The web application of a gateway.

    Args:
        hosts: names by which it may be called; empty: any.
    """
    web, config = FastAPI(docs_url=None, redoc_url=None), settings()
    web.state.gateway, web.state.readers = gateway, Readers(partial(stands, gateway.app))
    problems.install(web, page=failure)
    describing.install(web)
    body_bytes, patience_s = config.gateway_body_bytes, config.gateway_patience_s
    web.add_middleware(Entrance, hosts=hosts, body_bytes=body_bytes, patience_s=patience_s)
    if gateway.origins:
        web.add_middleware(CORSMiddleware, allow_origins=list(gateway.origins), **_CORS)
    web.state.meter = metrics.Meter()
    web.add_middleware(metrics.Metered, meter=web.state.meter)
    for each in (health, metrics, workflows, runs, streams, pages):
        web.include_router(each.router)
    completions.install(web, gateway)
    return web
