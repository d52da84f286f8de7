"""Reasoning in tags at the beginning of a text is kept apart, however the text is cut."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_tasks.engines.reasoning import Parted, ReasoningReader


def read(text: str, cuts: Iterable[int] = (), *, opened: bool = False) -> Parted:
    reader = ReasoningReader(opened=opened)
    parts, start = [], 0
    for cut in (*cuts, len(text)):
        parts.append(reader.feed(text[start:cut]))
        start = cut
    parts.append(reader.close())
    return Parted("".join(part.answer for part in parts), "".join(part.reasoning for part in parts))


@pytest.mark.parametrize(
    ("text", "answer", "reasoning"),
    [
        ("", "", ""),
        (" plain text ", " plain text ", ""),
        ("<think>two < 3</th</think>\n\nFive. ", "Five. ", "two < 3</th"),
        ("\n <think>a</think> <think>b</think>c", "c", "ab"),
        ("<think></think>\n", "", ""),
        ("<think>never ends </thi", "", "never ends </thi"),
        ("<think>a</think> <thi", "<thi", "a"),
        (" <thi", " <thi", ""),
        ("<thinker> is <think>no</think> tag", "<thinker> is <think>no</think> tag", ""),
        ("<think>a</think>b <think>c</think>", "b <think>c</think>", "a"),
        ("<think>a <think> b</think>c", "c", "a <think> b"),
    ],
)
def test_the_text_is_parted_wherever_it_is_cut(text: str, answer: str, reasoning: str) -> None:
    assert read(text) == (answer, reasoning)
    assert read(text, range(len(text))) == (answer, reasoning)
    for cut in range(len(text)):
        assert read(text, [cut]) == (answer, reasoning)


@pytest.mark.parametrize(
    ("text", "answer", "reasoning"),
    [("so</think> Yes", "Yes", "so"), ("so", "", "so"), ("</think>\n", "", "")],
)
def test_a_text_may_begin_inside_the_reasoning(text: str, answer: str, reasoning: str) -> None:
    assert read(text, range(len(text)), opened=True) == (answer, reasoning)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think", ">", " ", "\n", "a"])), st.data())
def test_cuts_change_nothing(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    assert read(text, cuts) == read(text)


def test_nothing_is_held_back_that_cannot_be_a_tag() -> None:
    reader = ReasoningReader()
    assert reader.feed("<think>a<") == ("", "a")
    assert reader.feed("b</thin") == ("", "<b")
    assert reader.feed("k> \n") == ("", "")
    assert reader.feed("<") == ("", "")
    assert reader.feed("1 </think> ") == ("<1 </think> ", "")
