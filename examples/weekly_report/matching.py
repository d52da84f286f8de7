"""Which commits name which tickets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from weekly_report.records import Commit, Mention, Ticket

_KEYS = re.compile(r"(?<![\w#-])([A-Za-z]\w*-\d+)(?![\w-]*\.\w)\b")
_NUMBERS = re.compile(r"(?:(?<![\w/&])#|\bGH-)(\d{1,9})\b", re.IGNORECASE)
_CLOSING = re.compile(r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)\b:?\s+(?:[\w./-]*?)$", re.IGNORECASE)


def mentions(commits: Iterable[Commit], tickets: Iterable[Ticket]) -> dict[str, list[Mention]]:
    """For each ticket that commits name, these commits, newest first. A revert names, but never closes."""
    known = {ticket["key"] for ticket in tickets}
    odd = [key for key in known if not _KEYS.fullmatch(key) and not key.startswith("#")]
    found: dict[str, list[Mention]] = {}
    for commit in commits:
        for key, closes in _named(commit["message"], known, odd).items():
            mention = Mention(hash=commit["hash"], closes=closes and not commit["reverts"])
            found.setdefault(key, []).append(mention)
    return found


def _named(message: str, known: set[str], odd: Iterable[str]) -> dict[str, bool]:
    named: dict[str, bool] = {}
    for key, start in _candidates(message, odd):
        if key in known:
            before = message[max(0, start - 80) : start].rpartition("\n")[2]
            named[key] = named.get(key, False) or _closes(before)
    return named


def _candidates(message: str, odd: Iterable[str]) -> Iterator[tuple[str, int]]:
    for match in _KEYS.finditer(message):
        yield match[1].upper(), match.start()
    for match in _NUMBERS.finditer(message):
        yield f"#{int(match[1])}", match.start()
    for key in odd:
        for match in re.finditer(rf"(?<!\w){re.escape(key)}(?!\w)", message, re.IGNORECASE):
            yield key, match.start()


def _closes(before: str) -> bool:
    """Whether the words before a key close it, also as one of several: `fixes PROJ-1, PROJ-2 and #3`."""
    key = r"(?:[A-Za-z]\w*-\d+|#\d+)"
    return bool(_CLOSING.search(re.sub(rf"(?:{key}(?:\s*,\s*|\s+and\s+|\s*&\s*))+$", "", before)))
