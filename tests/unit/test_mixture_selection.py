"""Which experts a mixture asks next."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixture_made import profiles

from mosaic_tasks.mixtures.beliefs import together
from mosaic_tasks.mixtures.selection import Left, Terms, chosen
from mosaic_tasks.mixtures.values import Profile

COSTS = st.floats(0.0, 10.0)
POOLS = st.lists(
    st.builds(
        Profile,
        name=st.uuids().map(str),
        quality=st.floats(0.0, 1.0),
        right=st.floats(0.0, 100.0),
        wrong=st.floats(0.0, 100.0),
        usd=COSTS,
        latency_s=COSTS,
        tokens=COSTS,
        offers=st.lists(st.sampled_from(["data", "code", "check"]), max_size=2).map(tuple),
    ),
    max_size=8,
    unique_by=lambda one: one.name,
)


class TestChosen:
    def test_the_better_of_two_that_cost_the_same(self) -> None:
        pool = [Profile(name="a", quality=0.7, usd=1.0), Profile(name="b", quality=0.9, usd=1.0)]

        assert chosen(pool, count=1) == ("b",)

    def test_the_cheaper_of_two_that_are_as_good(self) -> None:
        pool = [Profile(name="a", tokens=900), Profile(name="b", tokens=100)]

        assert chosen(pool, count=1) == ("b",)

    def test_tokens_count_a_little_and_neither_prices_nor_seconds_unless_told(self) -> None:
        verbose = Profile(name="verbose", quality=0.9, tokens=900)

        assert chosen([verbose, Profile(name="brief", quality=0.85, tokens=100)], count=1) == ("brief",)
        assert chosen([verbose, Profile(name="brief", quality=0.5, tokens=100)], count=1) == ("verbose",)
        dear = [Profile(name="dear", usd=9.0, latency_s=9.0), Profile(name="cheap", usd=0.1, latency_s=0.1)]
        assert chosen(dear, count=1) == ("dear",)
        assert chosen(dear, count=1, terms=Terms(usd=0.5)) == ("cheap",)

    def test_of_whom_no_tokens_are_known_as_many_are_supposed_as_the_others_take(self) -> None:
        pool = [Profile(name="known", tokens=500, quality=0.8), Profile(name="new", quality=0.7)]

        assert chosen(pool, count=2) == ("known", "new")

    def test_those_of_which_nothing_is_known_come_in_their_order(self) -> None:
        assert chosen([Profile(name=name) for name in "cabd"], count=4) == ("c", "a", "b", "d")

    def test_what_costs_count_is_told_by_the_terms(self) -> None:
        pool = [Profile(name="slow", quality=0.9, latency_s=9.0), Profile(name="fast", latency_s=1.0)]

        assert chosen(pool, count=1, terms=Terms(seconds=0.0)) == ("slow",)
        assert chosen(pool, count=1, terms=Terms(seconds=1.0)) == ("fast",)

    def test_who_errs_otherwise_than_those_asked_is_worth_more_where_that_counts(self) -> None:
        asked = Profile(name="a", quality=0.8)
        like = Profile(name="b", quality=0.82, agrees={"a": (180.0, 1000.0)})
        unlike = Profile(name="c", quality=0.8, agrees={"a": (42.0, 1000.0)})

        assert together(like, asked) > together(unlike, asked)
        assert chosen([like, unlike], count=1) == ("b",)
        assert chosen([like, unlike], count=1, asked=[asked]) == ("b",)
        assert chosen([like, unlike], count=1, asked=[asked], diversity=1.0) == ("c",)

    def test_a_first_wave_holds_each_once_and_no_two_of_a_kind_where_it_can(self) -> None:
        pool = [Profile(name="a", model="m"), Profile(name="b", model="m"), Profile(name="c", model="n")]

        assert chosen(pool, count=2, diversity=1.0) == ("a", "c")
        assert sorted(chosen(pool, count=5)) == ["a", "b", "c"]

    def test_those_who_offer_what_is_missing_come_first_one_for_each(self) -> None:
        pool = [
            Profile(name="good", quality=0.95),
            Profile(name="data", offers=("data",)),
            Profile(name="data2", offers=("data",)),
            Profile(name="code", quality=0.6, offers=("code",)),
        ]

        assert chosen(pool, count=1, missing=("data",)) == ("data",)
        assert chosen(pool, count=3, missing=("data", "code")) == ("data", "code", "good")
        assert chosen(pool, count=1, missing=("sound",)) == ("good",)

    @pytest.mark.parametrize("left", [Left(usd=0.0), Left(seconds=0.0), Left(tokens=-1.0)])
    def test_without_a_budget_nobody_is_asked(self, left: Left) -> None:
        assert chosen([Profile(name="a", usd=0.1, latency_s=1.0)], count=1, left=left) == ()

    def test_nobody_to_ask(self) -> None:
        assert chosen([], count=3) == ()
        assert chosen([Profile(name="a")], count=0) == ()

    @given(POOLS, st.integers(0, 9), st.builds(Left, usd=COSTS, seconds=COSTS, tokens=COSTS))
    def test_what_is_chosen_keeps_within_the_budget(
        self, pool: list[Profile], count: int, left: Left
    ) -> None:
        names = chosen(pool, count=count, left=left, chance=random.Random(1))
        asked = [one for one in pool if one.name in names]

        assert len(names) == len(set(names)) <= count
        assert sum(one.usd for one in asked) <= left.usd + 1e-9
        assert sum(one.tokens for one in asked) <= left.tokens + 1e-9
        assert all(one.latency_s <= left.seconds for one in asked)

    @given(POOLS, st.integers(0, 9))
    def test_as_many_as_are_wanted_and_there(self, pool: list[Profile], count: int) -> None:
        assert len(chosen(pool, count=count)) == min(count, len(pool))


class TestThompson:
    def test_one_of_which_little_is_known_is_tried_now_and_then(self) -> None:
        known = Profile(name="known", quality=0.8, right=800, wrong=200)
        new = Profile(name="new", quality=0.75)
        chance = random.Random(4)

        asked = Counter(chosen([known, new], count=1, chance=chance)[0] for _ in range(300))

        assert 20 < asked["new"] < 150
        assert chosen([known, new], count=1) == ("known",)

    def test_one_that_proved_worse_is_hardly_asked(self) -> None:
        pool = [Profile(name="a", right=180, wrong=20), Profile(name="b", right=100, wrong=100)]
        chance = random.Random(4)

        assert {chosen(pool, count=1, chance=chance) for _ in range(200)} == {("a",)}

    def test_the_same_chance_chooses_the_same(self) -> None:
        pool = list(profiles(6).values())

        assert chosen(pool, count=3, chance=random.Random(7)) == chosen(
            pool, count=3, chance=random.Random(7)
        )

    def test_it_learns_who_is_best_where_profiles_say_nothing(self) -> None:
        """Regret stays small: of 600 calls most go to the best of four, of which nothing was known."""
        chance = random.Random(11)
        truth = {"e0": 0.55, "e1": 0.65, "e2": 0.9, "e3": 0.6}
        pool = profiles(4)
        asked: Counter[str] = Counter()
        for _ in range(600):
            (name,) = chosen(list(pool.values()), count=1, chance=chance)
            asked[name] += 1
            pool[name] = _judged(pool[name], right=chance.random() < truth[name])

        assert asked["e2"] > 400


def _judged(profile: Profile, *, right: bool) -> Profile:
    return Profile(name=profile.name, right=profile.right + right, wrong=profile.wrong + (not right))
