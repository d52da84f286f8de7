"""Pauses between attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mosaic_tasks.definition.plan import NodePlan, Retry
from mosaic_tasks.execution.outcomes import retry_pause
from mosaic_tasks.execution.prepared import PreparedNode


def node(retry: Retry) -> PreparedNode:
    return PreparedNode(0, NodePlan("n", "tool", "q", retry=retry), str)


def test_no_attempt_is_left_after_the_last() -> None:
    assert retry_pause(node(Retry(attempts=3)), 2) is None


def test_pauses_grow() -> None:
    pauses = [
        retry_pause(node(Retry(attempts=9, delay_s=1.0, factor=3.0)), failures) or 0 for failures in range(3)
    ]
    assert pauses == sorted(pauses)


@given(st.integers(0, 900), st.floats(1, 1e6))
def test_any_pause_is_within_its_bound(failures: int, factor: float) -> None:
    pause = retry_pause(node(Retry(attempts=1000, delay_s=1.0, factor=factor, max_delay_s=60.0)), failures)
    assert pause is not None
    assert 0 < pause <= 60.0
