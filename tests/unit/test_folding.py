"""What `@fold` says about a function."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from mosaic_queues.errors import DefinitionError, ToolError
from mosaic_tasks import fold
from mosaic_tasks.definition.folding import FoldOptions, FoldOutput, fold_options


@fold(initial=3, output="state")
def counted(state: int, values: list[Any]) -> tuple[int, list[Any]]:
    return state + len(values), []


def test_a_fold_is_still_its_function() -> None:
    assert counted(3, ["a", "b"]) == (5, [])


def test_a_fold_knows_its_options() -> None:
    assert fold_options(counted) == FoldOptions(initial=3, output="state")


def test_other_functions_are_no_folds() -> None:
    assert fold_options(len) is None


def yields(state: int, values: list[int]) -> Iterator[tuple[int, list[int]]]:
    yield state, values


async def yields_later(state: int, values: list[int]) -> AsyncIterator[int]:
    yield state


def gives_a_list(state: int, values: list[int]) -> list[int]:
    return values


def gives_a_number(state: int, values: list[int]) -> tuple[int, int]:
    return state, len(values)


def gives_three(state: int, values: list[int]) -> tuple[int, list[int], int]:
    return state, values, 3


def takes_nothing() -> tuple[int, list[int]]:
    return 0, []


def right(state: int, values: list[int]) -> tuple[int, list[int]]:
    return state, values


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        (yields, {}, "it yields; put the items of a batch into a list and return"),
        (yields_later, {}, "it yields; put"),
        (gives_a_list, {}, r"its return annotation is list\[int\]; it returns \(state, items\)"),
        (gives_a_number, {}, r"its return annotation is tuple\[int, int\]; it returns"),
        (gives_three, {}, r"its return annotation is tuple\[int, list\[int\], int\]; it returns"),
        (takes_nothing, {}, "it takes no state; its first argument is the state"),
        (
            right,
            {"initial": dict},
            "`initial` is 'dict', which is called by nobody; give the first state itself",
        ),
        (
            right,
            {"initial": "0"},
            "`initial` does not fit the annotation of the state: '0' is string, but integer",
        ),
        (right, {"initial": None}, "`initial` does not fit the annotation of the state: None is null"),
        (right, {"initial": [object()]}, r"`initial`\[0\] holds a value of type 'object'"),
        (right, {"finish": 5}, "`finish` is 5, which cannot be called"),
        (right, {"finish": takes_nothing}, "`finish` takes one argument, the last state"),
    ],
)
def test_what_makes_no_fold_is_told_where_it_is_decorated(
    function: Any, options: dict[str, Any], told: str
) -> None:
    made = fold(**{"initial": 0, **options})
    with pytest.raises(DefinitionError, match=f"the fold '{function.__name__}': {told}"):
        made(function)


def test_all_that_is_wrong_with_a_fold_is_told_at_once() -> None:
    with pytest.raises(DefinitionError) as caught:
        fold(initial="", finish=5)(gives_a_list)  # type: ignore[call-overload]
    assert len(caught.value.problems) == 3


def test_what_is_no_function_is_no_fold() -> None:
    with pytest.raises(DefinitionError, match=r"0 is no function; write @fold\(initial=0\) above one"):
        fold(0)  # type: ignore[type-var]


def bare(state, values):  # type: ignore[no-untyped-def]
    return state, values


def open_result(state: Any, values: Any) -> Any:
    return state, values


def bare_tuple(state: list[int], values: list[int]) -> tuple:  # type: ignore[type-arg]
    return state, values


def of_bytes(state: dict[int, bytes], values: list[int]) -> tuple[dict[int, bytes], list[int]]:
    return state, values


async def later(state: int, values: list[int]) -> tuple[int, Sequence[Any]]:
    return state, values


@pytest.mark.parametrize(
    ("function", "initial"),
    [(bare, None), (open_result, 0), (bare_tuple, (1, 2)), (later, 0), (of_bytes, {1: b"\xff"})],
)
def test_what_the_annotations_leave_open_is_a_fold(function: Any, initial: Any) -> None:
    assert fold_options(fold(initial=initial)(function)) is not None


@pytest.mark.parametrize(
    ("finish", "output", "told"),
    [
        (lambda state: "text", "items", "`finish` of the fold 'right' gave 'text'; give a list of items"),
        (lambda state: 5, "items", "`finish` of the fold 'right' gave 5; give a list of items"),
        (lambda state: [5], "text", r"`finish` of the fold 'right' gave \[5\], which are not all texts"),
    ],
)
def test_a_mistake_of_finish_is_told_as_its_own(finish: Any, output: FoldOutput, told: str) -> None:
    options = fold_options(fold(initial=0, finish=finish, output=output)(right))
    assert options is not None
    assert options.finish is not None
    with pytest.raises(ToolError, match=told):
        options.finish(0)
