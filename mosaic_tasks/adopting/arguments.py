"""Celery gives arguments by position, workflow files by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Task

from mosaic_tasks.definition.builder import Handle
from mosaic_tasks.definition.references import escape

MOST_MISSING = 32
"""More arguments are not looked for."""
_BY_POSITION = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)


def bind(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments by name; None: some have no name.

    Raises:
        TypeError: the task does not take them.
    """
    signature = inspect.signature(task.run)
    given = signature.bind(*args, **kwargs).arguments
    if any(signature.parameters[name].kind in _BY_POSITION for name in given):
        return None
    named: dict[str, Any] = {}
    for name, value in given.items():
        named |= value if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return named


def missing(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The names of the arguments that a partial signature is to be called with; they come before its own.

    Raises:
        TypeError: no number of arguments before them makes it right.
    """
    signature, first = inspect.signature(task.run), None
    for count in range(MOST_MISSING):
        try:
            signature.bind(*[None] * count, *args, **kwargs)
        except TypeError as error:
            first = first or error
        else:
            return [*signature.parameters][:count]
    raise first or TypeError("it takes other arguments")


def literal(value: Any) -> Any:
    """A value as data of a workflow file.

    Raises:
        TypeError: it has no such form; with its type.
    """
    if isinstance(value, str):
        return escape(value)
    if value is None or isinstance(value, (bool, int, float, Handle)):
        return value
    if isinstance(value, (list, tuple)):
        return [literal(part) for part in value]
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: literal(part) for key, part in value.items()}
    raise TypeError(
        f"{value!r:.80} is a {type(value).__name__}, which a workflow file cannot hold; give text, numbers, "
        "lists or maps, and make the rest in the task"
    )
