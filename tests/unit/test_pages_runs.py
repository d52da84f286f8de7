"""Which lists of runs a change of a run may touch."""

from __future__ import annotations

import pytest

from mosaic_queues.changes import RunChange
from mosaic_tasks.gateway.pages.runs import Choice

OPENED = RunChange("run-5", "", "report", "", "running")
ENDED = RunChange("run-5", "", "report", "running", "failed")
AGAIN = RunChange("run-5", "", "report", "failed", "running")


@pytest.mark.parametrize(
    ("choice", "touched"),
    [
        (Choice(None, "", ""), [OPENED, ENDED, AGAIN]),
        (Choice("running", "", ""), [OPENED, ENDED, AGAIN]),
        (Choice("failed", "", ""), [ENDED, AGAIN]),
        (Choice("done", "", ""), []),
        (Choice(None, "report", ""), [OPENED, ENDED, AGAIN]),
        (Choice(None, "other", ""), []),
        (Choice(None, "", "run-6"), [OPENED, ENDED, AGAIN]),
        (Choice(None, "", "run-5"), []),
    ],
)
def test_a_list_is_touched_by_what_enters_or_leaves_it(choice: Choice, touched: list[RunChange]) -> None:
    assert [each for each in (OPENED, ENDED, AGAIN) if choice.is_touched_by(each, tenant=None)] == touched


@pytest.mark.parametrize(("tenant", "is_touched"), [(None, True), ("", True), ("blue", False)])
def test_a_list_is_touched_by_the_runs_of_its_tenant(tenant: str | None, is_touched: bool) -> None:
    assert Choice(None, "", "").is_touched_by(OPENED, tenant=tenant) == is_touched
