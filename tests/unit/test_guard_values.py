"""Buckets, breakers and budgets, as values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.errors import (
    CallRevoked,
    CallTimeout,
    ContentRefused,
    ContextTooLong,
    EngineError,
    EngineGone,
    EngineOverloaded,
    EngineRefused,
    OutputInvalid,
    ToolError,
)
from mosaic_routing.guards import BreakerPolicy, BucketLimit, Limited, outcome_of
from mosaic_routing.guards.breakers import Breaker, Outcome
from mosaic_routing.guards.buckets import LONGEST_MS, MAX_PER_MINUTE, UNIT, Bucket
from mosaic_routing.guards.budgets import micros, until_tomorrow_ms

NOW_MS = 1_800_000_000_000
POLICY = BreakerPolicy(window_ms=10_000, min_calls=4, open_ms=1_000, open_max_ms=8_000)


# -- buckets -----------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 100_000),
    st.lists(st.tuples(st.integers(0, 30_000), st.floats(0, 1)), min_size=1, max_size=50),
)
def test_in_no_time_span_more_is_taken_than_the_burst_and_what_came_back(
    per_minute: int, wishes: list[tuple[int, float]]
) -> None:
    limit = BucketLimit(per_minute)
    bucket, now_ms, taken = Bucket.new(limit, NOW_MS), NOW_MS, list[tuple[int, int]]()
    for pause_ms, share in wishes:
        now_ms += pause_ms
        amount = max(1, int(share * limit.size))
        bucket, wait_ms = bucket.take(limit, now_ms, amount)
        if not wait_ms:
            taken.append((now_ms, amount))
    for first, (began_ms, _) in enumerate(taken):
        total = 0
        for at_ms, amount in taken[first:]:
            total += amount
            assert total * UNIT <= limit.full + (at_ms - began_ms) * per_minute


@given(st.integers(1, MAX_PER_MINUTE), st.integers(1, MAX_PER_MINUTE), st.integers(0, 7_200_000))
def test_the_wait_that_is_told_is_the_shortest_that_suffices(
    per_minute: int, amount: int, spent: int
) -> None:
    limit = BucketLimit(per_minute)
    bucket = Bucket.new(limit, NOW_MS).settle(limit, NOW_MS, -spent)
    wait_ms = bucket.wait_ms(limit, NOW_MS, amount)
    assert bucket.take(limit, NOW_MS + wait_ms, amount)[1] == 0
    if wait_ms:
        assert bucket.take(limit, NOW_MS + wait_ms - 1, amount)[1] == 1


def test_asking_often_loses_nothing_of_what_comes_back() -> None:
    limit = BucketLimit(7)
    bucket = Bucket.new(limit, NOW_MS).settle(limit, NOW_MS, -7)
    for passed_ms in range(1, 60_001):
        bucket = bucket.now(limit, NOW_MS + passed_ms)
    assert bucket.level == limit.full


def test_a_call_larger_than_the_bucket_waits_until_it_is_full_and_leaves_a_debt() -> None:
    limit = BucketLimit(60)
    bucket, wait_ms = Bucket.new(limit, NOW_MS).take(limit, NOW_MS, 100)
    assert (wait_ms, bucket.level) == (0, -40 * UNIT)
    assert bucket.take(limit, NOW_MS, 1)[1] == 41_000


def test_what_was_predicted_and_not_used_comes_back_but_never_above_the_size() -> None:
    limit = BucketLimit(100)
    bucket, _ = Bucket.new(limit, NOW_MS).take(limit, NOW_MS, 90)
    assert bucket.settle(limit, NOW_MS, 30).level == 40 * UNIT
    assert bucket.settle(limit, NOW_MS, 3_000).level == limit.full
    assert bucket.settle(limit, NOW_MS, -50).level == -40 * UNIT


@pytest.mark.parametrize(
    ("remaining", "reset_ms", "wait_ms"),
    [
        (1, 5_000, 0),
        (0, 5_000, 5_000),
        (0, -1, 600),  # the refill of one
        (0, 10**15, LONGEST_MS),
        (-1, 5_000, 0),
        (10**9, 5_000, 0),
    ],
)
def test_a_provider_is_believed_within_reason(remaining: int, reset_ms: int, wait_ms: int) -> None:
    limit = BucketLimit(100)
    bucket = Bucket.new(limit, NOW_MS).told(limit, NOW_MS, remaining=remaining, reset_ms=reset_ms)
    assert bucket.wait_ms(limit, NOW_MS, 1) == wait_ms
    assert bucket.level <= limit.full


def test_a_clock_that_goes_back_brings_nothing_and_holds_nobody_for_ever() -> None:
    limit = BucketLimit(60)
    bucket = Bucket.new(limit, NOW_MS).told(limit, NOW_MS, remaining=0, reset_ms=LONGEST_MS)
    earlier_ms = NOW_MS - 600_000
    assert bucket.wait_ms(limit, earlier_ms, 1) == LONGEST_MS
    assert bucket.now(limit, earlier_ms).wait_ms(limit, earlier_ms + LONGEST_MS, 1) == 0


@pytest.mark.parametrize(("rate", "burst"), [(0, 0), (-1, 0), (MAX_PER_MINUTE + 1, 0), (1, 61), (1, -1)])
def test_a_rate_that_is_none_is_refused(rate: int, burst: int) -> None:
    with pytest.raises(ValueError, match=f"{burst if rate == 1 else rate}"):
        BucketLimit(rate, burst)


# -- breakers ----------------------------------------------------------------------------------------------------------


class Line:
    """A breaker and its clock."""

    def __init__(self, policy: BreakerPolicy = POLICY) -> None:
        self.breaker, self.policy, self.now_ms = Breaker(), policy, NOW_MS
        self._calls = 0

    def begin(self) -> tuple[str, int]:
        assert self.breaker.wait_ms(self.now_ms) == 0
        self._calls += 1
        permit = f"call{self._calls}"
        self.breaker = self.breaker.passed(permit, self.now_ms)
        return permit, self.now_ms

    def end(self, call: tuple[str, int], outcome: Outcome, *, pause_ms: int = 0, jitter: int = 0) -> None:
        self.breaker = self.breaker.ended(
            self.policy,
            self.now_ms,
            permit=call[0],
            began_ms=call[1],
            outcome=outcome,
            pause_ms=pause_ms,
            jitter=jitter,
        )

    def call(self, outcome: Outcome, *, takes_ms: int = 10) -> None:
        began = self.begin()
        self.now_ms += takes_ms
        self.end(began, outcome)


def test_a_dead_deployment_costs_one_failed_try_each_time_it_is_open_and_that_ever_longer() -> None:
    line, waits = Line(), []
    for _ in range(6):
        line.call("failed")
        waits.append(line.breaker.wait_ms(line.now_ms))
        line.now_ms += waits[-1]
    assert waits == [1_000, 2_000, 4_000, 8_000, 8_000, 8_000]


def test_calls_that_were_under_way_tell_nothing_new() -> None:
    line = Line()
    calls = [line.begin() for _ in range(20)]
    line.now_ms += 50
    for call in calls:
        line.end(call, "failed")
    assert (line.breaker.openings, line.breaker.wait_ms(line.now_ms)) == (1, 1_000)


def test_a_later_call_that_succeeds_closes_it_at_once_and_an_earlier_one_does_not() -> None:
    line = Line()
    before = line.begin()
    line.now_ms += 1
    failing = line.begin()
    line.now_ms += 1
    after = line.begin()
    line.end(failing, "failed")
    line.end(before, "good")
    assert line.breaker.state == "open"
    line.end(after, "good")
    assert line.breaker.state == "closed"


def test_only_one_probe_at_a_time_and_another_when_it_died() -> None:
    line = Line()
    line.call("failed")
    line.now_ms += 1_000
    permit, began_ms = line.begin()
    assert line.breaker.wait_ms(line.now_ms) == -1
    line.breaker = line.breaker.freed(permit)
    probe = line.begin()
    line.end((permit, began_ms), "failed")  # comes back late
    assert line.breaker.probe == probe[0]
    line.end(probe, "good")
    assert line.breaker.state == "closed"


def test_a_probe_that_tells_nothing_makes_room() -> None:
    line = Line()
    line.call("failed")
    line.now_ms += 1_000
    line.end(line.begin(), "none")
    assert line.breaker.wait_ms(line.now_ms) == 0


def test_one_that_fails_half_of_the_time_opens_until_a_probe_succeeds() -> None:
    line = Line()
    for _ in range(2):
        failing, later = line.begin(), ("later", line.now_ms + 1)
        line.now_ms += 2
        line.end(failing, "failed")
        line.end(later, "good")
    assert line.breaker.state == "closed", "two of four calls tell, when the next fails"
    line.call("failed")
    assert (line.breaker.state, line.breaker.is_unwell) == ("open", True)
    line.end(("bystander", line.now_ms + 1), "good")
    assert line.breaker.state == "open"
    line.now_ms += line.breaker.wait_ms(line.now_ms)
    line.call("good")
    assert (line.breaker.state, line.breaker.bad) == ("closed", 0)


def test_slow_calls_open_it() -> None:
    line = Line(BreakerPolicy(window_ms=10_000, min_calls=4, slow_ms=100, open_ms=1_000))
    calls = [line.begin() for _ in range(5)]
    line.now_ms += 100
    for call in calls[:4]:
        line.end(call, "good")
    assert (line.breaker.state, line.breaker.is_unwell) == ("open", True)
    line.now_ms += 1
    line.end(calls[4], "good")
    assert line.breaker.state == "open", "no success but the probe's closes it"


def test_one_that_was_unwell_and_is_again_opens_for_longer_and_after_a_quiet_window_not() -> None:
    line = Line(BreakerPolicy(window_ms=10_000, min_calls=1, slow_ms=100, open_ms=1_000))
    waits = []
    for pause_ms in (0, 0, 10_000):
        line.now_ms += pause_ms
        line.call("good", takes_ms=100)
        waits.append(line.breaker.wait_ms(line.now_ms))
        line.now_ms += waits[-1]
        line.call("good", takes_ms=1)
    assert waits == [1_000, 2_000, 1_000]


def test_a_pause_that_the_provider_asks_for_is_kept_within_reason() -> None:
    line = Line()
    first, second = line.begin(), line.begin()
    line.end(first, "failed", pause_ms=30_000)
    assert line.breaker.wait_ms(line.now_ms) == 30_000
    line.end(second, "failed", pause_ms=10**15)
    assert line.breaker.wait_ms(line.now_ms) == 3_600_000


def test_jitter_prolongs_by_a_quarter_at_most() -> None:
    line = Line()
    line.end(line.begin(), "failed", jitter=1_000)
    assert line.breaker.wait_ms(line.now_ms) == 1_250


def test_a_node_that_flaps_lets_one_failed_try_through_a_turn() -> None:
    line, failed = Line(), 0
    for turn in range(200):
        is_up = turn % 20 < 10
        if line.breaker.wait_ms(line.now_ms) == 0:
            line.call("good" if is_up else "failed", takes_ms=1)
            failed += not is_up
        line.now_ms += 500
    assert failed <= 10 * 3  # in five seconds: at 0 s, after 1 s, after 2 s more


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "good"),
        (EngineOverloaded("429"), "failed"),
        (EngineGone("died"), "failed"),
        (EngineError("unreachable"), "failed"),
        (CallTimeout("late"), "failed"),
        (TimeoutError(), "failed"),
        (ConnectionRefusedError(), "failed"),
        (ContentRefused("no"), "good"),
        (ContextTooLong("long"), "good"),
        (OutputInvalid("no JSON"), "good"),
        (EngineRefused("bad key"), "none"),
        (Limited("full", by="lease:x", wait_s=1), "none"),
        (ToolError("ours"), "none"),
        (CallRevoked("stop"), "none"),
        (KeyboardInterrupt(), "none"),
    ],
)
def test_what_an_error_tells_of_the_deployment(error: BaseException | None, outcome: str) -> None:
    assert outcome_of(error) == outcome


@pytest.mark.parametrize(
    ("field", "value"), [("window_ms", 0), ("min_calls", 0), ("open_max_ms", 10), ("slow_ms", -1)]
)
def test_a_policy_that_is_none_is_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} of {value}"):
        BreakerPolicy(**{field: value})


# -- budgets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dollars", [-0.01, math.nan, math.inf, -math.inf, 1e10, 1e300])
def test_an_amount_that_is_none_is_refused_by_name(dollars: float) -> None:
    with pytest.raises(ValueError, match=r"the budget of tenant 'acme' is .* dollars; give a number from 0"):
        micros(dollars, "the budget of tenant 'acme'")


@pytest.mark.parametrize(
    ("dollars", "amount"), [(0, 0), (0.1, 100_000), (1e-7, 1), (0.3, 300_000), (2.5, 2_500_000)]
)
def test_amounts_are_whole_micro_dollars_rounded_up(dollars: float, amount: int) -> None:
    assert micros(dollars, "a cost") == amount


def test_the_day_is_that_of_utc() -> None:
    assert until_tomorrow_ms(86_400_000 * 20_000) == 86_400_000
    assert until_tomorrow_ms(86_400_000 * 20_000 - 1) == 1
