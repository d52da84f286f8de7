"""Predicted lengths: learned by node, model and prompt; merged from several processes in any order."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_routing.lengths import HALF_LIFE_S, PRIOR_TOKENS, Histogram, Lengths

histograms = st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5)), max_size=20).map(
    lambda seen: _histogram(seen)
)


def _histogram(seen: list[tuple[float, float]]) -> Histogram:
    found = Histogram()
    for tokens, at_s in seen:
        found = found.with_length(tokens, at_s)
    return found


def learn(lengths: Lengths, node: str, tokens: float, *, times: int, prompt: float = 100.0) -> None:
    for _ in range(times):
        lengths.observe(node, "llama", input_tokens=prompt, output_tokens=tokens, now_s=0.0)


def assert_alike(one: Histogram, other: Histogram) -> None:
    assert one.at_s == other.at_s
    assert one.tokens == pytest.approx(other.tokens, rel=1e-6, abs=1e5 * 0.3)
    for bucket in one.counts.keys() | other.counts.keys():
        # Counts below a hundredth are dropped on the way.
        assert one.counts.get(bucket, 0.0) == pytest.approx(other.counts.get(bucket, 0.0), rel=1e-6, abs=0.03)


@given(histograms, histograms, histograms)
def test_merging_is_associative_and_has_no_order(one: Histogram, two: Histogram, three: Histogram) -> None:
    assert_alike(one.merged(two).merged(three), one.merged(two.merged(three)))
    assert_alike(one.merged(two), two.merged(one))


def test_two_processes_together_predict_what_one_that_saw_all_does() -> None:
    both, one, two = Lengths(), Lengths(), Lengths()
    for number in range(40):
        for lengths in (both, (one, two)[number % 2]):
            learn(lengths, "summary", 50.0 + number, times=1)
    together, alone = (
        lengths.answer("summary", "llama", input_tokens=100.0) for lengths in (one.merged(two), both)
    )
    assert together == alone


def test_what_a_process_learned_can_be_sent() -> None:
    lengths = Lengths()
    learn(lengths, "chat", 30.0, times=20)
    sent = msgspec.msgpack.encode(lengths.histograms)
    received = Lengths(msgspec.msgpack.decode(sent, type=dict[str, Histogram]))
    assert received.answer("chat", "llama", input_tokens=100.0) == lengths.answer(
        "chat", "llama", input_tokens=100.0
    )


def test_nothing_known_is_the_prior() -> None:
    length = Lengths().answer("new", "llama", input_tokens=10.0)
    assert length.mean == PRIOR_TOKENS
    assert length.counts == 0.0
    assert length.p50 == pytest.approx(PRIOR_TOKENS, rel=0.1)


def test_a_new_node_is_predicted_like_its_model_and_soon_by_what_it_does() -> None:
    lengths = Lengths()
    learn(lengths, "old", 1000.0, times=200)
    assert lengths.answer("new", "llama", input_tokens=100.0).mean == pytest.approx(1000.0, rel=0.1)
    learn(lengths, "new", 20.0, times=64)
    assert lengths.answer("new", "llama", input_tokens=100.0).mean < 150.0


def test_answers_to_prompts_of_different_length_are_told_apart() -> None:
    lengths = Lengths()
    for _ in range(50):
        learn(lengths, "chat", 30.0, times=1, prompt=100.0)
        learn(lengths, "chat", 400.0, times=1, prompt=1000.0)
    assert lengths.answer("chat", "llama", input_tokens=100.0).mean < 80.0
    assert lengths.answer("chat", "llama", input_tokens=1000.0).mean > 300.0


def test_quantiles_of_a_known_node_are_those_of_its_answers() -> None:
    lengths, chance = Lengths(), random.Random(4)
    for _ in range(3000):
        learn(lengths, "chat", chance.lognormvariate(5.0, 0.8), times=1)
    found = lengths.answer("chat", "llama", input_tokens=100.0)
    assert found.p50 == pytest.approx(math.exp(5.0), rel=0.15)
    assert found.p95 == pytest.approx(math.exp(5.0 + 1.645 * 0.8), rel=0.15)


def test_old_answers_fade() -> None:
    lengths = Lengths()
    learn(lengths, "chat", 1000.0, times=100)
    for _ in range(32):
        lengths.observe("chat", "llama", input_tokens=100.0, output_tokens=10.0, now_s=10 * HALF_LIFE_S)
    assert lengths.answer("chat", "llama", input_tokens=100.0).mean < 100.0


def test_a_length_is_worth_half_of_one_that_came_a_half_life_later() -> None:
    histogram = Histogram().with_length(10.0, 0.0).with_length(1000.0, HALF_LIFE_S)
    first, last = (histogram.counts[bucket] for bucket in sorted(histogram.counts))
    assert last == pytest.approx(2 * first)


@given(st.floats(0, 1e6))
def test_fading_changes_no_mean(now_s: float) -> None:
    histogram = _histogram([(10.0, 0.0), (30.0, 0.0)] * 50)
    faded = histogram.faded(now_s)
    if faded.weight > 1.0:
        assert faded.tokens / faded.weight == pytest.approx(20.0)


def test_rare_lengths_that_are_dropped_change_no_mean() -> None:
    histogram = _histogram([(10.0, 0.0)] * 8 + [(100.0 * 2**step, 0.0) for step in range(8)])
    faded = histogram.faded(7 * HALF_LIFE_S)
    assert len(faded.counts) == 1
    assert faded.tokens / faded.weight == pytest.approx(histogram.tokens / histogram.weight)


def test_a_clock_that_goes_back_loses_nothing() -> None:
    histogram = Histogram(at_s=1000.0).with_length(10.0, 1000.0).with_length(20.0, 400.0)
    assert histogram.at_s == 1000.0
    assert histogram.weight == pytest.approx(2.0, rel=0.1)


def test_what_was_not_seen_for_long_is_pruned() -> None:
    lengths = Lengths()
    learn(lengths, "chat", 10.0, times=3)
    assert lengths.pruned(0.0).histograms
    assert not lengths.pruned(20 * HALF_LIFE_S).histograms


def test_prompts_are_predicted_before_they_are_written() -> None:
    lengths = Lengths()
    learn(lengths, "chat", 10.0, times=100, prompt=5000.0)
    assert lengths.prompt("chat").mean == pytest.approx(5000.0, rel=0.1)


@pytest.mark.parametrize("tokens", [0.0, -5.0, math.inf, math.nan])
def test_lengths_that_make_no_sense_do_not_spoil_a_prediction(tokens: float) -> None:
    lengths = Lengths()
    learn(lengths, "chat", 100.0, times=50)
    learn(lengths, "chat", tokens, times=1)
    assert 0.0 < lengths.answer("chat", "llama", input_tokens=100.0).mean < 200.0
