"""What imported workflow files call beside the tasks themselves, on workers of the app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import current_app

from mosaic_queues.errors import ToolError


def listed(values: list[Any]) -> list[Any]:
    """The results of a group, as one list."""
    return values


def chunked(values: list[Any], size: int) -> list[list[Any]]:
    """Results, in lists of this size; the last one may be shorter."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def by_position(task: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Any:
    """Calls a task of this worker's app whose arguments have no names: `*args`, or those before a `/`.

    Raises:
        ToolError: the app has no such task.
    """
    found = current_app.tasks.get(task)
    if found is None:
        raise ToolError(
            f"this worker knows no Celery task {task!r}; start a worker of the app that defines it"
        )
    return found(*args, **(kwargs or {}))
