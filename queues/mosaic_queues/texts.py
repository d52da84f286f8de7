"""Texts from elsewhere (errors of tools, outputs of models), as they may stand in messages and on terminals."""

from __future__ import annotations

import re

MOST_ERROR_CHARS = 8_192
"""So much of an error is kept: it is in each list of runs, and an error may quote all of its input."""
_OBEYED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)")
"""What a terminal obeys (escape sequences, which may also write its clipboard), what turns the rest of a line around,
and what is no text at all; not tabs and ends of lines."""


def visible(text: str) -> str:
    """The text, with what would not be shown but obeyed as Python writes it: `\\x1b[2J`."""
    return _OBEYED.sub(lambda found: repr(found.group())[1:-1], text)


def bounded(text: str, most: int = MOST_ERROR_CHARS) -> str:
    """The text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


__all__ = ["MOST_ERROR_CHARS", "bounded", "visible"]
