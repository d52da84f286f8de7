"""From `module:signature` to the canvas that it names."""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.canvas import Signature

from mosaic_queues.errors import DefinitionError
from mosaic_tasks.definition.tools import resolve_tool


def load(target: str) -> Signature:
    """The canvas behind a name: a signature, a task, or a function without arguments that returns one of them.

    Runs code of the user: the module, and that function.

    Raises:
        DefinitionError: the name has another form, the module cannot be imported, or something else is there.
    """
    found = resolve_tool(target).function
    if not isinstance(found, (Signature, Task)):
        found = _called(target, found)
    if isinstance(found, Task):
        found = found.s()
    if isinstance(found, Signature):
        return found
    raise DefinitionError(
        [
            f"{target!r} is a {type(found).__name__}; name a signature, chain, group or chord, or a function that "
            "returns one"
        ]
    )


def _called(target: str, function: Any) -> Any:
    try:
        return function()
    except Exception as error:
        raise DefinitionError(
            [
                f"{target!r} was called for its canvas, without arguments, and raised {type(error).__name__}: {error}"
            ]
        ) from error
