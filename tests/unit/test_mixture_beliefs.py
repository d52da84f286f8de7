"""What is believed of the answers of a mixture."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixture_made import NUMBER, profiles, said, viewed

from mosaic_tasks.mixtures import beliefs
from mosaic_tasks.mixtures.agreement import Similarity
from mosaic_tasks.mixtures.beliefs import (
    Calibration,
    accuracy,
    agreeing,
    families_of,
    features,
    stacked,
    together,
    view_of,
    vote,
)
from mosaic_tasks.mixtures.values import AnswerForm, Profile, View

ANSWERS = st.lists(st.sampled_from(["1", "2", "3", None]), max_size=9)
SHARES = st.floats(0.0, 1.0)


@st.composite
def experts(draw: st.DrawFn) -> dict[str, Profile]:
    """Profiles of ten experts of any quality, some of one model, some of which errors were judged in pairs."""
    return {f"e{n}": draw(_profile(f"e{n}")) for n in range(10)}


def _profile(name: str) -> st.SearchStrategy[Profile]:
    pairs = st.integers(1, 50).flatmap(lambda n: st.tuples(st.integers(0, n).map(float), st.just(float(n))))
    return st.builds(
        Profile,
        name=st.just(name),
        model=st.sampled_from(["", "", "m", "n"]),
        quality=SHARES,
        right=st.floats(0, 500),
        wrong=st.floats(0, 500),
        agrees=st.dictionaries(st.sampled_from([f"e{n}" for n in range(10)]), pairs, max_size=4),
    )


class TestView:
    def test_nothing_heard_is_nothing_known(self) -> None:
        view = viewed()

        assert view.leader is None
        assert view.order == ()

    def test_texts_are_compared_by_the_model_that_the_form_names(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def embedded(model: str) -> Similarity:
            assert model == "small"
            return lambda texts, _least: [[1.0] * len(texts) for _ in texts]

        monkeypatch.setattr(beliefs, "embedded", embedded)
        form = AnswerForm("text", embedding="small")

        assert view_of(said("It rains.", "Wet weather."), {}, form, planned=2).candidates[0].votes == 2
        assert view_of(said("It rains.", "Wet weather."), {}, AnswerForm("text"), planned=2).candidates[1:]

    def test_a_calibration_sees_what_log_probabilities_tell(self) -> None:
        """Of the leading answer, the mean over the calls that have it."""
        told = [{"logprob_mean": -0.2}, {"logprob_mean": -0.4, "entropy": 1.0}, {"logprob_mean": -9.0}]
        heard = [
            msgspec.structs.replace(one, signals=signals)
            for one, signals in zip(said("7", "7", "9"), told, strict=True)
        ]
        view = view_of(heard, profiles(3, quality=0.8), NUMBER, planned=3)

        known = features(view.candidates, 3)

        assert known["logprob_mean"] == pytest.approx(-0.3)
        assert known["entropy"] == 1.0

    def test_all_that_do_not_count_leave_no_candidate(self) -> None:
        view = viewed(None, None)

        assert view.candidates == ()
        assert view.order == ("", "")

    def test_those_who_say_the_same_are_one_candidate_of_which_the_likeliest_is_first(self) -> None:
        view = viewed("7", "9", None, "9")

        assert [(one.answer.key, one.indices) for one in view.candidates] == [("9", (1, 3)), ("7", (0,))]
        assert view.order == ("7", "9", "", "9")

    def test_a_single_answer_is_as_likely_right_as_its_expert(self) -> None:
        (candidate,) = viewed("7", quality=0.8).candidates

        assert candidate.probability == pytest.approx(0.8)

    def test_two_that_agree_are_likelier_right_than_either(self) -> None:
        (candidate,) = viewed("7", "7", quality=0.8).candidates

        assert 0.9 < candidate.probability < 0.97

    def test_a_good_expert_outweighs_two_bad_ones(self) -> None:
        known = profiles(3, quality=0.3) | {"e0": Profile(name="e0", quality=0.97)}

        view = view_of(said("7", "9", "9"), known, NUMBER, planned=3)

        assert view.leader is not None
        assert view.leader.answer.key == "7"

    def test_confidence_and_support_of_a_call_shift_what_it_weighs(self) -> None:
        plain, sure, refused = (
            view_of(said("7", **given), profiles(1), NUMBER, planned=1).candidates[0].probability
            for given in ({}, {"confidence": 0.99}, {"support": 0.0})
        )

        assert refused < plain < sure

    def test_where_few_answers_are_wrong_agreement_tells_less(self) -> None:
        two = AnswerForm(form="choice", choices=("yes", "no"))

        open_, closed = (
            view_of(said("A", "A"), profiles(2), form, planned=2).candidates[0].probability
            for form in (NUMBER, two)
        )

        assert closed < open_

    def test_numbers_within_the_tolerance_and_texts_alike_say_the_same(self) -> None:
        near = AnswerForm(form="number", tolerance=0.01)

        assert len(view_of(said("100", "100.5"), profiles(2), near, planned=2).candidates) == 1
        assert len(view_of(said("100", "100.5"), profiles(2), NUMBER, planned=2).candidates) == 2

    def test_the_order_names_the_answer_that_stands_for_its_group(self) -> None:
        near = AnswerForm(form="number", tolerance=0.01)

        view = view_of(said("100", "100.5", "100"), profiles(3), near, planned=3)

        assert view.order == (view.candidates[0].answer.key,) * 3

    @pytest.mark.parametrize(
        ("answers", "least", "most"),
        [
            ("7", 0.84, 0.88),
            ("77", 0.95, 0.98),
            ("777", 0.975, 0.99),
            ("779", 0.78, 0.88),
            ("78", 0.45, 0.55),
        ],
    )
    def test_probabilities_are_near_to_what_twelve_models_showed(
        self, answers: str, least: float, most: float
    ) -> None:
        """Shares of right leaders on the recorded GSM8K answers: 0.86, 0.97, 0.98, 0.84, 0.50."""
        leader = viewed(*answers, quality=0.86).leader

        assert leader is not None
        assert least < leader.probability < most

    def test_what_comes_next_is_told_by_its_profile(self) -> None:
        view = viewed("7", upcoming=Profile(name="e5", quality=0.9, usd=0.02, latency_s=3.0))

        assert (view.next_usd, view.next_s, view.next_quality) == (0.02, 3.0, pytest.approx(0.9))

    @given(ANSWERS, experts())
    def test_one_more_that_agrees_never_lowers_the_leader(
        self, answers: list[str | None], known: dict[str, Profile]
    ) -> None:
        before = view_of(said(*answers), known, NUMBER, planned=10).leader
        if before is None:
            return
        after = view_of(said(*answers, before.answer.key), known, NUMBER, planned=10).leader

        assert after is not None
        assert after.answer == before.answer
        assert after.weight >= before.weight - 1e-9
        assert after.probability >= before.probability - 1e-9

    @given(ANSWERS, experts(), st.randoms(use_true_random=False))
    def test_the_order_plays_no_part(
        self, answers: list[str | None], known: dict[str, Profile], chance: random.Random
    ) -> None:
        heard = said(*answers)
        shuffled = chance.sample(heard, len(heard))

        assert _said_of(view_of(shuffled, known, NUMBER, planned=10)) == _said_of(
            view_of(heard, known, NUMBER, planned=10)
        )

    @given(ANSWERS, experts())
    def test_probabilities_are_of_one_whole_and_fall_with_the_weight(
        self, answers: list[str | None], known: dict[str, Profile]
    ) -> None:
        found = view_of(said(*answers), known, NUMBER, planned=10).candidates

        assert sum(one.probability for one in found) <= 1.0 + 1e-9
        assert [one.weight for one in found] == sorted((one.weight for one in found), reverse=True)
        assert [one.probability for one in found] == sorted((one.probability for one in found), reverse=True)


class TestCalibration:
    def test_the_leader_gets_what_the_calibration_says(self) -> None:
        seen: list[dict[str, float]] = []

        view = viewed("7", "7", "9", calibration=_noting(seen, 0.6))

        assert view.candidates[0].probability == 0.6
        assert seen[0]["votes"] == 2.0
        assert seen[0]["share"] == pytest.approx(2 / 3)

    @given(ANSWERS, SHARES)
    def test_no_other_overtakes_the_leader(self, answers: list[str | None], probability: float) -> None:
        found = viewed(*answers, planned=9, calibration=lambda _: probability).candidates

        assert sum(one.probability for one in found) <= 1.0 + 1e-9
        assert all(one.probability <= found[0].probability + 1e-9 for one in found)


class TestExperts:
    def test_outcomes_outweigh_the_measured_quality_in_the_end(self) -> None:
        assert accuracy(Profile(name="a", quality=0.9)) == pytest.approx(0.9)
        assert accuracy(Profile(name="a", quality=0.9, wrong=5)) < 0.8
        assert accuracy(Profile(name="a", quality=0.9, right=300, wrong=700)) == pytest.approx(0.31, abs=0.01)

    def test_nobody_is_believed_without_doubt(self) -> None:
        assert accuracy(Profile(name="a", quality=1.0, right=1e6)) < 1.0
        assert accuracy(Profile(name="a", quality=0.0, wrong=1e6)) > 0.0

    def test_who_is_right_half_of_the_time_has_one_vote(self) -> None:
        assert vote(0.5) == pytest.approx(1.0)
        assert vote(0.9) > 1.0 > vote(0.4) > vote(0.01) == 0.0

    def test_where_only_one_answer_is_wrong_who_is_right_half_of_the_time_tells_nothing(self) -> None:
        assert vote(0.5, coincidence=1.0) == 0.0

    def test_errors_that_were_seen_together_go_together(self) -> None:
        plain = Profile(name="b", quality=0.8)
        like = Profile(name="a", quality=0.8, agrees={"b": (195.0, 1000.0)})
        unlike = Profile(name="a", quality=0.8, agrees={"b": (40.0, 1000.0)})

        assert (
            together(unlike, plain) < 0.05 < together(Profile(name="a"), plain) < 0.9 < together(like, plain)
        )

    def test_who_is_told_of_the_pair_does_not_matter(self) -> None:
        one, other = Profile(name="a", agrees={"b": (90.0, 300.0)}), Profile(name="b")

        assert together(one, other) == together(other, one)

    def test_experts_of_one_model_and_those_who_err_together_are_families(self) -> None:
        known = {
            "a": Profile(name="a", model="m", quality=0.8),
            "b": Profile(name="b", model="m", quality=0.8),
            "c": Profile(name="c", quality=0.8, agrees={"b": (195.0, 1000.0)}),
            "d": Profile(name="d", quality=0.8, agrees={"b": (50.0, 1000.0)}),
        }

        family = families_of(known)

        assert family["a"] == family["b"] == family["c"] != family["d"]

    def test_a_family_that_agrees_weighs_less_than_strangers_do(self) -> None:
        strangers = view_of(said("7", "7", "7"), profiles(3), NUMBER, planned=3).leader
        kin = view_of(said("7", "7", "7"), profiles(3, model="m"), NUMBER, planned=3).leader

        assert strangers is not None
        assert kin is not None
        assert kin.weight < strangers.weight

    def test_samples_of_one_expert_are_a_family(self) -> None:
        once = [msgspec.structs.replace(one, expert="e0") for one in said("7", "7", "7")]

        same = view_of(once, profiles(1), NUMBER, planned=3).leader
        others = view_of(said("7", "7", "7"), profiles(3), NUMBER, planned=3).leader

        assert same is not None
        assert others is not None
        assert same.weight < others.weight

    @given(st.lists(st.floats(0, 10), max_size=8), st.floats(0, 10), st.floats(0, 5))
    def test_one_more_value_never_takes_from_the_whole(
        self, values: list[float], more: float, repeated: float
    ) -> None:
        assert stacked([*values, more], repeated) >= stacked(values, repeated) - 1e-9


class TestAgreeing:
    def test_one_more_adds_a_vote_to_the_leader(self) -> None:
        before = viewed("7", "7", "9")
        after = agreeing(before)

        assert after.candidates[0].votes == 3
        assert after.candidates[0].probability > before.candidates[0].probability
        assert after.candidates[1].probability < before.candidates[1].probability
        assert after.order == ("7", "7", "9", "7")

    def test_it_comes_near_to_what_such_an_answer_makes(self) -> None:
        alike = Profile(name="e2", quality=0.8)
        supposed = agreeing(viewed("7", "7", upcoming=alike)).candidates[0]
        real = viewed("7", "7", "7").candidates[0]

        assert supposed.weight == pytest.approx(real.weight)
        assert supposed.probability == pytest.approx(real.probability)

    def test_where_nothing_was_said_yet_it_is_the_first(self) -> None:
        after = agreeing(viewed(None, upcoming=Profile(name="e1", quality=0.8)))

        assert after.candidates[0].votes == 1
        assert after.candidates[0].probability == pytest.approx(0.8)


def _noting(seen: list[dict[str, float]], probability: float) -> Calibration:
    def calibration(given: Mapping[str, float]) -> float:
        seen.append(dict(given))
        return probability

    return calibration


def _said_of(view: View) -> dict[str, tuple[int, float, float]]:
    return {
        one.answer.key: (one.votes, pytest.approx(one.weight), pytest.approx(one.probability))
        for one in view.candidates
    }
