"""The order of waiting calls: what may move a call by how much, that nothing starves, and fair shares of tenants."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_routing.ordering import (
    AGEING_S,
    LATEST,
    LONGEST_S,
    SOONEST,
    Shares,
    Waiting,
    celery_level,
    due_s,
    engine_priority,
    shift,
)

INTERACTIVE, DEFAULT, BATCH = 3, 5, 9
amounts = st.floats(0, 1e9, allow_nan=False)
calls = st.builds(
    Waiting,
    level=st.integers(0, 9),
    ready_s=st.floats(0, 1e6),
    length_s=amounts,
    deadline_s=st.one_of(st.just(math.inf), st.floats(-1e6, 1e7)),
    path_s=amounts,
    fan_out=st.integers(0, 10**6),
    attained_s=amounts,
    lead_s=amounts,
)


@given(calls)
def test_a_call_is_moved_by_so_many_levels_at_most(call: Waiting) -> None:
    assert SOONEST <= shift(call) <= LATEST


@given(calls, calls, st.floats(0.001, 1e6))
def test_nothing_starves(old: Waiting, new: Waiting, later_s: float) -> None:
    new = msgspec.structs.replace(new, ready_s=old.ready_s + LONGEST_S + later_s)
    assert due_s(old) < due_s(new)


@given(calls, calls)
def test_new_batch_work_stays_behind_new_default_and_interactive_work(one: Waiting, other: Waiting) -> None:
    batch = msgspec.structs.replace(one, level=BATCH, ready_s=0.0)
    for level in (INTERACTIVE, DEFAULT):
        before = msgspec.structs.replace(other, level=level, ready_s=0.0)
        assert due_s(before) < due_s(batch)
        assert celery_level(before, now_s=0.0) < celery_level(batch, now_s=0.0)


def test_batch_work_that_has_waited_goes_before_new_interactive_work() -> None:
    waited = Waiting(level=BATCH, ready_s=0.0)
    new = Waiting(level=INTERACTIVE, ready_s=6.1 * AGEING_S)
    assert due_s(waited) < due_s(new)


@given(calls, st.floats(0, 1e5), st.floats(0, 1e5))
def test_a_message_is_never_published_again_at_a_later_level(
    call: Waiting, now_s: float, more_s: float
) -> None:
    levels = [celery_level(call, now_s=call.ready_s + now) for now in (now_s, now_s + more_s)]
    assert 0 <= levels[1] <= levels[0] <= 9


@pytest.mark.parametrize("level", range(10))
def test_the_level_of_a_new_call_that_nothing_moves_is_that_of_its_run(level: int) -> None:
    assert celery_level(Waiting(level=level, ready_s=50.0), now_s=50.0) == level


@pytest.mark.parametrize(
    ("sooner", "later"),
    [
        ({"deadline_s": 5.0}, {"deadline_s": 40.0}),
        ({"deadline_s": 100.0, "path_s": 90.0}, {"deadline_s": 100.0, "path_s": 10.0}),
        ({"path_s": 100.0}, {"path_s": 1.0}),
        ({"fan_out": 10}, {"fan_out": 1}),
        ({"attained_s": 1.0}, {"attained_s": 100.0}),
        ({"length_s": 0.1}, {"length_s": 20.0}),
        ({"lead_s": 0.0}, {"lead_s": 60.0}),
        ({"ready_s": 0.0}, {"ready_s": 1.0}),
    ],
)
def test_what_comes_first_of_two_that_differ_in_one_thing(
    sooner: dict[str, float], later: dict[str, float]
) -> None:
    first, second = (Waiting(**values) for values in (sooner, later))  # type: ignore[arg-type]
    assert due_s(first) < due_s(second)
    assert engine_priority(first) < engine_priority(second)


def test_figures_that_make_no_sense_move_nothing_beyond_the_bounds() -> None:
    odd = Waiting(level=99, length_s=math.nan, path_s=-3.0, attained_s=math.inf)
    assert celery_level(odd, now_s=0.0) == 9


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=200))
def test_the_least_served_tenant_is_never_far_behind(wanted: list[str]) -> None:
    """All three always have work; whoever leads least is served."""
    shares, served = Shares(), dict.fromkeys("abc", 0.0)
    for _ in wanted:
        shares = shares.with_waiting(frozenset("abc"))
        tenant = min("abc", key=shares.lead_s)
        shares = shares.with_call(tenant, 10.0)
        served[tenant] += 10.0
    assert max(served.values()) - min(served.values()) <= 10.0


def test_a_tenant_with_twice_the_weight_gets_twice_the_service() -> None:
    shares, served = Shares(), {"a": 0, "b": 0}
    for _ in range(300):
        shares = shares.with_waiting(frozenset("ab"))
        tenant = min("ab", key=shares.lead_s)
        shares = shares.with_call(tenant, 1.0, weight=2.0 if tenant == "a" else 1.0)
        served[tenant] += 1
    assert served == {"a": 200, "b": 100}


def test_a_tenant_that_comes_back_has_saved_nothing_up() -> None:
    shares = Shares()
    for _ in range(100):
        shares = shares.with_waiting(frozenset("a")).with_call("a", 1.0)
    shares = shares.with_waiting(frozenset("ab")).with_call("b", 5.0)
    assert shares.lead_s("b") >= 4.0


def test_tenants_that_lead_no_more_are_forgotten() -> None:
    shares = Shares().with_call("gone", 1.0).with_call("here", 5.0)
    assert set(shares.with_waiting(frozenset({"here"})).times) == set()


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="is no weight of a tenant"):
        Shares().with_call("a", 1.0, weight=weight)
