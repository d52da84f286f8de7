"""Late binding and second times: when a call is moved, and when it is asked twice."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mosaic_routing.hedging import SHARE, Hedges, hedge_after_s, is_worth_hedging, steal
from mosaic_routing.targets import Decision, Target


def target(name: str, *, active: int = 0, speed: float = 40.0, model: str = "llama", **values: Any) -> Target:
    return Target(
        name=name,
        deployment=f"h100/{model}",
        model=model,
        engine=f"simulated:{model}",
        queue=f"mosaic.direct.{name}",
        decode_tokens_s=speed,
        active=active,
        backlog_tokens=200.0 * active,
        **{"slots": 4} | values,
    )


def worth(**values: Any) -> bool:
    plain = {
        "elapsed_s": 10.0,
        "after_s": 8.0,
        "elsewhere": Decision(target="b", latency_s=5.0),
        "here_tokens_s": 40.0,
        "hedges": Hedges(calls=100.0),
    }
    return is_worth_hedging(**plain | values)


def test_an_idle_target_takes_from_the_one_where_a_call_would_wait_longest() -> None:
    fuller = [target("a", active=5), target("b", active=6, speed=20.0), target("c", active=4)]
    found = steal(target("me"), fuller)
    assert found is not None
    assert found.name == "b"


def test_nothing_is_taken_where_nothing_waits() -> None:
    assert steal(target("me"), [target("a", active=4), target("b")]) is None


def test_a_slow_target_leaves_a_call_to_a_fast_one_that_is_done_sooner() -> None:
    assert steal(target("me", speed=10.0), [target("a", active=6, speed=40.0)]) is None


def test_only_calls_of_its_own_model_are_taken() -> None:
    assert steal(target("me"), [target("a", active=9, model="qwen", speed=1.0)]) is None


def test_a_target_that_is_full_or_closed_takes_nothing() -> None:
    fuller = [target("a", active=9, speed=1.0)]
    assert steal(target("me", active=4), fuller) is None
    assert steal(target("me", is_open=True), fuller) is None


def test_calls_at_a_target_that_does_not_move_are_taken_whatever_their_length() -> None:
    for stuck in ({"is_open": True}, {"slots": 0}, {"speed": 0.0}):
        assert steal(target("me", speed=1.0), [target("a", active=6, **stuck)]) is not None


def test_a_call_is_a_straggler_after_the_time_that_its_longest_answer_takes() -> None:
    decision = Decision(target="a", latency_s=3.0)
    assert hedge_after_s(decision, target("a"), output_tokens=100.0, p95=300.0) == 3.0 + 200.0 / 40.0
    assert hedge_after_s(decision, target("a"), output_tokens=100.0, p95=50.0) == 3.0


def test_a_straggler_is_asked_elsewhere_where_it_is_done_clearly_sooner() -> None:
    assert worth()
    assert not worth(elapsed_s=7.0)
    assert not worth(elsewhere=Decision(target="b", latency_s=9.0))
    assert not worth(elsewhere=Decision())


def test_one_that_shows_no_progress_is_asked_wherever_it_can_be() -> None:
    assert worth(elsewhere=Decision(target="b", latency_s=100.0), here_tokens_s=0.0)


@given(st.lists(st.booleans(), max_size=300))
def test_second_times_never_exceed_their_share(wanted: list[bool]) -> None:
    hedges = Hedges()
    for wants in wanted:
        hedges = hedges.with_call()
        if wants and worth(hedges=hedges):
            hedges = hedges.with_hedge()
        assert hedges.hedged <= SHARE * hedges.calls


def test_what_was_not_used_in_quiet_hours_is_no_stock_for_an_outage() -> None:
    hedges = Hedges()
    for _ in range(100_000):
        hedges = hedges.with_call()
    second_times = 0
    while worth(hedges=hedges):
        hedges, second_times = hedges.with_call().with_hedge(), second_times + 1
    assert 0 < second_times <= 2 * SHARE * 1_000
