"""Canvases that hold themselves, have no end, or hostile names: told, never a traceback and never a broken file."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, Task, chain, group
from celery.canvas import Signature

from mosaic_queues.errors import DefinitionError
from mosaic_tasks import Workflow
from mosaic_tasks.adopting.importing import Imported, import_canvas, translated

app = Celery("bounds", broker="memory://", set_as_current=False)
HOSTILE = "shop.\u2028nodes: {}\x85- x\x1b[31m\n'\"${item}#"


@app.task(shared=False, name="add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(shared=False, name="same")
def same(x: Any = 0) -> Any:
    return x


@app.task(shared=False, name=HOSTILE)
def hostile(x: int = 1) -> int:
    return x


@app.task(shared=False, name="within", bind=True)
def within(self: Task, x: int = 1) -> int:
    def attempts() -> int:
        return int(self.request.retries)

    return x + attempts()


def in_itself() -> Signature:
    found = group([same.si(1)])
    found.tasks.append(found)
    return found


def endless() -> Signature:
    found = chain(same.si(1), same.s())
    found.kwargs["tasks"].append(found)
    return found


def deep() -> Signature:
    found = same.si(1)
    for _ in range(400):
        found = chain(group(found, same.si(2)), same.s())
    return found


def list_in_itself() -> Signature:
    found: list[Any] = []
    found.append(found)
    return same.si(found)


def imported(canvas: Any, monkeypatch: pytest.MonkeyPatch) -> Imported:
    name = f"bounds_{id(canvas)}"
    module = ModuleType(name)
    module.canvas = canvas  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    return import_canvas(f"{name}:canvas")


@pytest.mark.parametrize("made", [in_itself, endless, deep, list_in_itself])
def test_a_canvas_that_holds_itself_is_told(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DefinitionError, match="holds itself, or is nested too deep"):
        imported(made, monkeypatch)


@pytest.mark.parametrize(
    ("canvas", "problem"),
    [
        (add.starmap([1, 2]), "starmap of 'add': each item is to be a list of arguments"),
        (add.starmap([]), "starmap of 'add': it has no items"),
        (add.chunks([(1, 2)], 0), "chunks of 'add': 0 items a chunk; give 1 or more"),
    ],
)
def test_items_that_no_call_can_take_are_told(canvas: Signature, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        translated(canvas, name="many")


def test_a_hostile_name_breaks_neither_the_file_nor_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = imported(hostile.si(2).set(countdown=3), monkeypatch)
    assert Workflow.from_yaml(found.text) == found.workflow
    comments = [line for line in found.text.splitlines() if line.startswith("#")]
    assert "countdown=3" in " ".join(comments)
    assert "".join(comments).isprintable()


def test_a_request_that_an_inner_function_reads_is_told() -> None:
    _, notes = translated(within.si(1), name="inner")
    assert [note.what for note in notes] == ["self.request"]


def test_a_canvas_of_many_of_one_task_is_read_in_time_that_grows_with_it() -> None:
    many = group((same.si(number) if number % 2 else add.si(1, number)) for number in range(4_000))
    workflow, _ = translated(many, name="many")
    assert len(workflow.nodes) == 4_001
