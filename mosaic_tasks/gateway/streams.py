"""What runs put out, and what happens to them, as server-sent events that can be read on from anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from mosaic_queues.events import Event
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.client import Run
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.gateway.answers import ALWAYS, OF_RUNS, RunId
from mosaic_tasks.gateway.callers import Gateway, Here, Responses, caller, run_seen_by
from mosaic_tasks.gateway.readers import EVENT_STREAM, EventStream, Readers, frame, frames
from mosaic_tasks.gateway.runs import check_node
from mosaic_tasks.inspection.parts import StreamEvent
from mosaic_tasks.inspection.progress import nodes_of
from mosaic_tasks.inspection.reading import AsyncReading

_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Where to read on from."},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
        "retry": {"type": "integer", "minimum": 0},
    },
}
_STREAMED: Responses = {
    **OF_RUNS,
    200: {"description": "Server-sent events.", "content": {EVENT_STREAM: {"itemSchema": _EVENT}}},
}

router = APIRouter(prefix="/v1/runs", tags=["streams"], responses=ALWAYS)


def readers_of(request: Request) -> Readers:
    """Those of this process."""
    readers: Readers = request.app.state.readers
    return readers


async def _all_readers(request: Request) -> Readers:  # a plain function would be called in a thread
    return readers_of(request)


AllReaders = Annotated[Readers, Depends(_all_readers)]
Reader = Annotated[Principal, Depends(caller("read"))]
LastEventId = Annotated[
    str | None,
    Header(max_length=100, description="Where a reader stopped: it goes on behind this event."),
]
After = Annotated[
    str | None,
    Query(max_length=100, description="The same, for whoever cannot send headers; the header goes first."),
]


@router.get(
    "/{run_id}/stream",
    operation_id="stream_node",
    summary="What a node puts out, as it comes",
    response_class=Response,
    responses=_STREAMED,
)
async def stream_node(
    run_id: RunId,
    here: Here,
    principal: Reader,
    readers: AllReaders,
    node: Annotated[
        str | None, Query(max_length=200, description="Its name; left out: the output node.")
    ] = None,
    last_event_id: LastEventId = None,
    after: After = None,
) -> Response:
    """Server-sent events `text`, `items`, `value` and `retract`, and in the end `end`; without one, where the node
    never closed, `over`, which tells the status of the run. Data is JSON: node, offset, value."""
    run = await asyncio.to_thread(_seen, principal, run_id, here, node)
    reading = run.apieces(node, after=last_event_id or after or None)
    ended = _Ended(run)
    return await _streamed(here, principal, readers, reading, ended.encode, ended.tell)


@router.get(
    "/{run_id}/events",
    operation_id="stream_events",
    summary="What happens to a run, as it happens",
    response_class=Response,
    responses=_STREAMED,
)
async def stream_events(
    run_id: RunId,
    here: Here,
    principal: Reader,
    readers: AllReaders,
    last_event_id: LastEventId = None,
    after: After = None,
) -> Response:
    """Server-sent events named by their kind, such as `claimed`, and in the end `over`, which tells the status."""
    run = await asyncio.to_thread(_seen, principal, run_id, here, None)
    plan = await asyncio.to_thread(run.plan)
    reading = run.aevents(after=last_event_id or after or "0")
    return await _streamed(here, principal, readers, reading, partial(_happened, plan), partial(_over, run))


def _seen(principal: Principal, run_id: str, here: Gateway, node: str | None) -> Run:
    run = run_seen_by(principal, run_id, here)
    if node is not None:
        check_node(run.plan(), node)
    return run


async def _streamed(
    here: Gateway,
    principal: Principal,
    readers: Readers,
    reading: AsyncReading[Any],
    encode: Callable[[Any], bytes],
    ending: Callable[[], bytes],
) -> EventStream:
    """The answer; what is wrong with the request is told before it begins."""
    config = process_for(here.app).settings
    await reading.open()
    body = frames(reading, encode, ending, silence_s=config.gateway_silence_s)
    held = here.quotas.reading(principal)
    return EventStream(body, readers, held=held, patience_s=config.gateway_patience_s)


class _Ended:
    """Encodes what a node puts out, and notes whether its end was told."""

    def __init__(self, run: Run) -> None:
        self._run, self._is_told = run, False

    def encode(self, event: StreamEvent) -> bytes:
        """An event."""
        self._is_told = event.kind == "end"
        data = {"node": event.node, "offset": event.offset, "value": event.value}
        return frame(event.kind, data, event_id=event.id)

    def tell(self) -> bytes:
        """What follows on the last one."""
        return b"" if self._is_told else _over(self._run)


def _happened(plan: Plan, event: Event) -> bytes:
    return frame(event.kind, {**event._asdict(), "nodes": nodes_of(plan, event)}, event_id=event.id)


def _over(run: Run) -> bytes:
    record = run.record()
    return frame("over", {"status": record.status, "error": record.error})
