"""The gateway's OpenAPI document."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from mosaic_tasks.gateway.answers import Problem

_ABOUT = """Start runs of workflows, read what they put out while they run, and end them.

Errors are problems (RFC 9457, `application/problem+json`). Streams are server-sent events: a reader that lost its
connection comes again with the header `Last-Event-ID`, and misses nothing and reads nothing twice."""
_TAGS = {
    "runs": "Start runs, look at them, end them.",
    "streams": "Read what happens while it happens.",
    "workflows": "What can be started.",
    "openai": "Workflows as models, for clients of OpenAI's API.",
    "health": "Whether the gateway lives and can serve.",
}


def install(web: FastAPI) -> None:
    """Describes the application."""
    web.title, web.version, web.description = "mosaic-tasks", version("mosaic-tasks"), _ABOUT
    web.openapi_tags = [{"name": name, "description": about} for name, about in _TAGS.items()]
    made = web.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        schema = Problem.model_json_schema()
        document.setdefault("components", {}).setdefault("schemas", {})["Problem"] = schema
        return document

    web.openapi = openapi  # type: ignore[method-assign]
