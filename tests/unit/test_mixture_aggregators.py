"""Which of its answers a mixture takes."""

from __future__ import annotations

from typing import Any

from mixture_made import NUMBER, profiles, said, viewed

from mosaic_tasks.mixtures.aggregators import best_of, majority, supported
from mosaic_tasks.mixtures.beliefs import view_of
from mosaic_tasks.mixtures.values import Profile


class TestVotes:
    def test_nothing_heard_gives_nothing(self) -> None:
        assert majority(viewed()) is None

    def test_majority_counts_heads_not_weights(self) -> None:
        known = profiles(3, quality=0.3) | {"e0": Profile(name="e0", quality=0.97)}
        view = view_of(said("7", "9", "9"), known, NUMBER, planned=3)

        assert _key(majority(view)) == "9"
        assert _key(view.leader) == "7"

    def test_of_two_with_as_many_votes_the_heavier(self) -> None:
        known = profiles(2) | {"e1": Profile(name="e1", quality=0.97)}

        assert _key(majority(view_of(said("7", "9"), known, NUMBER, planned=2))) == "9"


class TestSupported:
    def test_the_likeliest_of_those_that_the_verifier_supports(self) -> None:
        view = viewed("7", "7", "9", "8")

        assert _key(supported(view, {0: 0.3, 2: 0.6, 3: 0.9})) == "9"

    def test_where_it_objects_to_each_the_one_that_it_objects_to_least(self) -> None:
        assert _key(supported(viewed("7", "7", "9"), {0: 0.1, 2: 0.4})) == "9"

    def test_of_several_judgements_of_one_answer_the_best_counts(self) -> None:
        assert _key(supported(viewed("7", "7", "9"), {0: 0.1, 1: 0.9, 2: 0.4})) == "7"

    def test_nothing_judged_gives_nothing(self) -> None:
        assert supported(viewed("7", "9"), {}) is None


class TestBest:
    def test_the_highest_score_among_those_that_count(self) -> None:
        best = best_of(said("7", "9", None, "8"), {0: 0.2, 1: 0.7, 2: 0.9})

        assert best is not None
        assert best.index == 1

    def test_of_two_with_the_same_score_the_first(self) -> None:
        best = best_of(said("7", "9"), {0: 0.5, 1: 0.5})

        assert best is not None
        assert best.index == 0

    def test_none_of_those_that_nobody_scored(self) -> None:
        assert best_of(said("7"), {}) is None
        assert best_of(said(None), {0: 1.0}) is None


def _key(candidate: Any) -> str:
    return str(candidate.answer.key)
