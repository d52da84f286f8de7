"""Folds: functions that take a stream batch by batch and keep a state between.

@fold(initial=0)
def running_total(state, figures):
    total = state + sum(figures)
    return total, [total]
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, overload

from pydantic import ConfigDict, TypeAdapter

from mosaic_queues.errors import DefinitionError, NotSerializable, ToolError
from mosaic_queues.values import plain
from mosaic_tasks.definition.schemas import misfit, schema_of

F = TypeVar("F", bound=Callable[..., Any])
FoldOutput = Literal["items", "text", "state"]

_FOLD = "__mosaic_fold__"
_OPEN: tuple[Any, ...] = (Any, object, Union, UnionType)
"""Annotations that may stand for anything."""
_JSON: TypeAdapter[Any] = TypeAdapter(Any, config=ConfigDict(ser_json_bytes="base64"))
"""Bytes are texts to a JSON Schema."""


@dataclass(frozen=True, slots=True)
class FoldOptions:
    """What `@fold` says about a function."""

    initial: Any = None
    finish: Callable[[Any], Iterable[Any]] | None = None
    output: FoldOutput = "items"


@overload
def fold(function: F, /) -> F: ...


@overload
def fold(
    *, initial: Any = None, finish: Callable[[Any], Iterable[Any]] | None = None, output: FoldOutput = "items"
) -> Callable[[F], F]: ...


def fold(
    function: Any = None,
    /,
    *,
    initial: Any = None,
    finish: Callable[[Any], Iterable[Any]] | None = None,
    output: FoldOutput = "items",
) -> Any:
    """Makes `function(state, **arguments) -> (state, items)` a consumer of streams.

    The function may be a coroutine. An argument that refers to a streamed producer holds what is new: a list of items,
    or a text. The state must be a value that can be stored; it is rolled back to the last batch when a batch fails.

    Args:
        function: the function, where the decorator has no options.
        initial: the state before the first batch.
        finish: called once with the last state; what it gives is put out after everything else.
        output: what the node puts out in the end: all `items`, the `text` that they make together, or the last `state`.

    Raises:
        DefinitionError: there is no such output, or no fold can be made of the function, `initial` and `finish`; tells
            all that is wrong.
    """
    if output not in get_args(FoldOutput):
        raise DefinitionError(
            [f"a fold has no output {output!r}; it is one of {', '.join(get_args(FoldOutput))}"]
        )

    def mark(function: F) -> F:
        if problems := list(_problems(function, initial, finish)):
            raise DefinitionError([f"the fold {_name(function)!r}: {problem}" for problem in problems])
        last = None if finish is None else _checked(finish, _name(function), output)
        setattr(function, _FOLD, FoldOptions(initial, last, output))
        return function

    return mark if function is None else mark(function)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))


def _problems(function: Any, initial: Any, finish: Any) -> Iterator[str]:
    """What is wrong with a fold, as far as it can be seen before a run."""
    if not callable(function):
        yield f"{function!r} is no function; write @fold(initial={function!r}) above one"
        return
    hints = _hints(function)
    plain_function = inspect.unwrap(function)
    if inspect.isgeneratorfunction(plain_function) or inspect.isasyncgenfunction(plain_function):
        yield "it yields; put the items of a batch into a list and return (state, items)"
    elif reason := _no_result(hints.get("return", Any)):
        yield f"its return annotation is {reason}; it returns (state, items), such as tuple[int, list[str]]"
    state = _first_parameter(function)
    if state is None:
        yield "it takes no state; its first argument is the state, the others are the `with` of the node"
    yield from _problems_of_initial(initial, hints.get(state or "", Any))
    yield from _problems_of_finish(finish)


def _hints(function: Any) -> dict[str, Any]:
    """Its annotations; none where they name what is not there yet."""
    try:
        return typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError, AttributeError):
        return {}


def _no_result(annotation: Any) -> str | None:
    """How an annotation differs from (state, items); None where it does not, or does not tell."""
    kind, parts = get_origin(annotation) or annotation, get_args(annotation)
    if not isinstance(kind, type) or kind in _OPEN:
        return None
    if not issubclass(kind, tuple):
        return _shown(annotation)
    if kind is not tuple or not parts or Ellipsis in parts:
        return None
    return None if len(parts) == 2 and _may_be_list(parts[1]) else _shown(annotation)


def _may_be_list(annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    if not isinstance(kind, type) or kind in _OPEN:
        return True
    return issubclass(kind, Iterable) and not issubclass(kind, (str, bytes, Mapping))


def _shown(annotation: Any) -> str:
    return annotation.__name__ if type(annotation) is type else str(annotation).removeprefix("typing.")


def _first_parameter(function: Any) -> str | None:
    """The name of the first argument that can be given by its place; empty where the signature does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return next((parameter.name for parameter in parameters if parameter.kind not in by_name), None)


def _problems_of_initial(initial: Any, annotation: Any) -> Iterator[str]:
    if callable(initial):
        yield f"`initial` is {_name(initial)!r}, which is called by nobody; give the first state itself"
        return
    try:
        state = _JSON.dump_python(plain(initial), mode="json")
    except NotSerializable as error:
        yield f"`initial`{error.reason}"
        return
    wanted = schema_of(annotation)
    if wanted and (reason := misfit(state, wanted)):
        yield f"`initial` does not fit the annotation of the state: {reason}; give `initial` such a state"


def _problems_of_finish(finish: Any) -> Iterator[str]:
    if finish is None:
        return
    if not callable(finish):
        yield f"`finish` is {finish!r}, which cannot be called; give a function that makes a list from the last state"
        return
    if inspect.iscoroutinefunction(finish):
        yield "`finish` is a coroutine; give a plain function"
    try:
        inspect.signature(finish).bind(None)
    except TypeError:
        yield "`finish` takes one argument, the last state"
    except ValueError:  # its signature does not tell
        return


def _checked(finish: Callable[[Any], Any], fold_name: str, output: FoldOutput) -> Callable[[Any], list[Any]]:
    """`finish`, whose mistakes are told as its own."""

    @wraps(finish)
    def last(state: Any) -> list[Any]:
        items = finish(state)
        if isinstance(items, str) or not isinstance(items, Iterable):
            raise ToolError(
                f"`finish` of the fold {fold_name!r} gave {items!r:.80}; give a list of items, which may be empty"
            )
        found = list(items)
        if output == "text" and not all(isinstance(item, str) for item in found):
            raise ToolError(f"`finish` of the fold {fold_name!r} gave {found!r:.80}, which are not all texts")
        return found

    return last


def fold_options(function: Callable[..., Any]) -> FoldOptions | None:
    """What `@fold` said, None for any other function."""
    options: FoldOptions | None = getattr(function, _FOLD, None)
    return options


__all__ = ["FoldOptions", "fold", "fold_options"]
