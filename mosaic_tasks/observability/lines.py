"""What log lines say of the call that they come from, and of the trace of their run."""

from __future__ import annotations

from typing import Any

from mosaic_tasks.observability.current import current
from mosaic_tasks.observability.ids import is_run


def with_call(event: dict[str, Any]) -> dict[str, Any]:
    """A line with the call that this thread or coroutine works on, unless it is about another run."""
    call = current()
    if call is not None and event.get("run", call.run_id) == call.run_id:
        told = {"run": call.run_id, "node": call.node, "call": call.call, "attempt": call.number}
        event = {**told, **event, "span_id": f"{call.span:016x}"}
    run_id = event.get("run")
    return {**event, "trace_id": run_id.replace("-", "")} if is_run(run_id) else event


__all__ = ["with_call"]
