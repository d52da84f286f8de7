"""What `@fold` says about a function."""

from __future__ import annotations

from typing import Any

from mosaic_tasks import fold
from mosaic_tasks.definition.folding import FoldOptions, fold_options


@fold(initial=3, output="state")
def counted(state: int, values: list[Any]) -> tuple[int, list[Any]]:
    return state + len(values), []


def test_a_fold_is_still_its_function() -> None:
    assert counted(3, ["a", "b"]) == (5, [])


def test_a_fold_knows_its_options() -> None:
    assert fold_options(counted) == FoldOptions(initial=3, output="state")


def test_other_functions_are_no_folds() -> None:
    assert fold_options(len) is None
