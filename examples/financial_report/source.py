"""The annual report that is read."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import TypedDict

BUNDLED = Path(__file__).with_name("annual_report.md")
OPENING_CHARS = 6_000


class Source(TypedDict):
    """The text of an annual report, and its first pages, which say what the company does."""

    text: str
    opening: str


def source(path: str | None = None) -> Source:
    """Reads an annual report, a text in UTF-8; default: the bundled one, of a company that does not exist.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        text = Path(path or BUNDLED).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"the annual report {path!r} cannot be read ({error}); give the path of a text"
        ) from error
    return Source(text=text, opening=text[:OPENING_CHARS].rpartition("\n\n")[0] or text)
