"""What is wrong with an answer by the rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.errors import ConfigurationError
from mosaic_tasks.mixtures.checks import problems
from mosaic_tasks.mixtures.patterns import pattern_error
from mosaic_tasks.mixtures.values import Rules

NONE = Rules()
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
LARGE = 100_000


def test_an_answer_that_is_right_has_no_problems() -> None:
    rules = Rules(pattern=r"\d+ eggs", entities=("Janet", "ducks"))
    assert problems("Janet's ducks lay 18 eggs.", {"answer": 18}, rules, SCHEMA) == ()


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("", None, ("empty",)),
        (" \n", "", ("empty",)),
        ("", {}, ("empty",)),
        ("no number here", None, ("unreadable",)),
        ("0", 0, ()),
        ("false", False, ()),
        ("", 18, ()),
    ],
)
def test_empty_and_unreadable(text: str, value: Any, expected: tuple[str, ...]) -> None:
    assert problems(text, value, NONE) == expected


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, but I can’t assist with that request.",
        "I cannot provide medical advice.",
        "Unfortunately, I am unable to answer this question.",
        "I won't be able to help you here.",
        "As an AI language model, I have no opinion.",
        "I must decline to do that.",
        '{"answer": "I cannot comply with this request."}',
    ],
)
def test_refusals(text: str) -> None:
    assert "refused" in problems(text, text, NONE)
    assert "refused" not in problems(text, text, Rules(refusals=False))


@pytest.mark.parametrize(
    "text",
    [
        "I can't believe it: the answer is 18.",
        "The guard refused to help, so the thief could not continue.",
        "They cannot provide more than 18 eggs.",
        f"The answer is 18. {'It is so. ' * 60} I cannot help it.",
    ],
)
def test_answers_that_speak_of_refusing_do_not_refuse(text: str) -> None:
    assert problems(text, 18, NONE) == ()


def test_a_structured_refusal_and_the_engine_s_word_for_it() -> None:
    assert problems('{"answer": 1}', "I cannot answer that.", NONE) == ("refused",)
    assert problems("18", 18, NONE, finish_reason="refused") == ("refused",)


def test_truncated() -> None:
    assert problems("18", 18, NONE, finish_reason="length") == ("truncated",)
    assert problems("", None, NONE, finish_reason="length") == ("empty", "truncated")


def test_the_schema_is_for_what_could_be_read() -> None:
    assert problems("18", "18", NONE, SCHEMA) == ("schema",)
    assert problems("?", None, NONE, SCHEMA) == ("unreadable",)


def test_the_pattern_is_found_anywhere() -> None:
    assert problems("x 18 y", 18, Rules(pattern=r"\b\d{2}\b")) == ()
    assert problems("x 181 y", 18, Rules(pattern=r"\b\d{2}\b")) == ("pattern",)


def test_entities_are_words_whatever_their_case() -> None:
    assert problems("In new york, ACME.", "x", Rules(entities=("New York", "Acme"))) == ()
    assert problems("In Newark, acmeology.", "x", Rules(entities=("Acme",))) == ("entity",)
    assert problems("C++ and C.", "x", Rules(entities=("c++",))) == ()


def test_several_problems_come_in_a_fixed_order() -> None:
    rules = Rules(pattern="z", entities=("z",))
    found = problems("I cannot help with that.", "x", rules, SCHEMA, "length")
    assert found == ("refused", "truncated", "schema", "pattern", "entity")


def test_a_pattern_that_cannot_be_used_is_told() -> None:
    assert pattern_error(r"\d+") is None
    assert "look-ahead" in (pattern_error("a(?=b)") or "")
    assert "unclosed group" in (pattern_error("(") or "")
    with pytest.raises(ConfigurationError, match="unclosed group"):
        problems("18", 18, Rules(pattern="("))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"(a|a)*b", r"(.*)*x", r"^(\w+\s?)*$"])
def test_no_pattern_takes_longer_than_the_text_is_long(pattern: str) -> None:
    """Python's own engine would need longer than the universe has been there."""
    assert problems("a" * LARGE + "!", "x", Rules(pattern=pattern)) == ("pattern",)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", ["I can't " * 20_000, "i am " * 20_000, " " * LARGE, "I cannot" + " " * LARGE]
)
def test_hostile_texts_are_checked_in_linear_time(text: str) -> None:
    problems(text, text, Rules(entities=("I can't",) * 20, pattern="never"))


@given(st.text(max_size=300), st.none() | st.text(max_size=50) | st.integers())
def test_any_answer_can_be_checked(text: str, value: Any) -> None:
    found = problems(text, value, Rules(pattern="[0-9]", entities=("x",)), SCHEMA)
    assert len(set(found)) == len(found)
