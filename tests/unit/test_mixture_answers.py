"""Answers in their normal form: equal keys where people say the same, and only there."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.values import encode
from mosaic_tasks.mixtures.answers import normalise
from mosaic_tasks.mixtures.values import AnswerForm, Form

NUMBER = AnswerForm(form="number")
LARGE = 100_000


def key(given: Any, form: Form = "number", **options: Any) -> str | None:
    """The key of the answer in `given`; None where there is none."""
    answer = normalise(given, AnswerForm(form=form, **options))
    return None if answer is None else answer.key


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("18", 18),
        ("$18", 18),
        ("18 dollars per day", 18),
        ("18.00", 18),
        ("-18", -18),
        ("−18", -18),
        ("-$18", -18),
        ("$-18", -18),
        ("1,234", 1234),
        ("$1,234.50", 1234.5),
        ("1.234,5", 1234.5),
        ("1.234", 1.234),
        ("1.234.567", 1234567),
        ("1,5", 1.5),
        ("0,125", 0.125),
        ("12,34,567", 1234567),
        ("1 234 567", 1234567),
        ("1'234'567.5", 1234567.5),
        ("1{,}234", 1234),
        ("12\\,345", 12345),
        ("3/4", 0.75),
        ("-3/4", -0.75),
        ("1 1/2", 1.5),
        ("1½ hours", 1.5),
        ("½", 0.5),
        ("\\frac{3}{4}", 0.75),
        ("$\\dfrac{3}{4}$", 0.75),
        ("\\frac34", 0.75),
        ("1\\frac{1}{2}", 1.5),
        ("-\\frac{1}{2}", -0.5),
        ("75%", 75),
        ("75\\%", 75),
        ("75 percent", 75),
        ("1.2e5", 120000),
        ("1.2 \\times 10^{5}", 120000),
        ("1.2 × 10⁵", 120000),
        ("3 x 10^-2", 0.03),
        ("2 million", 2000000),
        ("1.5 thousand", 1500),
        ("$3M", 3000000),
        ("5k", 5000),
        ("5 kg", 5),
        ("3 M", 3),
        ("72 cm^2", 72),
        ("72\\text{ cm}^2", 72),
        ("90^\\circ", 90),
        ("10 miles/hour", 10),
        ("**18**", 18),
        ("`18`", 18),
        ("9 * 2 = 18", 18),
        ("(80 + 150) * 2 = $460.", 460),
        ("x = 5", 5),
        ("20 * 1.033^18 ≈ 36.2", 36.2),
        ("315 miles (from 2 points)", 315),
        ("\\boxed{\\frac{3}{4}}", 0.75),
        ("\\boxed{42}", 42),
        ("#### 1,200", 1200),
        ("Adding up. The answer is 18. It took 3 steps.", 18),
        ("**Final answer:** $18", 18),
        ("Answer:\n\n**18**", 18),
        ("The answer (in dollars) is: 18", 18),
        ("The answer is 3. No, wrong.\nThe answer is 4.", 4),
        ("9 eggs are left.\nTherefore, she makes $18.", 18),
        ("She has 3 + 4 = 7 eggs.", 7),
        ("18</s></s>", 18),
        ("Suppose the answer is 5. That fails. The answer is 18.", 18),
        ("The answer is 18.\nIf the answer was 5, Bob would have less.", 18),
        ("If each costs 2, the answer is 18.", 18),
        ("<think>The answer is 5.</think>18", 18),
    ],
)
def test_a_number_is_read(written: str, value: float) -> None:
    expected = Fraction(str(value))
    assert key(written) == str(expected)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "   ",
        "unknown",
        "Cannot be determined",
        "nan",
        "1/0",
        "9" * 100,
        "1e999999999",
        "First there are 6 miles.\nThe longer side has 12 of 30, so",
        '{"answer": "not possible"} The answer is 5.',
        '{"answer": null}',
        '{"answer": "18',
        '{"answer": 18',
        '{"answer": 1.5e',
        '{"answer": NaN}',
        '{"answer": 1e999}',
        "<think>The answer is 18.",
        "The answer is not 18.",
    ],
)
def test_what_states_no_number_has_none(written: str) -> None:
    assert key(written) is None


@pytest.mark.parametrize(
    "written",
    [
        '{"reasoning": "3 + 4", "answer": "18"}',
        '```json\n{\n "reasoning": "a \\"quote\\"",\n "answer": "$18.00"\n}\n```',
        '{"answer": 18}',
        '{"answer": 18.0,}',
        "{'answer': '18'}",
        '{"reasoning": "it\'s "broken" here", "answer": "18"}',
        '"answer": 18, // dollars\n}',
        '{"answer": "17"}\nNo, I forgot one:\n{"answer": "18"}',
        'So she has 18.\n\nThe final answer is: `"answer": "18"`\n\nDone in 5 steps.',
        '{"answer": "18\n}',
        '{"answer": "\\frac{36}{2}"}',
        '{"answer": "\\(18\\)"}',
        '{"answer": "15 + 3 = 18"}',
        '{"question": {"answer": 18}}',
        '{"answer": 18, "steps": [{"answer": 5}], "note": "not \'answer\': 5"}',
        '{"draft": {"answer": 5}, "answer": "\\frac{36}{2}", "score": NaN}',
    ],
)
def test_the_last_answer_field_counts_in_whatever_json(written: str) -> None:
    assert key(written) == "18"


def test_thousands_stay_together_in_broken_json() -> None:
    assert key('{"answer": 1,234}') == key('{"answer": 1,234, "unit": "m"}') == "1234"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3\\sqrt{2}", "3 \\sqrt 2"),
        ("$x + 3$", "x+3"),
        ("\\left(3, 4\\right)", "(3,4)"),
        ("\\dfrac{x}{2}", "\\frac{x}{2}"),
        ("5\\pi", "5 \\pi"),
        ("10:30", "10:30 "),
    ],
)
def test_formulas_are_compared_as_written(one: str, other: str) -> None:
    assert key(one) == key(other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3\\sqrt{2}", "3\\sqrt{3}"),
        ("3", "3x"),
        ("5", "5\\pi"),
        ("3 + 4i", "3"),
        ("3, 4", "3"),
        ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 3 \\end{pmatrix}"),
        ("10:30", "10:45"),
        ("2024-05-01", "2024-06-01"),
        ("10-15", "10-20"),
        ("10-15", "-5"),
        ("0.75", "75%"),
        ("1.234", "1,234"),
        ("18", "180"),
        ("-18", "18"),
    ],
)
def test_what_differs_has_different_keys(one: str, other: str) -> None:
    assert key(one) != key(other)


def test_the_value_of_an_answer_is_what_was_read() -> None:
    whole, part = normalise("$18.00", NUMBER), normalise("1/4", NUMBER)
    assert (whole and whole.value, part and part.value) == (18, 0.25)
    assert whole is not None
    assert whole.shown == "$18.00"


def test_the_value_of_a_structured_answer_is_all_of_it() -> None:
    said = {"reasoning": "3 + 4", "answer": "7 eggs"}
    answer = normalise(said, NUMBER)
    assert answer is not None
    assert (answer.key, answer.value) == ("7", said)


@pytest.mark.parametrize(
    ("given_value", "field", "expected"),
    [
        (18, "", "18"),
        (18.5, "", "37/2"),
        ({"a": {"b": [1, 18]}}, "a.b.1", "18"),
        ({"total": 18, "answer": 3}, "total", "18"),
        ('{"total": 18, "answer": 3}', "total", "18"),
        ({"other": 18}, "", None),
        ({"a": 1}, "a.b", None),
        (None, "", None),
        (float("nan"), "", None),
        ([18], "", "=[18]"),
    ],
)
def test_a_value_is_read_at_its_field(given_value: Any, field: str, expected: str | None) -> None:
    assert key(given_value, field=field) == expected


@pytest.mark.parametrize(
    "written",
    [
        "B",
        "b",
        "(B)",
        "B)",
        "B.",
        "**B**",
        "B) Paris",
        "B: Paris",
        "Option B",
        "The answer is (B).",
        "The correct answer is: B. Paris",
        '{"answer": "B"}',
        "\\boxed{\\text{(B)}}",
        "I weighed them all.\n\nThe answer is (B), since (A) is too small.",
        "Rome is older.\nTherefore the correct option is B.",
    ],
)
def test_a_choice_is_a_letter(written: str) -> None:
    assert key(written, "choice") == "b"


@pytest.mark.parametrize("written", ["A dog is an animal", "", "I do not know", "(A) or (B)", "42"])
def test_words_are_no_letters(written: str) -> None:
    assert key(written, "choice") is None


@pytest.mark.parametrize(
    ("written", "chosen"),
    [
        ("Paris", "paris"),
        ("paris.", "paris"),
        ("B", "rome"),
        ("(b) Rome", "rome"),
        ("The answer is Rome, not Paris.", "rome"),
        ("It must be New York.", "new york"),
        ("The answer is York", "york"),
        ("Berlin", None),
        ("Paris and Rome", None),
        ("either Paris or Rome", None),
    ],
)
def test_a_choice_among_given_ones(written: str, chosen: str | None) -> None:
    assert key(written, "choice", choices=("Paris", "Rome", "York", "New York")) == chosen


@pytest.mark.parametrize(
    ("written", "chosen"), [("Yes, there is no doubt.", "yes"), ("NO", "no"), ("(C)", None)]
)
def test_yes_and_no(written: str, chosen: str | None) -> None:
    assert key(written, "choice", choices=("yes", "no")) == chosen


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": [2.0]}', '```json\n{"b": [2], "a": 1}\n```'),
        ('{"a": "x  y"}', 'Here it is: {"a": "x y"} as asked [1].'),
        ("18", "18.0"),
    ],
)
def test_equal_json(one: str, other: str) -> None:
    assert key(one, "json") == key(other, "json") is not None


def test_json_that_differs_or_is_none() -> None:
    assert key('{"a": 1}', "json") != key('{"a": true}', "json")
    assert key("no JSON at all", "json") is None
    assert key('{"a": {"b": 3}, "c": 4}', "json", field="a.b") == "3"
    assert key('{"a": {"b": 3}, broken', "json", field="a.b") == "3"
    assert key('{"a": 1}', "json", field="b") is None
    assert key('First {"a": 1}, no: {"a": 2}. See [3].', "json", field="a") == "2"
    assert key(json.loads("[" * 150 + "]" * 150), "json") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The Eiffel Tower.", "eiffel tower"),
        ('{"answer": "Eiffel Tower"}', "The answer is the Eiffel Tower."),
        ("1,234", "1234.0"),
        ("\\frac{1}{2}", "0.5"),
        ("new-york", "New York"),
        ("The", "the"),
        ("$3 \\sqrt{2}$", "3\\sqrt{2}"),
    ],
)
def test_equal_spans(one: str, other: str) -> None:
    assert key(one, "span") == key(other, "span") is not None


def test_spans_that_differ() -> None:
    assert key("3.5", "span") != key("35", "span")
    assert key("5 km", "span") != key("5 miles", "span")
    assert key("Some reasoning.\nTherefore it stands in Paris, I think.", "span") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x):\n    return x+1  # more", "```python\ndef f( x ):\n  return (x + 1)\n```"),
        ("[1,2, 'a']", '[1, 2, "a"]'),
        ("int f() { return 1; } // one", "int f()\n{\n    return 1;\n}"),
        ("A first try:\n```\nx=2\n```\nBetter:\n```\nx=1\n```\nDone.", "x = 1"),
        ('{"code": "x=1"}', '{"code": "x = 1"}'),
    ],
)
def test_code_that_is_formatted_the_same(one: str, other: str) -> None:
    field = "code" if one.startswith("{") else ""
    assert key(one, "code", field=field) == key(other, "code", field=field) is not None


def test_code_that_differs() -> None:
    assert key("if a:\n    b()\nc()", "code") != key("if a:\n    b()\n    c()", "code")
    assert key("'a b'", "code") != key("'a  b'", "code")


def test_texts_are_the_same_but_for_case_and_space() -> None:
    assert key("It  rains.\n", "text") == key("it rains.", "text")
    assert key(" ", "text") is None
    long = normalise("It rains. " * 1000, AnswerForm())
    assert long is not None
    assert len(long.key) < 200
    assert long.shown == ("It rains. " * 1000).strip()
    assert long.key != key("It rains. " * 999 + "It snows.", "text")


def test_latex_in_json_need_not_be_escaped() -> None:
    assert key(r'{"answer": "\(x\) is \"a\""}', "text", field="answer") == r'\(x\) is "a"'
    assert key(r'{"answer": "\boxed{\frac{1}{2}}"}') == key(r'{"answer": "\\frac{1}{2}"}') == "1/2"


HOSTILE = [
    "1,234" * (LARGE // 5),
    "1 " * (LARGE // 2),
    "9" * LARGE,
    "1,1" * (LARGE // 3),
    "[" * LARGE,
    "{" * LARGE,
    '{"answer": ' * (LARGE // 11),
    '"answer": "' * (LARGE // 11),
    '{"answer": "' + "\\" * LARGE,
    "\\boxed{" * (LARGE // 7),
    "\\frac{" * (LARGE // 6),
    "the answer is " * (LARGE // 14),
    "answer" + " " * LARGE,
    "answer is:" + "\n" * LARGE + "18",
    " " * LARGE + "x",
    "</s>" * (LARGE // 4),
    "(" * LARGE,
    "```\n" * (LARGE // 4),
    "'" * LARGE,
    "# " * (LARGE // 2),
    "therefore " * (LARGE // 10),
    "*" * LARGE,
    "-" * LARGE,
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("form", ["number", "choice", "json", "span", "code", "text"])
@pytest.mark.parametrize(
    "text", HOSTILE, ids=lambda text: text[:12].strip().encode("unicode_escape").decode()
)
def test_hostile_answers_of_100_kb_are_read_in_linear_time(form: Form, text: str) -> None:
    """A pattern that goes back over the text would take minutes."""
    normalise(text, AnswerForm(form=form))


@pytest.mark.parametrize("form", ["span", "json", "text", "code", "number"])
@pytest.mark.parametrize(
    "said",
    [
        '{"answer": "7 \\ud800"}',
        '{"answer": {"\\ud800": ["\\ud800"]}}',
        '{"answer": 123456789012345678901234567890}',
        '{"answer": "1e30"}',
        "7 \ud800",
    ],
)
@pytest.mark.parametrize("field", ["answer", ""])
def test_an_answer_can_be_stored_whatever_it_holds(form: Form, said: str, field: str) -> None:
    encode(msgspec.to_builtins(normalise(said, AnswerForm(form=form, field=field))))
    encode(msgspec.to_builtins(normalise({"answer": said}, AnswerForm(form=form, field=field))))


def test_numbers_of_more_than_64_bits_are_compared_exactly() -> None:
    said = ["123456789012345678901234567890", "The answer is 123,456,789,012,345,678,901,234,567,890."]
    assert {key(each) for each in said} == {said[0]}
    assert key(said[0][:-1] + "1") != key(said[0])
    assert key(f'{{"answer": {said[0]}}}', "json", field="answer") == said[0]


@pytest.mark.parametrize("form", ["span", "json", "text", "code", "number"])
@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "[1, NaN]", "[" * 90 + "]" * 90, "9" * 400])
def test_what_no_json_or_payload_holds_is_no_answer(form: Form, value: str) -> None:
    assert key(f'{{"answer": {value}}}', form, field="answer") is None
    assert key({"answer": json.loads(value)}, form, field="answer") is None


def test_a_number_holds_nothing_that_a_terminal_obeys() -> None:
    assert key("\x1b[31m18\x1b[0m") == "18"
    formula = normalise("\x1b]0;title\x07(3, 4)\x9b2J", NUMBER)
    assert formula is not None
    assert str(formula.value).isprintable()
    assert formula.shown.isprintable()


@given(st.fractions(max_denominator=10**6).filter(lambda value: abs(value) < 10**9))
def test_every_fraction_is_read_back(value: Fraction) -> None:
    assert key(str(value)) == str(value)


@given(
    st.integers(-(10**12), 10**12),
    st.sampled_from(["{:,}", "${:,}", "{} apples", '{{"answer": "{:,}"}}', "{}.0"]),
)
def test_every_writing_of_a_whole_number_is_the_same(value: int, writing: str) -> None:
    assert key(writing.format(value)) == str(value)


@given(st.text(max_size=200), st.sampled_from(["number", "choice", "json", "span", "code", "text"]))
def test_any_text_is_read_the_same_twice_and_never_raises(text: str, form: Form) -> None:
    assert key(text, form) == key(text, form)
