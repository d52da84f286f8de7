"""The page of what `mosaic_tasks` exports, from signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from manual.words import docstring, is_error, page

WIDTH = 110


def python_page() -> str:
    """What `mosaic_tasks` exports."""
    import mosaic_tasks
    from mosaic_tasks.definition.builder import AddNode

    names = [name for name in mosaic_tasks.__all__ if not is_error(getattr(mosaic_tasks, name))]
    parts = [_object(name, getattr(mosaic_tasks, name)) for name in names]
    adding = ["## Adding nodes", "What `flow.tool`, `flow.task`, `flow.agent` and `flow.mixture` take:"]
    adding += [_signature("flow.KIND", AddNode.__call__), *docstring(AddNode.__call__)]
    about = "What `from mosaic_tasks import ...` gives. [Errors](errors.md) have a page of their own."
    return page("Python", about, *(text for part in parts for text in part), *adding)


def _object(name: str, thing: Any) -> Iterator[str]:
    """A function, or a class with its public members."""
    yield f"## {name}"
    if not inspect.isclass(thing):
        yield _signature(name, thing)
        yield from docstring(thing)
        yield from _options_of(thing)
        return
    fields = getattr(thing, "__struct_fields__", getattr(thing, "_fields", ()))
    yield from [_signature(name, thing.__init__)] if name == "Flow" else []
    yield from docstring(thing)
    yield from [f"Fields: {', '.join(f'`{field}`' for field in fields)}."] if fields else []
    for member, value in vars(thing).items():
        if not member.startswith("_") and _is_member(value):
            yield from _member(f"{name}.{member}", value)


def _is_member(value: Any) -> bool:
    """Whether people call or read it."""
    is_own = inspect.isfunction(value) or isinstance(value, (classmethod, property))
    return is_own and bool(inspect.getdoc(value))


def _member(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}"
    if not isinstance(value, property):
        yield _signature(name.rpartition(".")[2], getattr(value, "__func__", value))
    yield from docstring(value)
    yield from _options_of(value)


class _Word(str):
    """An annotation that is shown as it was written."""

    def __repr__(self) -> str:
        return str(self)


def _signature(name: str, function: Any) -> str:
    found = inspect.signature(inspect.unwrap(function))
    parameters = [
        each.replace(
            annotation=_Word(each.annotation) if isinstance(each.annotation, str) else each.annotation
        )
        for each in found.parameters.values()
        if each.name not in ("self", "cls")
    ]
    result = _Word(found.return_annotation)
    short = f"{name}{found.replace(parameters=parameters, return_annotation=result)}"
    if len(short) > WIDTH and parameters:
        short = _broken(name, parameters, result)
    return f"```text\n{short}\n```"


def _broken(name: str, parameters: list[inspect.Parameter], result: str) -> str:
    """A signature with a parameter a line."""
    lines, bare = list[str](), True
    for each in parameters:
        if each.kind == each.KEYWORD_ONLY and bare:
            lines, bare = [*lines, "*"], False
        lines.append(str(each))
        if each.kind == each.POSITIONAL_ONLY:
            lines.append("/")
    return "\n".join([f"{name}(", *(f"    {line}," for line in lines), f") -> {result}"])


def _options_of(function: Any) -> Iterator[str]:
    """What `**options` may be."""
    for hint in getattr(inspect.unwrap(function), "__annotations__", {}).values():
        if isinstance(hint, str) and hint.startswith("Unpack[") and "SubmitOptions" not in hint:
            kind = vars(inspect.getmodule(function))[hint[7:-1]]
            yield f"Options (`{kind.__name__}`):"
            yield from list(docstring(kind))[1:]
