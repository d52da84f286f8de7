"""Folds: functions that take a stream batch by batch and keep a state between.

@fold(initial=0)
def running_total(state, figures):
    total = state + sum(figures)
    return total, [total]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, overload

from mosaic_queues.errors import DefinitionError

F = TypeVar("F", bound=Callable[..., Any])
FoldOutput = Literal["items", "text", "state"]

_FOLD = "__mosaic_fold__"


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
        DefinitionError: there is no such output.
    """
    if output not in get_args(FoldOutput):
        raise DefinitionError(
            [f"a fold has no output {output!r}; it is one of {', '.join(get_args(FoldOutput))}"]
        )

    def mark(function: F) -> F:
        setattr(function, _FOLD, FoldOptions(initial, finish, output))
        return function

    return mark if function is None else mark(function)


def fold_options(function: Callable[..., Any]) -> FoldOptions | None:
    """What `@fold` said, None for any other function."""
    options: FoldOptions | None = getattr(function, _FOLD, None)
    return options


__all__ = ["FoldOptions", "fold", "fold_options"]
