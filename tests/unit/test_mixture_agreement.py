"""Which answers say the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.errors import ConfigurationError
from mosaic_tasks.mixtures import semantics
from mosaic_tasks.mixtures.agreement import groups, lexical
from mosaic_tasks.mixtures.answers import normalise
from mosaic_tasks.mixtures.values import AnswerForm

TEXT = AnswerForm(form="text")
NUMBER = AnswerForm(form="number")


def members(texts: Sequence[str], form: AnswerForm, **options: Any) -> list[tuple[int, ...]]:
    return [group.members for group in groups([normalise(text, form) for text in texts], form, **options)]


def test_equal_keys_say_the_same_and_what_has_no_answer_says_nothing() -> None:
    assert members(["18", "none", "$18.00", "17", "18 eggs"], NUMBER) == [(0, 2, 4), (3,)]
    assert members([], NUMBER) == members(["none"], NUMBER) == []


def test_the_one_that_was_said_first_is_at_the_front_and_stands_for_its_group() -> None:
    found = groups([normalise(text, NUMBER) for text in ("7", "$18", "18")], NUMBER)
    assert [group.answer.shown for group in found] == ["7", "$18"]


def test_numbers_within_the_tolerance_gather_around_the_one_said_most() -> None:
    form = AnswerForm(form="number", tolerance=0.01)
    assert members(["9.91", "10.0", "10", "10.09", "10.3"], form) == [(0, 1, 2, 3), (4,)]
    assert members(["9.91", "10.09"], form) == [(0,), (1,)]
    assert members(["-100", "-100.5", "0"], form) == [(0, 1), (2,)]
    assert members(["100", "101", "x + 3", "x+3"], AnswerForm(form="number", tolerance=0.1)) == [
        (0, 1),
        (2, 3),
    ]


def test_no_chain_of_small_steps_joins_what_is_far_apart() -> None:
    form = AnswerForm(form="number", tolerance=0.1)
    for found in groups([normalise(str(100 + 5 * n), form) for n in range(20)], form):
        values = [100 + 5 * n for n in found.members]
        middle = found.answer.value
        assert all(abs(value - middle) <= 0.1 * max(value, middle) for value in values)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["75%", "0.75", "3/4"], [(0, 1, 2)]),
        (["0.75", "75 percent"], [(0, 1)]),
        (["75%", "75"], [(0, 1)]),
        (["75", "0.75"], [(0,), (1,)]),
        (["75", "75%", "0.75"], [(0, 1), (2,)]),
        (["75%", "75", "0.75"], [(0, 1), (2,)]),
        (["1%", "0.01", "0.0001"], [(0, 1), (2,)]),
        (["10:30%", "0.1"], [(0,), (1,)]),
        (["75%", "0.75%"], [(0,), (1,)]),
        (["75%", "0.5"], [(0,), (1,)]),
    ],
)
def test_percent_is_a_fraction_where_others_wrote_that_fraction(
    texts: list[str], expected: list[tuple[int, ...]]
) -> None:
    assert members(texts, NUMBER) == expected


def test_texts_that_are_alike_say_the_same() -> None:
    texts = [
        "The outage was caused by an expired certificate on the load balancer.",
        "An expired certificate on the load balancer caused the outage.",
        "A full disk on the database server stopped all writes.",
    ]
    assert members(texts, TEXT) == [(0, 1), (2,)]
    assert members(texts, AnswerForm(form="text", similarity=1.0)) == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Revenue rose by 3 % in the second quarter.", "Revenue rose by 5 % in the second quarter."),
        ("It is safe to deploy this to production.", "It is not safe to deploy this to production."),
        ("You can restart the primary server by day.", "You can't restart the primary server by day."),
        ("The claim in the contract is true and binding.", "The claim in the contract is false and binding."),
    ],
)
def test_texts_that_claim_otherwise_never_say_the_same(one: str, other: str) -> None:
    assert lexical([one, other], 0.0)[0][1] > TEXT.similarity
    assert members([one, other], TEXT) == [(0,), (1,)]


def test_another_similarity_can_be_given_and_claims_still_count() -> None:
    def all_alike(texts: Sequence[str], least: float) -> list[list[float]]:
        return [[1.0] * len(texts) for _ in texts]

    texts = ["It rains.", "Wet weather.", "It does not rain."]
    assert members(texts, TEXT, similarity=all_alike) == [(0, 1), (2,)]


def test_long_texts_are_compared_by_their_ends() -> None:
    middle = "word " * 20_000
    one, other = f"It rains. {middle} So stay in.", f"It rains. {middle}more So stay in."
    third = f"Sun all day. {middle} Go out, everybody, and enjoy it while it lasts: {'swim ' * 90}"
    assert members([one, other, third], TEXT) == [(0, 1), (2,)]


WORDS = st.lists(st.sampled_from(["rain", "sun", "3", "not", "snow", "wind", "fog"]), min_size=1, max_size=6)


@given(st.lists(WORDS.map(" ".join), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_groups_of_texts_do_not_depend_on_their_order(texts: list[str], chance: Any) -> None:
    order = list(range(len(texts)))
    chance.shuffle(order)
    before = {frozenset(group) for group in members(texts, TEXT)}
    after = members([texts[place] for place in order], TEXT)
    assert {frozenset(order[place] for place in group) for group in after} == before


@given(st.lists(st.integers(90, 110).map(str), max_size=12), st.sampled_from([0.0, 0.02, 0.5]))
def test_every_answer_is_in_one_group_and_equal_ones_are_in_the_same(
    texts: list[str], tolerance: float
) -> None:
    found = members(texts, AnswerForm(form="number", tolerance=tolerance))
    assert sorted(place for group in found for place in group) == list(range(len(texts)))
    assert all(
        len({g for g in found if {p for p, t in enumerate(texts) if t == text} & set(g)}) == 1
        for text in texts
    )


def test_embeddings_compare_by_their_angle(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = {"It rains.": [1.0, 0.0], "Wet weather.": [0.96, 0.28], "Sun.": [0.0, 1.0]}

    class Model:
        def __init__(self, name: str) -> None:
            assert name == "small"

        def encode(self, texts: list[str], *, normalize_embeddings: bool) -> list[list[float]]:
            assert normalize_embeddings
            return [vectors[text] for text in texts]

    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Model))
    semantics._encoder.cache_clear()
    assert members(list(vectors), TEXT, similarity=semantics.embedded("small")) == [(0, 1), (2,)]
    semantics._encoder.cache_clear()


def test_embeddings_without_the_extra_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    semantics._encoder.cache_clear()
    with pytest.raises(ConfigurationError, match=r"mosaic-tasks\[semantic\]"):
        members(["a", "b"], TEXT, similarity=semantics.embedded("small"))
