"""Texts from elsewhere: what a terminal would obey is shown, and errors are bounded."""

from __future__ import annotations

import io
import re
import sys
import unicodedata
from typing import cast

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_queues.errors import CallError
from mosaic_queues.texts import MOST_ERROR_CHARS, bounded, visible
from mosaic_queues.transitions import Claim
from mosaic_tasks.cli.exits import told_errors
from mosaic_tasks.cli.output import print_json, print_json_line, print_value
from mosaic_tasks.cli.streaming import _print
from mosaic_tasks.definition.plan import NodePlan
from mosaic_tasks.execution.outcomes import failure
from mosaic_tasks.execution.prepared import PreparedNode
from mosaic_tasks.inspection.parts import StreamEvent

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
SAY, CLAIM = PreparedNode(0, NodePlan("say", "tool", "q"), str), Claim("0", 1, 0, 0)


@given(st.text(alphabet=st.characters(codec=None), max_size=40))
@settings(max_examples=200, deadline=None)
def test_what_is_visible_is_text_that_says_the_same(text: str) -> None:
    shown = visible(text)
    shown.encode()
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in re.sub(r"\r?\n|\t", "", shown))
    assert visible(shown) == shown
    if all(char.isprintable() for char in text):
        assert shown == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc\r\nd", "a\tb\nc\r\nd"),
        ("100 %\rHACKED", "100 %\\rHACKED"),
        ("\x1b[2J\x9b1m\x7f\0", "\\x1b[2J\\x9b1m\\x7f\\x00"),
        ("\u202egnp.exe\u2069", "\\u202egnp.exe\\u2069"),
        ("שלום \u200f é 🏳️ \u200d", "שלום \u200f é 🏳️ \u200d"),
        ("\ud800", "\\ud800"),
    ],
)
def test_controls_are_written_as_python_does(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_long_text_is_cut_and_says_how_long_it_was() -> None:
    assert bounded("abc", 3) == "abc"
    assert bounded("abcd" * 1_000, 4) == "abcd... (4,000 characters)"


# -- errors -------------------------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError(CLIPBOARD), "node 'say': ToolError: ValueError: \\x1b]52;c;ZXZpbA==\\x07"),
        (CallError("\ud800"), "node 'say': CallError: \\ud800"),
        (SystemExit("\x1b"), "node 'say': ToolError: it called sys.exit('\\x1b')"),
        (Mute(), "node 'say': ToolError: Mute: (it cannot say why: RuntimeError)"),
    ],
)
def test_an_error_of_a_tool_is_text(error: BaseException, told: str) -> None:
    assert failure(SAY, CLAIM, error).error == told


def test_an_error_that_quotes_all_of_its_input_is_cut() -> None:
    for error in (ValueError("x" * 10**6), CallError("x" * 10**6), SystemExit("x" * 10**6)):
        assert len(failure(SAY, CLAIM, error).error) < MOST_ERROR_CHARS + 100


# -- terminals ----------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    """All that commands print of what came out of a run."""
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    text = f"\x9b2J{CLIPBOARD}"
    print_value(text)
    print_value({"said": text})
    print_json([text])
    print_json_line([text])
    _print(StreamEvent("1-0", "say", "text", 0, text))
    _print(StreamEvent("1-0", "say", "items", 0, [text]))
    with pytest.raises(typer.Exit), told_errors(debug=False, as_json=False):
        raise CallError(text)
    return stream.getvalue()


def test_a_terminal_gets_nothing_to_obey(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"\x1b", "\x9b", "\x07"} & set(printed(monkeypatch, Terminal()))


def test_a_file_gets_what_was_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cast(str, printed(monkeypatch, io.StringIO())).startswith(f"\x9b2J{CLIPBOARD}\n")
