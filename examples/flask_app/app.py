"""The panel: asks a mixture of experts, and tells what happens until it has decided.

Readers are plain generators here, one thread each: serve it with threads, `gunicorn --threads 32 flask_app.app:app`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from flask import Flask, Response, abort, redirect, render_template, request
from werkzeug.wrappers import Response as AnyResponse

from mosaic_tasks import InputError, Run, UnknownRun, Workflow, get_run, submit

PANEL = Workflow.from_file(
    os.environ.get("PANEL_WORKFLOW", Path(__file__).parents[1] / "quiz" / "workflow.yaml")
)
QUESTIONS = (
    "How many edges does a cube have?",
    "How many days did February have in the year 1900?",
    "Which country has the second largest area, lakes included?",
)
TOLD = {"ready": "is asked", "claimed": "thinks", "done": "has answered", "cut": "is not needed any more"}

app = Flask(__name__)


@app.get("/")
def form() -> str:
    """The form; it brings the key of its submission, so that a second click is not a second run."""
    return render_template("form.html", key=uuid4().hex, questions=QUESTIONS)


@app.post("/panels")
def ask() -> AnyResponse:
    """Starts a run, and leads to its page."""
    try:
        run = submit(PANEL, {"question": request.form["question"]}, key=f"panels/{request.form['key']}")
    except InputError as error:
        abort(422, str(error))
    return redirect(f"/panels/{run.id}", 303)


@app.get("/panels/<run_id>")
def page(run_id: str) -> str:
    """The page of a run. Its script asks for the events."""
    return render_template("page.html", run_id=known(run_id).id)


@app.get("/panels/<run_id>/events")
def events(run_id: str) -> Response:
    """What happens, as server-sent events. A browser that comes back goes on where it was."""
    told = happenings(known(run_id), request.headers.get("Last-Event-ID", "0"))
    return Response(told, mimetype="text/event-stream", headers={"Cache-Control": "no-store"})


def happenings(run: Run, after: str) -> Iterator[str]:
    """A line for each expert that is asked, thinks, answers or is cut off, and what came of it.

    What happens at once is told at once: its lines have one id, from behind which a browser goes on.
    """
    nodes = run.plan().nodes
    for event in run.events(follow=True, after=after):
        called = [nodes[int(call.partition(".")[0])] for call in event.calls if event.kind in TOLD]
        lines = [f"{node.name} {TOLD[event.kind]}" for node in called if node.asked_by is not None]
        if lines:
            yield sent("told", lines, event.id)
    record = run.record()
    yield sent("over", run.output() if record.status == "done" else record.error)


def sent(kind: str, data: object, event_id: str = "") -> str:
    """A server-sent event."""
    place = f"id: {event_id}\n" if event_id else ""
    return f"event: {kind}\n{place}data: {json.dumps(data)}\n\n"


def known(run_id: str) -> Run:
    """The run with this id; anybody who has the id may see it."""
    try:
        return get_run(run_id)
    except UnknownRun:
        abort(404, "there is no such panel, or it is too old")
