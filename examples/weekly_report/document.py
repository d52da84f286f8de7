"""A document as blocks, and the reading of what a writer wrote into blocks.

Text inside a block is plain except for two marks, `code` and **strong**, and for a backslash before a backtick, an
asterisk or a backslash, which shows that sign (`words.escaped`). All else is shown as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Style = Literal["plain", "code", "strong"]


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the title."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True)
class Note:
    """A remark that a reader must not miss."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]
    ordered: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the columns in `numbers` hold numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Details:
    """Blocks that a reader may skip: folded in HTML."""

    summary: str
    blocks: tuple[Block, ...]


Block = Heading | Paragraph | Note | Bullets | Table | Details

_MARKS = re.compile(
    r"\\(?P<escaped>[\\`*])|(?P<ticks>`+)(?P<code>[^`\n]+?)(?P=ticks)(?!`)|\*\*(?P<strong>[^\s*](?:[^*\n]*[^\s*])?)\*\*"
)
_BULLET = re.compile(r"^\s*(?:[-*+•]|\d{1,2}[.)])\s+(?=\S)")


def spans(text: str) -> Iterator[tuple[Style, str]]:
    """The text cut into plain, code and strong pieces."""
    plain, at = "", 0
    for match in _MARKS.finditer(text):
        plain += text[at : match.start()] + (match["escaped"] or "")
        at = match.end()
        if match["escaped"]:
            continue
        if plain:
            yield "plain", plain
        plain = ""
        yield ("code", match["code"]) if match["code"] else ("strong", match["strong"])
    if rest := plain + text[at:]:
        yield "plain", rest


def prose(text: str) -> list[Block]:
    """What a writer wrote, as paragraphs and lists. Headings are dropped: the document has its own."""
    blocks: list[Block] = []
    for part in re.split(r"\n\s*\n", text.strip()):
        lines = [
            line
            for line in part.splitlines()
            if line.strip() and not re.match(r"\s*(#{1,6}\s|```|---+\s*$)", line)
        ]
        blocks.extend(_part(lines))
    return blocks


def _part(lines: list[str]) -> Iterator[Block]:
    running = [line.strip() for line in lines if not _BULLET.match(line)]
    items = tuple(_BULLET.sub("", line).strip() for line in lines if _BULLET.match(line))
    if running:
        yield Paragraph(" ".join(running))
    if items:
        yield Bullets(items)


def cut(items: Iterable[str], limit: int) -> tuple[str, ...]:
    """At most `limit` items, and then how many there are more."""
    found = list(items)
    if len(found) <= limit + 1:
        return tuple(found)
    return (*found[:limit], f"and {len(found) - limit:,} more")
