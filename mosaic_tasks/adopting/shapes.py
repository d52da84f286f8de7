"""What a canvas consists of, read as Celery reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from celery import Celery, Task
from celery.canvas import Signature, group, maybe_signature, maybe_unroll_group
from celery.exceptions import NotRegistered

from mosaic_queues.errors import DefinitionError

_COMPOSED = {"celery.chain", "celery.chord", "celery.group", "celery.chunks", "celery.map", "celery.starmap"}
"""By these names rather than by their classes, which Celery's copies of the last three have not."""


def steps_of(sig: Signature) -> list[Signature]:
    """The steps of a chain: a group of one is its member, and an empty one no step."""
    steps = [maybe_signature(step, app=sig.app) for step in sig.tasks]
    unrolled = [maybe_unroll_group(step) if isinstance(step, group) else step for step in steps]
    return [step for step in unrolled if not (isinstance(step, group) and not step.tasks)]


def members_of(sig: Signature) -> list[Signature]:
    """The members of a group, those of groups in it included."""
    found: list[Signature] = []
    for each in sig.tasks:
        member = maybe_signature(each, app=sig.app)
        found += members_of(member) if isinstance(member, group) else [member]
    return found


def heads(sig: Signature) -> Iterator[Signature]:
    """The tasks that the canvas is called with."""
    if sig.task == "celery.chain":
        yield from (head for step in steps_of(sig)[:1] for head in heads(step))
    elif sig.task in ("celery.group", "celery.chord"):
        yield from (head for member in members_of(sig) for head in heads(member))
    elif sig.task not in _COMPOSED:
        yield sig


def app_of(sig: Signature) -> Celery:
    """The app that its tasks were made by; a canvas of several is of none itself."""
    apps = (head._app for head in heads(sig))
    return next((app for app in apps if app is not None), sig.app)


def inner_of(sig: Signature) -> Signature:
    """The task that a map calls; Celery calls it with nothing but the items."""
    inner = maybe_signature(sig.kwargs["task"], app=sig.app).clone()
    inner.args, inner.kwargs = (), {}
    return inner


def callbacks_of(sig: Signature) -> list[Signature]:
    """Those that are called with its result."""
    linked = sig.options.get("link") or []
    many = linked if isinstance(linked, (list, tuple)) else [linked]
    return [maybe_signature(each, app=sig.app) for each in many]


def are_alike(members: Iterable[Signature]) -> bool:
    """Whether these are calls of one task that differ in arguments by position alone."""
    first, *others = members
    return not (first.task in _COMPOSED or callbacks_of(first)) and all(
        _manner(other) == _manner(first) for other in others
    )


def _manner(sig: Signature) -> tuple[Any, ...]:
    options = {name: value for name, value in sig.options.items() if name != "task_id"}
    return sig.task, len(sig.args), sig.kwargs, options, bool(sig.immutable)


def task_of(sig: Signature) -> Task:
    """The task behind a plain signature.

    Raises:
        DefinitionError: its app does not know it.
    """
    try:
        return sig.type
    except NotRegistered:
        raise DefinitionError(
            [
                f"the app {sig.app.main!r} knows no task {sig.task!r}; import the module that defines it beside "
                "the canvas"
            ]
        ) from None


def flat(values: Any) -> Any:
    """The results of a group as its body gets them: those of groups at the end of chains in it among them."""
    if not isinstance(values, list):
        return values
    return [part for value in values for part in (flat(value) if isinstance(value, list) else [value])]
