"""What an answer tells while it is written, and by its tokens."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_tasks.mixtures.answers import normalise
from mosaic_tasks.mixtures.signals import AnswerReader, signals
from mosaic_tasks.mixtures.values import AnswerForm, Form

NUMBER = AnswerForm(form="number")
LARGE = 200_000


def first_told(text: str, form: AnswerForm = NUMBER, **options: Any) -> tuple[str, str] | None:
    """The answer's key, and the text up to the character that completed it."""
    reader = AnswerReader(form, **options)
    for place, character in enumerate(text):
        answer = reader.feed(character)
        if answer is not None:
            return answer.key, text[: place + 1]
    return None


@pytest.mark.parametrize(
    ("text", "key", "read"),
    [
        ('{"reasoning": "9 * 2", "answer": "18"}', "18", '{"reasoning": "9 * 2", "answer": "18"}'),
        ('{"answer": "18", "reasoning": "..."}', "18", '{"answer": "18", "'),
        ('{"answer": 125}', "125", '{"answer": 125}'),
        ('{"answer": 125\n}', "125", '{"answer": 125\n}'),
        ('{"answer": 1,234}', "1234", '{"answer": 1,234}'),
        ('```json\n{\n  "answer" : "$1,234"\n}\n```\nMore', "1234", '```json\n{\n  "answer" : "$1,234"\n}'),
        ("{'answer': '18'}", "18", "{'answer': '18'}"),
        ('{"steps": [{"answer": 5}], "draft": {"answer": 6}, "answer": 18}', "18", None),
        ('{"reasoning": "they said {\'answer\': 5, ...}", "answer": 18}', "18", None),
        ('``` json\n{"answer": 18}\n```', "18", '``` json\n{"answer": 18}'),
        ("<think>\\boxed{5}\nno</think>\\boxed{18}\n", "18", None),
        ('<think>{"answer": 5}</think>{"answer": 18}', "18", None),
        ("Suppose the answer is 5.\nThat fails.\nThe answer is 18.\n", "18", None),
        ("If the answer is 5, then Bob has less.\nSo my final answer is 18.\n", "18", None),
        ("We add.\nThe answer is 18.\nMore", "18", "We add.\nThe answer is 18.\n"),
        ("#### 18\n", "18", "#### 18\n"),
        ('{"answer":' + " " * 100 + '"18"' + " " * 100 + "}", "18", None),
        ("So \\boxed{\\frac{1}{2}}.\n", "1/2", "So \\boxed{\\frac{1}{2}}.\n"),
        ('{"answer": "9 * 2"}', "18", '{"answer": "9 * 2"}'),
    ],
)
def test_an_answer_is_told_once_nothing_can_change_it(text: str, key: str, read: str | None) -> None:
    assert first_told(text) == (key, read or text)


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 12',
        '{"answer": "12',
        '{"answer": "12"',
        '{"answer": "12" and more',
        '{"answer": "12\\"',
        '{"answer": 12,',
        "The answer is 12",
        "The answer is 12.",
        "#### 12",
        "\\boxed{12}",
        "\\boxed{12\n",
        "The answer is the sum of 12 and 3.\n",
        "The answer is 12 or 13.\n",
        "The answer is not 12.\n",
        "The answer is 12?\n",
        "The answer is 12, if Bob is right.\n",
        "Bob thinks the answer is 12.\n",
        "Assuming the answer is 12.\n",
        "If we take \\boxed{12}, then\n",
        "There are 12 eggs.\n",
        "<think>The answer is 12.\n",
        'As asked: {"answer": 12}\nMine:',
        'So `"answer": "12"`, they say',
        '{"draft": {"answer": 12}, "steps": [{"answer": 12}]}',
        '{"reasoning": "he has ""answer": 12"" eggs',
        '{"answer": 12" tall, "',
        '{"answer": "12" "',
        '```json {"answer": 12}',
        '{"reasoning": "I add.\nThe answer is 12.\nNo: ',
        '```json\n{"reasoning": "I add.\nThe answer is 12.\n',
        '{"reasoning": "so the \\"answer\\": \\"12\\"}", ',
        '{"other": "12"}',
    ],
)
def test_what_may_go_on_is_not_told(text: str) -> None:
    assert first_told(text) is None
    assert AnswerReader(NUMBER).feed(text) is None


def test_a_value_that_is_no_answer_is_passed_over() -> None:
    text = '{"answer": "let me see"}\n{"answer": "18"}'
    assert first_told(text) == ("18", text)


@pytest.mark.parametrize(
    ("form", "text", "key"),
    [
        (AnswerForm(form="choice"), '{"answer": "(B)"}', "b"),
        (AnswerForm(form="choice"), "The answer is (B).\n", "b"),
        (AnswerForm(form="choice"), "The answer is clearly not (B).\n", None),
        (AnswerForm(form="choice", choices=("yes", "no")), "Answer: Yes, it does.\n", "yes"),
        (AnswerForm(form="choice", choices=("yes", "no")), "The answer is hard to tell, maybe no.\n", None),
        (AnswerForm(form="span"), '{"answer": "The Eiffel Tower"}', "eiffel tower"),
        (AnswerForm(form="span"), "The answer is the Eiffel Tower.\n", None),
        (AnswerForm(form="json", field="a"), '{"a": {"b": ["}", 1.0]}}', '{"b":["}",1]}'),
        (AnswerForm(form="json", field="x.a"), '{"x": {"a": [1, 2], "c": 3}}', "[1,2]"),
        (AnswerForm(form="json", field="x.a"), '{"a": 5, "x": {"y": {"a": 6}, "a": 7}}', "7"),
        (AnswerForm(form="json", field="x.a"), '{"x": [{"a": 5}], "y": {"a": 6}}', None),
        (AnswerForm(form="json"), '{"a": 1}', None),
        (AnswerForm(form="text"), '{"answer": "It rains."}', None),
        (AnswerForm(form="text", field="summary"), '{"summary": "It \\"rains\\"."}', 'it "rains".'),
        (AnswerForm(form="code", field="code"), '{"code": "x=1"}', "x = 1"),
        (AnswerForm(form="code"), "```\nx = 1\n```\n", None),
    ],
)
def test_other_forms(form: AnswerForm, text: str, key: str | None) -> None:
    told = first_told(text, form)
    assert (told and told[0]) == key


def test_a_field_that_does_not_fit_the_schema_is_passed_over() -> None:
    schema = {"properties": {"answer": {"$ref": "#/$defs/count"}}, "$defs": {"count": {"type": "integer"}}}
    text = '{"answer": "12", "answer": 18}'
    told = first_told(text, schema=schema)
    assert told is not None
    assert told[0] == "18"


def test_a_schema_that_does_not_tell_of_the_field_hinders_nothing() -> None:
    for schema in (
        {},
        {"properties": {"answer": {"$ref": "#/properties/x"}, "x": {}}},
        {"properties": {"x": {}}},
    ):
        told = first_told('{"answer": "18"}', schema=schema)
        assert told is not None


def test_an_answer_stays_once_it_is_told() -> None:
    reader = AnswerReader(NUMBER)
    first = reader.feed('{"answer": "18"}')
    assert first is not None
    assert reader.feed('{"answer": "19"}') is first is reader.answer


PARTS = st.sampled_from(
    [
        '{"answer": ',
        '"18"',
        "18",
        "1",
        ",",
        "}",
        " ",
        "\n",
        '"',
        "\\",
        "The answer is ",
        "#### ",
        "\\boxed{",
        "'",
        "```",
        "<think>",
        "</think>",
        '{"x": ',
        '"answer": ',
        "If ",
    ]
)


@given(
    st.lists(PARTS, max_size=12).map("".join),
    st.integers(1, 5),
    st.sampled_from(["number", "choice", "span"]),
)
def test_the_cuts_change_nothing(text: str, size: int, form: Form) -> None:
    whole = first_told(text, AnswerForm(form=form))
    reader = AnswerReader(AnswerForm(form=form))
    for start in range(0, len(text), size):
        reader.feed(text[start : start + size])
    assert (reader.answer and reader.answer.key) == (whole and whole[0])


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_part_of_a_number_is_told(value: int, more: int) -> None:
    text = f'{{"reasoning": "...", "answer": {value}{more}}}'
    assert first_told(text) == (str(int(f"{value}{more}")), text)


@given(st.sampled_from(["18", "$1,234.50", "7 eggs", "3/4"]), st.booleans())
def test_what_is_told_early_is_what_the_whole_says(written: str, fenced: bool) -> None:
    text = f'{{"reasoning": "so", "answer": "{written}"}}'
    text = f"```json\n{text}\n```" if fenced else text
    told, whole = first_told(text), normalise(text, NUMBER)
    assert told is not None
    assert whole is not None
    assert told[0] == whole.key


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        '{"answer": "' + "x" * LARGE,
        '{"answer": "' + '\\"' * (LARGE // 2),
        '{"answer": ' + "[" * LARGE,
        '{"answer": ' + " " * LARGE,
        '{"answer": "x"' + " " * LARGE,
        '{"answer"' + " " * LARGE,
        '"answer": "x" ' * (LARGE // 14),
        "The answer is " + "9" * LARGE,
        "x" * LARGE,
        "\n" * LARGE,
        "if the answer is 5 " * (LARGE // 19),
        "<think></think>" + " " * LARGE,
        '{"a": {"answer": [' * (LARGE // 18),
    ],
    ids=lambda text: text[:14].strip().encode("unicode_escape").decode(),
)
def test_hostile_streams_are_read_in_linear_time(text: str) -> None:
    """Each piece is one character; reading all of it again for each would take a minute."""
    reader = AnswerReader(NUMBER)
    for character in text:
        reader.feed(character)


@given(st.lists(PARTS, max_size=12).map("".join), st.sampled_from(["18", '"18"', "[18]"]))
def test_what_stands_before_an_object_s_own_field_is_never_told(said: str, value: str) -> None:
    text = json.dumps({"reasoning": said, "steps": [{"answer": 5}, said], "draft": {"answer": 6}})
    told = first_told(f'{text[:-1]}, "answer": {value}}}')
    assert told is not None
    assert "18" in told[0]


def test_signals_in_figures() -> None:
    found = signals([math.log(0.5)] * 4 + [0.0] * 46)
    assert found["logprob_mean"] == pytest.approx(4 * math.log(0.5) / 50)
    assert found["logprob_tail"] == pytest.approx(4 * math.log(0.5) / 5)
    assert found["entropy"] == pytest.approx(4 * math.log(2) / 50)
    assert signals([-1.0, -2.0])["logprob_tail"] == pytest.approx(-1.5)


def test_no_tokens_tell_nothing() -> None:
    assert signals([]) == signals([math.nan]) == {}


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40))
def test_signals_are_finite_whatever_engines_say(logprobs: list[float]) -> None:
    found = signals(logprobs)
    assert all(math.isfinite(value) for value in found.values())
    if found:
        assert found["logprob_tail"] <= found["logprob_mean"] + 1e-9 <= 1e-9
        assert -1e-12 <= found["entropy"] <= math.log(2) + 1e-9
