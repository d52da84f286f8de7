"""When a mixture stops asking."""

from __future__ import annotations

import math
import random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixture_made import NUMBER, profiles, said, viewed

from mosaic_tasks.mixtures.beliefs import agreeing, view_of
from mosaic_tasks.mixtures.gates import beats, need, verdict
from mosaic_tasks.mixtures.values import Answer, Candidate, Gate, GateKind, Profile, View

KINDS: tuple[GateKind, ...] = get_args(GateKind)
ANSWERS = st.lists(st.sampled_from(["1", "2", "3", None]), max_size=9)
GATES = st.builds(
    Gate,
    kind=st.sampled_from(KINDS),
    confidence=st.none() | st.floats(0.0, 1.0),
    window=st.integers(1, 4),
    margin=st.integers(0, 4),
    quorum=st.floats(0.0, 1.0) | st.integers(1, 5).map(float),
    worth_usd=st.floats(0.0, 1.0),
)


def passes(gate: Gate, view: View) -> bool:
    return verdict(gate, view).passed


class TestBeats:
    @pytest.mark.parametrize(("one", "other"), [(0, 0), (1, 0), (3, 1), (1, 3), (12, 5), (40, 40)])
    def test_of_whole_votes_it_is_the_exact_sum(self, one: int, other: int) -> None:
        throws = one + other + 1
        exact = sum(math.comb(throws, n) for n in range(one + 1)) / 2**throws

        assert beats(one, other) == pytest.approx(exact, abs=1e-12)

    def test_of_fractions_it_is_the_integral(self) -> None:
        assert beats(2.5, 0.7) == pytest.approx(_upper_half(3.5, 1.7), abs=1e-6)

    @given(st.floats(0, 1e4), st.floats(0, 1e4))
    def test_one_of_two_beats_the_other(self, one: float, other: float) -> None:
        assert beats(one, other) + beats(other, one) == pytest.approx(1.0)
        assert -1e-9 <= beats(one, other) <= 1.0 + 1e-9

    @given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 10))
    def test_more_votes_beat_more_often(self, one: float, other: float, more: float) -> None:
        assert beats(one + more, other) >= beats(one, other) - 1e-9


class TestProbability:
    def test_it_is_the_default_and_goes_by_what_is_believed_of_the_leader(self) -> None:
        view = viewed("7", "7", "9")
        leader = view.candidates[0]

        found = verdict(Gate(), view)

        assert (Gate().kind, found.probability) == ("probability", leader.probability)
        assert found.why == f"'7' is right with probability {leader.probability:.3f}, 0.95 is enough"

    def test_it_passes_from_its_confidence_on(self) -> None:
        view = viewed("7", "7")
        (leader,) = view.candidates

        assert passes(Gate(confidence=leader.probability), view)
        assert not passes(Gate(confidence=math.nextafter(leader.probability, 1.0)), view)

    def test_it_goes_by_the_calibrated_probability(self) -> None:
        assert passes(Gate(), viewed("7", calibration=lambda _: 0.96))
        assert not passes(Gate(), viewed("7", "7", "7", calibration=lambda _: 0.94))

    def test_without_a_confidence_all_are_asked(self) -> None:
        assert not passes(Gate(confidence=None), viewed("7", "7", "7", "7"))


class TestPosterior:
    def test_agreement_passes_and_discord_does_not(self) -> None:
        gate = Gate("posterior", confidence=0.9)

        assert passes(gate, viewed("7", "7", "7"))
        assert not passes(gate, viewed("7", "9", "7"))

    def test_better_experts_pass_it_sooner(self) -> None:
        gate = Gate("posterior", confidence=0.85)

        assert passes(gate, viewed("7", "7", quality=0.95))
        assert not passes(gate, viewed("7", "7", quality=0.5))

    def test_the_verdict_tells_the_probability_and_why(self) -> None:
        found = verdict(Gate("posterior", confidence=0.9), viewed("7", "7", "7"))

        assert found.probability > 0.9
        assert "'7' stays ahead with probability 0.9" in found.why

    def test_without_a_confidence_all_are_asked(self) -> None:
        assert not passes(Gate("posterior", confidence=None), viewed("7", "7", "7", "7"))

    def test_it_goes_by_its_own_probability_alone(self) -> None:
        view = viewed(*["7"] * 6, quality=0.6)

        assert passes(Gate("probability"), view)
        assert not passes(Gate("posterior"), view)


class TestDirichlet:
    def test_with_two_answers_it_is_the_posterior(self) -> None:
        view = viewed("7", "7", "9")

        assert verdict(Gate(kind="dirichlet"), view).probability == pytest.approx(
            verdict(Gate(kind="posterior"), view).probability
        )

    def test_a_third_answer_makes_it_less_certain_than_the_posterior(self) -> None:
        view = viewed("7", "7", "9", "8")

        assert (
            verdict(Gate(kind="dirichlet"), view).probability
            < verdict(Gate(kind="posterior"), view).probability
        )

    def test_it_is_hardly_less_than_what_sampling_finds_and_never_more(self) -> None:
        view = viewed("7", "7", "7", "9", "8", "8", planned=9)
        chance = random.Random(1)
        sampled = sum(_leads(view, chance) for _ in range(20_000)) / 20_000

        found = verdict(Gate(kind="dirichlet"), view).probability

        assert sampled - 0.1 < found < sampled + 0.01


class TestUnanimous:
    def test_the_last_of_the_window_decide(self) -> None:
        gate = Gate(kind="unanimous", window=2, confidence=None)

        assert passes(gate, viewed("9", "7", "7"))
        assert not passes(gate, viewed("7", "9", "7"))

    def test_one_that_does_not_count_breaks_it(self) -> None:
        assert not passes(Gate(kind="unanimous", window=2, confidence=None), viewed("7", None, "7"))

    def test_fewer_than_the_window_are_not_enough(self) -> None:
        assert not passes(Gate(kind="unanimous", window=3, confidence=None), viewed("7", "7"))


class TestMarginAndQuorum:
    def test_margin_counts_votes_before_the_second(self) -> None:
        gate = Gate(kind="margin", margin=2, confidence=None)

        assert passes(gate, viewed("7", "9", "7", "7"))
        assert not passes(gate, viewed("7", "9", "7"))

    def test_quorum_counts_votes(self) -> None:
        gate = Gate(kind="quorum", quorum=3, confidence=None)

        assert passes(gate, viewed("7", "9", "7", "7"))
        assert not passes(gate, viewed("7", "9", "7"))

    def test_below_one_a_quorum_is_a_share_of_all_that_are_planned(self) -> None:
        gate = Gate(kind="quorum", quorum=0.8, confidence=None)

        assert passes(gate, viewed("7", "7", "7", "7", planned=5))
        assert not passes(gate, viewed("7", "7", "7", planned=5))

    def test_a_probability_that_is_enough_by_itself_passes_where_it_is_set(self) -> None:
        view = viewed("7", "7", quality=0.95)

        assert passes(Gate(kind="margin", margin=5, confidence=0.95), view)
        assert not passes(Gate(kind="margin", margin=5, confidence=None), view)


class TestCost:
    def test_it_passes_once_a_call_costs_more_than_it_can_gain(self) -> None:
        gate = Gate(kind="cost", worth_usd=0.01, confidence=None)

        assert passes(gate, viewed("7", upcoming=Profile(name="x", quality=0.8, usd=0.01)))
        assert not passes(gate, viewed("7", upcoming=Profile(name="x", quality=0.8, usd=0.0001)))

    def test_waiting_costs_too(self) -> None:
        view = viewed("7", upcoming=Profile(name="x", quality=0.8, latency_s=10.0))

        assert passes(Gate(kind="cost", worth_usd=0.01, second_usd=0.001, confidence=None), view)
        assert not passes(Gate(kind="cost", worth_usd=0.01, second_usd=0.0, confidence=None), view)


class TestAll:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("answers", [(), (None,), (None, None, None, None, None)])
    def test_without_an_answer_none_passes(self, kind: GateKind, answers: tuple[str | None, ...]) -> None:
        assert not passes(Gate(kind=kind, confidence=0.0, margin=0), viewed(*answers))

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
    def test_a_tie_passes_none(self, kind: GateKind) -> None:
        gate = Gate(kind=kind, confidence=0.0, margin=0, quorum=1, window=1)

        found = verdict(gate, viewed("7", "9"))

        assert not found.passed
        assert "not ahead" in found.why

    @given(ANSWERS)
    def test_where_all_are_asked_none_stops(self, answers: list[str | None]) -> None:
        assert not passes(Gate(kind="none", confidence=0.0), viewed(*answers, planned=9))

    @given(GATES, ANSWERS, st.floats(0.05, 0.99))
    def test_a_passed_gate_names_the_answer_with_the_most_weighted_votes(
        self, gate: Gate, answers: list[str | None], quality: float
    ) -> None:
        view = viewed(*answers, quality=quality, planned=9)

        if passes(gate, view):
            assert view.leader is not None
            assert all(one.weight < view.leader.weight for one in view.candidates[1:])

    @given(GATES, ANSWERS, st.randoms(use_true_random=False))
    def test_only_the_window_goes_by_the_order(
        self, gate: Gate, answers: list[str | None], chance: random.Random
    ) -> None:
        if gate.kind == "unanimous":
            return
        heard, known = said(*answers), profiles(9, quality=0.8)
        found = [
            verdict(gate, view_of(one, known, NUMBER, planned=9))
            for one in (heard, chance.sample(heard, len(heard)))
        ]

        assert found[0].passed == found[1].passed

    @given(GATES, ANSWERS)
    def test_one_more_that_agrees_closes_no_gate(self, gate: Gate, answers: list[str | None]) -> None:
        view = viewed(*answers, planned=9)

        assert not passes(gate, view) or passes(gate, agreeing(view))


class TestNeed:
    def test_a_passed_gate_needs_none(self) -> None:
        assert need(Gate(confidence=0.9), viewed("7", "7", "7")) == 0

    def test_it_counts_what_is_missing(self) -> None:
        assert need(Gate(kind="quorum", quorum=4, confidence=None), viewed("7", "7")) == 2
        assert need(Gate(kind="margin", margin=2, confidence=None), viewed("7", "9")) == 2
        assert need(Gate(kind="unanimous", window=3, confidence=None), viewed("7", "7", None)) == 3 - 1

    def test_before_the_first_answer_it_counts_from_the_beginning(self) -> None:
        assert need(Gate(kind="quorum", quorum=3, confidence=None), viewed()) == 3
        assert need(Gate(confidence=0.95), viewed(upcoming=Profile(name="x", quality=0.8))) == 3

    def test_where_nothing_can_pass_all_that_are_left_are_needed(self) -> None:
        assert need(Gate(kind="none"), viewed("7", planned=5)) == 4
        assert need(Gate(kind="quorum", quorum=9, confidence=None), viewed("7", planned=5)) == 4

    def test_where_none_can_come_none_is_needed(self) -> None:
        assert need(Gate(kind="none"), viewed("7", "9", planned=2)) == 0

    @given(GATES, ANSWERS, st.integers(0, 9))
    def test_so_many_that_agree_pass_and_fewer_do_not(
        self, gate: Gate, answers: list[str | None], planned: int
    ) -> None:
        view = viewed(*answers, planned=planned)
        left = max(planned - len(answers), 0)

        needed = need(gate, view)

        assert 0 <= needed <= left
        for more in range(left):
            assert more >= needed or not passes(gate, view)
            view = agreeing(view)


def _upper_half(a: float, b: float) -> float:
    """Beta(a, b) above 1/2, by the midpoint rule."""
    steps = 100_000
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    places = (0.5 + (n + 0.5) / (2 * steps) for n in range(steps))
    return front * sum(x ** (a - 1) * (1 - x) ** (b - 1) for x in places) / (2 * steps)


def _leads(view: View, chance: random.Random) -> bool:
    """Whether the leader's share is the greatest in one draw from the Dirichlet distribution."""
    draws = [chance.gammavariate(one.weight + 1, 1.0) for one in view.candidates]
    return draws[0] == max(draws)


def test_the_heaviest_leads_though_another_has_more_votes() -> None:
    """Two weak votes against a strong one: the gate of votes is not ahead in weight, so it does not pass."""
    strong = Candidate(Answer("7", "7"), (0,), 3.0, 0.9)
    weak = Candidate(Answer("9", "9"), (1, 2), 1.0, 0.05)
    view = View(candidates=(strong, weak), order=("7", "9", "9"), planned=3)

    assert not passes(Gate(kind="margin", margin=1, confidence=None), view)
