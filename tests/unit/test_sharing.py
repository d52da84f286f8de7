"""How work is shared out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_tasks.execution.sharing import (
    TOGETHER,
    Lengths,
    batch_size,
    calls_ahead,
    calls_to_keep,
    claim_size,
    patience_s,
)

LENGTHS = st.one_of(st.none(), st.floats(0, 100))


def keep(ready: int, length_s: float | None, workers: int = 2) -> int:
    return calls_to_keep(ready, length_s=length_s, workers=workers, budget_calls=256, budget_s=0.2)


def size(waiting: int, length_s: float | None, workers: int = 2, **kind: bool) -> int:
    return batch_size(waiting, length_s=length_s, workers=workers, batch_s=0.1, batch_calls=256, **kind)


def test_what_is_shorter_than_a_message_is_kept() -> None:
    assert keep(10, 0.0001) == 10


def test_long_calls_are_shared_with_the_other_workers() -> None:
    assert keep(10, 0.01) == 5
    assert keep(10, 60.0) == 1


def test_the_budget_bounds_what_is_kept() -> None:
    assert calls_to_keep(10, length_s=0.0001, workers=2, budget_calls=3, budget_s=0.2) == 3
    assert calls_to_keep(10, length_s=0.0001, workers=2, budget_calls=3, budget_s=0.0) == 0


def test_a_long_call_travels_alone() -> None:
    assert size(1000, 60.0) == 1


def test_every_worker_gets_a_message() -> None:
    assert size(8, 0.0001, workers=4) == 1
    assert size(1000, 0.0001, workers=2) == 250


def test_calls_that_run_together_do_not_add_up() -> None:
    assert size(10, 60.0, workers=2, concurrent=True) == 5
    assert size(1000, 60.0, workers=2, concurrent=True) == TOGETHER


def test_hosted_calls_share_a_message_while_its_cost_counts() -> None:
    assert size(1000, 0.001, workers=2, concurrent=True, hosted=True) == TOGETHER
    assert size(1000, 60.0, workers=2, concurrent=True, hosted=True) == 1


@given(st.integers(0, 10_000), LENGTHS, st.integers(0, 64))
def test_shares_stay_within_their_bounds(ready: int, length_s: float | None, workers: int) -> None:
    assert 0 <= keep(ready, length_s, workers) <= min(ready, 256)
    assert 1 <= size(ready, length_s, workers) <= max(1, min(ready, 256))
    assert 1 <= claim_size(length_s, window_s=0.005, most=64) <= 64


@pytest.mark.parametrize(
    ("length_s", "ahead"), [(0.0, 32), (0.01, 32), (0.1, 32), (0.2, 16), (1.0, 3), (60.0, 0)]
)
def test_so_many_calls_are_at_hand_as_will_begin_soon(length_s: float, ahead: int) -> None:
    assert calls_ahead(32, length_s=length_s, batch_s=0.1) == ahead


def test_lengths_follow_what_is_measured() -> None:
    lengths = Lengths()
    assert lengths.get("a") is None
    lengths.add("a", 1.0)
    for _ in range(50):
        lengths.add("a", 2.0)
    found = lengths.get("a")
    assert found is not None
    assert abs(found - 2.0) < 0.01


@pytest.mark.parametrize(("length_s", "patience"), [(0.0, 0.2), (0.05, 0.2), (0.235, 0.47)])
def test_who_is_alone_waits_for_calls_that_began_together(length_s: float, patience: float) -> None:
    assert patience_s(length_s=length_s, batch_s=0.1) == pytest.approx(patience)
