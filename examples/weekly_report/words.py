"""English forms: plurals, lists, dates, quotations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime

_MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 commit`, `2 commits`, `1,204 files`; `plural` for the irregular ones."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(items: Sequence[str], *, limit: int | None = None, rest: str = "more") -> str:
    """`a`, `a and b`, `a, b and c`, `a, b and 4 more`."""
    shown = list(items)
    if limit is not None and len(shown) > limit:
        shown = [*shown[:limit], f"{len(shown) - limit:,} {rest}"]
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def lines(insertions: int, deletions: int) -> str:
    """`120 lines added, 1 removed`, without the part that is nothing."""
    if not insertions and not deletions:
        return "no lines changed"
    if not deletions:
        return f"{count(insertions, 'line')} added"
    if not insertions:
        return f"{count(deletions, 'line')} removed"
    return f"{count(insertions, 'line')} added, {deletions:,} removed"


def clipped(text: str, limit: int = 100) -> str:
    """One line of at most `limit` characters, cut at a word."""
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    space = head.rfind(" ")
    return (head[:space] if space > limit // 2 else head).rstrip(" ,;:.-") + "…"


def escaped(text: str) -> str:
    """Other people's text, so that it shows as it stands: what looks like a mark of `document` is none."""
    return re.sub(r"[\\`*]", r"\\\g<0>", text)


def quoted(text: str, limit: int = 100) -> str:
    """Other people's text in quotation marks, on one line, without its final stop."""
    text = clipped(text, limit)
    return f"“{escaped(text.removesuffix('.'))}”"


def code(text: str) -> str:
    """A path or a hash, marked as code."""
    return f"`{text.replace('`', chr(39))}`"


def sentence(text: str) -> str:
    """One line, with a capital and a final stop."""
    text = " ".join(text.split())
    if not text:
        return ""
    text = text[0].upper() + text[1:] if text[0].islower() and not _is_name(text) else text
    return text if re.search(r"[.!?…][”\"')]*$", text) else text + "."


def _is_name(text: str) -> bool:
    """Whether the first word is an identifier, whose case matters."""
    first = text.split(" ", 1)[0].rstrip(".,;:!?")
    return bool(re.search(r"[_./(A-Z0-9]", first))


def first_sentence(text: str, limit: int = 220) -> str:
    """The first sentence of a paragraph, or its beginning when the sentence is long."""
    text = " ".join(text.split())
    match = re.search(r"(?<=[a-z0-9)\]”\"'`][.!?])\s+(?=[A-Z“\"'`(])", text)
    return clipped(text[: match.start()] if match else text, limit)


def date_of(iso: str) -> date:
    """The day of an ISO date or time, as written in it."""
    return date.fromisoformat(iso[:10])


def day(iso: str, *, year: bool = True) -> str:
    """`29 November 2026`."""
    value = date_of(iso)
    return f"{value.day} {_MONTHS[value.month - 1]}" + (f" {value.year}" if year else "")


def short_day(iso: str) -> str:
    """`29 Nov`."""
    value = date_of(iso)
    return f"{value.day} {_MONTHS[value.month - 1][:3]}"


def period(since: str, until: str) -> str:
    """`22 to 29 November 2026`, `28 December 2026 to 3 January 2027`."""
    first, last = date_of(since), date_of(until)
    if first == last:
        return day(until)
    if (first.year, first.month) == (last.year, last.month):
        return f"{first.day} to {day(until)}"
    return f"{day(since, year=first.year != last.year)} to {day(until)}"


def local_iso(timestamp: int) -> str:
    """A Unix time as an ISO time in the zone of this machine."""
    return datetime.fromtimestamp(timestamp).astimezone().isoformat(timespec="seconds")
