"""`mosaic import-canvas`: a workflow file from a canvas, which says at its top what it does not keep."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from celery.canvas import Signature

from mosaic_queues.errors import DefinitionError
from mosaic_tasks.adopting.loading import load
from mosaic_tasks.adopting.shapes import app_of
from mosaic_tasks.adopting.translating import Note, Translation
from mosaic_tasks.definition.builder import Flow
from mosaic_tasks.definition.workflow import Workflow

_WIDTH = 110


class Imported(NamedTuple):
    """A canvas as a workflow.

    Attributes:
        text: of the file.
        notes: what it does not keep.
    """

    workflow: Workflow
    text: str
    notes: Sequence[Note]


def import_canvas(target: str, *, name: str | None = None) -> Imported:
    """The workflow of the canvas that `module:signature` names.

    Args:
        target: of a signature, a task, or a function without arguments that returns one.
        name: of the workflow; default: that of the signature.

    Raises:
        DefinitionError: there is no canvas, or something in it has no form in a workflow file.
    """
    try:
        canvas = load(target)
        workflow, notes = translated(canvas, name=name or _name_of(target))
        workflow.analysed()
        return Imported(workflow, _comments(target, notes) + workflow.to_yaml(), notes)
    except RecursionError:
        problem = (
            f"{target!r} holds itself, or is nested too deep to be read; a workflow has one level of nodes"
        )
        raise DefinitionError([problem]) from None


def translated(canvas: Signature, *, name: str) -> tuple[Workflow, Sequence[Note]]:
    """A canvas as a workflow, and what that does not keep."""
    app = app_of(canvas)
    flow = Flow(name, defaults={"queue": app.conf.task_default_queue})
    translation = Translation(flow, app=app)
    translation.whole(canvas)
    return flow.build(), translation.notes


def _name_of(target: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", target.rpartition(":")[2].lower()).strip("-")
    return words if words[:1].isalpha() else f"canvas-{words}".rstrip("-")


def _comments(target: str, notes: Sequence[Note]) -> str:
    lines = [
        f"Imported from {target}. Its nodes run on workers of the app that has the tasks, after "
        "mosaic_tasks.install(app)."
    ]
    if notes:
        lines.append("Not kept:")
    lines += [f"- {told(note)}" for note in notes]
    wrapped = [
        part
        for line in lines
        for part in textwrap.wrap(line, _WIDTH, subsequent_indent="  " if line[0] == "-" else "")
    ]
    return "".join(f"# {line}\n" for line in wrapped)


def told(note: Note) -> str:
    """A note, for people; what no terminal shows, and what ends a comment of YAML, as Python writes it."""
    said = f"{note.subject}: {note.what}: {note.instead}"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in said)
