"""Summaries: a form starts a run, a page shows what it writes while it writes.

Nothing is kept here: the run's id stands in the address of its page, and the run is in the ledger. So the app may be
restarted at any time, and in as many processes as you like.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated
from uuid import uuid4

from fastapi import FastAPI, Form, Header, HTTPException
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from mosaic_tasks import Run, UnknownRun, Workflow, asubmit, get_run

HERE = Path(__file__).parent
SUMMARY = Workflow.from_file(HERE / "summary.yaml")
FORM = (HERE / "form.html").read_text("utf-8")

app = FastAPI(title="Summaries")


@app.get("/", response_class=HTMLResponse)
async def form() -> str:
    """The form; it brings the key of its submission, so that a second click is not a second run."""
    return FORM.replace("{{ key }}", uuid4().hex)


@app.post("/summaries")
async def create(text: Annotated[str, Form()], key: Annotated[str, Form(max_length=64)]) -> RedirectResponse:
    """Starts a run, and leads to its page."""
    run = await asubmit(SUMMARY, {"text": text}, key=f"summaries/{key}")
    return RedirectResponse(f"/summaries/{run.id}", status_code=303)


@app.get("/summaries/{run_id}")
async def page(run_id: str) -> FileResponse:
    """The page of a run. Its script asks for the stream."""
    await known(run_id)
    return FileResponse(HERE / "page.html")


@app.get("/summaries/{run_id}/stream", response_class=EventSourceResponse)
async def stream(
    run_id: str, last_event_id: Annotated[str | None, Header()] = None
) -> AsyncIterator[ServerSentEvent]:
    """What the run writes. A browser that comes back goes on where it was."""
    run = await known(run_id)
    async with run.astream(after=last_event_id) as events:
        async for event in events:
            told = {"offset": event.offset, "value": event.value}
            yield ServerSentEvent(event=event.kind, id=event.id, data=told)
    record = await run_in_threadpool(run.record)
    yield ServerSentEvent(event="over", data={"status": record.status, "error": record.error})


async def known(run_id: str) -> Run:
    """The run with this id; anybody who has the id may see it."""
    try:
        return await run_in_threadpool(get_run, run_id)
    except UnknownRun:
        raise HTTPException(404, "there is no such summary, or it is too old") from None
