"""Puts the gateway's routes together."""

from __future__ import annotations

from fastapi import FastAPI

from mosaic_tasks.gateway import problems
from mosaic_tasks.gateway.callers import Gateway


def application(gateway: Gateway) -> FastAPI:
    """The web application of a gateway."""
    web = FastAPI(title="mosaic-tasks", docs_url=None, redoc_url=None)
    web.state.gateway = gateway
    problems.install(web)
    return web
