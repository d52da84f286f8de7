"""What is given up under load: in the declared order, and not to and fro."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mosaic_routing.degrading import CALM_S, HOLD_S, Degrading, Kind, Step, advanced, degraded, fewer_experts

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "routing.md").read_text("utf-8")
STEPS = (
    Step(kind="cheaper_model", load=1.0, model="gemma-2-2b"),
    Step(kind="fewer_experts", load=1.5, share=0.5),
    Step(kind="shorter_output", load=2.0, share=0.25),
)


def after(state: Degrading, load: float, *, now_s: float) -> Degrading:
    return advanced(state, load, steps=STEPS, now_s=now_s)


def test_steps_begin_in_order_once_the_load_has_lasted() -> None:
    state, levels = Degrading(), []
    for now_s in range(8):
        state = after(state, 3.0, now_s=float(now_s) * HOLD_S)
        levels.append(state.level)
    assert levels == [0, 1, 1, 2, 2, 3, 3, 3]


def test_a_burst_changes_nothing() -> None:
    state = after(after(Degrading(), 3.0, now_s=0.0), 0.1, now_s=HOLD_S / 2)
    assert after(state, 3.0, now_s=1.5 * HOLD_S).level == 0


def test_a_step_ends_only_once_the_load_was_clearly_lower_for_long() -> None:
    state = Degrading(level=1)
    assert after(after(state, 0.9, now_s=0.0), 0.9, now_s=10 * CALM_S).level == 1
    low = after(state, 0.5, now_s=0.0)
    assert after(low, 0.5, now_s=CALM_S / 2).level == 1
    assert after(low, 0.5, now_s=CALM_S).level == 0


def test_time_of_high_load_does_not_count_for_low_load() -> None:
    high = after(Degrading(level=1), 3.0, now_s=0.0)
    turned = after(high, 0.1, now_s=HOLD_S / 2)
    assert after(turned, 0.1, now_s=CALM_S).level == 1


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 30)), max_size=60))
def test_one_step_at_a_time_and_never_beyond_the_list(looks: list[tuple[float, float]]) -> None:
    state, now_s = Degrading(), 0.0
    for load, passed_s in looks:
        now_s += passed_s
        new = after(state, load, now_s=now_s)
        assert abs(new.level - state.level) <= 1
        assert 0 <= new.level <= len(STEPS)
        state = new


def test_a_shorter_list_of_steps_takes_effect_at_once() -> None:
    assert advanced(Degrading(level=3), 5.0, steps=STEPS[:1], now_s=0.0).level == 1


def test_each_step_says_what_it_changed() -> None:
    changed = degraded(
        Degrading(level=3), STEPS, model="llama-3.1-8b", experts=5, output_tokens=1000, load=2.1
    )
    assert (changed.model, changed.experts, changed.output_tokens) == ("gemma-2-2b", 2, 250)
    assert changed.sentences == (
        "under load (2.10 of what the targets can take): asked gemma-2-2b instead of llama-3.1-8b",
        "under load (2.10 of what the targets can take): asked 2 instead of 5 experts",
        "under load (2.10 of what the targets can take): limited the answer to 250 instead of 1000 tokens",
    )


def test_a_step_that_changes_nothing_says_nothing() -> None:
    changed = degraded(Degrading(level=2), STEPS, model="gemma-2-2b", experts=1, load=2.0)
    assert changed.sentences == ()
    assert changed.experts == 1


def test_without_load_nothing_is_given_up() -> None:
    assert degraded(Degrading(), STEPS, model="llama-3.1-8b", load=0.2).model == "llama-3.1-8b"


def test_a_step_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="names no model"):
        Step(kind="cheaper_model")
    with pytest.raises(ValueError, match=r"1\.5 is no share for the step 'shorter_output'"):
        Step(kind="shorter_output", share=1.5)


@pytest.mark.parametrize(
    ("level", "experts", "least", "asked"),
    [(1, 6, 2, 6), (2, 6, 2, 3), (3, 6, 2, 3), (2, 6, 5, 5), (2, 1, 1, 1), (2, 2, 3, 2)],
)
def test_a_mixture_asks_fewer_experts_and_no_fewer_than_its_least(
    level: int, experts: int, least: int, asked: int
) -> None:
    state = Degrading(level=level)
    changed = fewer_experts(state, STEPS, experts=experts, least=least, load=1.7)
    assert changed.experts == asked
    told = f"under load (1.70 of what the targets can take): asked {asked} instead of {experts} experts"
    assert changed.sentences == ((told,) if asked < experts else ())


def test_the_guide_s_example_is_one_and_has_every_kind() -> None:
    (block,) = re.findall(r"^```yaml\n(degrading:.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    steps = msgspec.convert(yaml.safe_load(block)["degrading"], tuple[Step, ...])
    assert sorted(step.kind for step in steps) == sorted(get_args(Kind))
    assert [step.load for step in steps] == sorted(step.load for step in steps)
