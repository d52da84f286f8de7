"""The trace in whose course a run is submitted: a web app's own, or that of a request to the gateway."""

from __future__ import annotations

import sys
from contextvars import ContextVar

from mosaic_tasks.observability.ids import read_traceparent, traceparent

requested: ContextVar[str] = ContextVar("mosaic_traceparent", default="")
"""The header `traceparent` of the request that is answered."""


def origin() -> str:
    """The span in whose course this is called, as a `traceparent`; empty: there is none. A process that has not loaded
    OpenTelemetry has none of its own."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace import get_current_span

        context = get_current_span().get_span_context()
        if context.is_valid:
            return traceparent(context.trace_id, context.span_id, int(context.trace_flags))
    header = requested.get()
    return header if read_traceparent(header) is not None else ""


__all__ = ["origin", "requested"]
