"""What lines are called in reports, and the names of their files. All of it comes from data."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

MAX_LABEL_CHARS = 120
_MAX_NAME_CHARS = 40


def label_of(inputs: Mapping[str, Any], output: Any, *, line: int) -> str:
    """The title that the output gives itself; else the first input that is text or a number; else the line's number."""
    titles = [output.get("title")] if isinstance(output, dict) else []
    words = (_words(value) for value in [*titles, *inputs.values()])
    return next(filter(None, words), f"Line {line}")


def _words(value: Any) -> str:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return ""
    text = " ".join(str(value)[: 4 * MAX_LABEL_CHARS].split())
    text = "".join(char for char in text if char.isprintable())
    return text if len(text) <= MAX_LABEL_CHARS else f"{text[: MAX_LABEL_CHARS - 1]}…"


def file_name(label: str, *, line: int) -> str:
    """A name without suffix that every file system and object store takes: `00012-shop-backend`.

    The number comes first, so that names sort as lines do, no two are equal, none is reserved (`con`, `..`), and none
    begins with a sign.
    """
    plain = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain)[:_MAX_NAME_CHARS].strip("-")
    return f"{line:05}-{words}" if words else f"{line:05}"
