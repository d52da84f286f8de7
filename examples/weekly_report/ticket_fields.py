"""What the words in ticket fields mean: priorities, states, dates, keys."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any

from weekly_report.records import TicketState

NORMAL = 2

_RANKS = (
    (0, r"blocker|critical|urgent|emergency|highest|p0|sev ?[01]|showstopper"),
    (1, r"high|major|important|p1|sev ?2"),
    (3, r"low|minor|p3"),
    (4, r"lowest|trivial|p4|p5|nice to have|someday"),
    (2, r"medium|normal|moderate|p2"),
)
_BLOCKED = re.compile(r"\b(blocked|on hold|impediment|waiting for)\b", re.IGNORECASE)
_DONE = re.compile(
    r"^(done|closed|complete|completed|resolved|fixed|finished|cancell?ed|won'?t (do|fix)|released"
    r"|merged|rejected|duplicate|invalid|deployed|shipped|not planned|erledigt)$",
    re.IGNORECASE,
)
_BEGUN = re.compile(
    r"\b(in progress|doing|started|active|in development|review|in test|testing|qa|wip|ongoing)\b",
    re.IGNORECASE,
)
_MONTHS = {
    name: number
    for number, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), start=1)  # noqa: SIM905
}


def words(value: Any) -> str:
    """A field as one line of text; anything else than text or a number is empty."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    kept = "".join(sign if sign.isprintable() else " " for sign in str(value))
    return " ".join(kept.split())


def rank(*texts: str) -> int:
    """The priority as a number, 0 (urgent) to 4 (least), from the first text that names one."""
    for given in texts:
        plain = re.sub(r"[\W_]+", " ", given.casefold()).strip()
        for number, pattern in sorted(_RANKS, key=lambda pair: pair[0] == NORMAL):
            if re.search(rf"\b({pattern})\b", plain):
                return number
        if re.fullmatch(r"[1-5]", plain):
            return int(plain) - 1
    return NORMAL


def label_rank(labels: Iterable[str]) -> tuple[str, int]:
    """The label that names a priority, with its rank; `("", 2)` when none does."""
    for label in labels:
        found = rank(label)
        named = re.search(r"prio|sever|^p[0-5]$", label, re.IGNORECASE)
        if found == 0 or (
            named and (found != NORMAL or re.search(r"medium|normal|p2", label, re.IGNORECASE))
        ):
            return label, found
    return "", NORMAL


def state(
    status: str, labels: Iterable[str], *, done: bool | None = None, begun: bool = False
) -> TicketState:
    """The state that the tracker's words mean; `done` and `begun` when the tracker knows them."""
    if done or (done is None and _DONE.search(status)):
        return "done"
    if blocks(status) or any(map(blocks, labels)):
        return "blocked"
    return "in_progress" if begun or _BEGUN.search(status) else "open"


def blocks(text: str) -> bool:
    """Whether a status or a label says that the ticket cannot go on."""
    return bool(_BLOCKED.search(re.sub(r"[-_]", " ", text)))


def is_done(status: str) -> bool:
    """Whether the word means that nothing is left to do."""
    return bool(_DONE.search(status))


def moment(value: Any) -> str | None:
    """The date or time in ISO form, in UTC when it has a zone; None without one that has a single reading."""
    given = words(value)
    if not given:
        return None
    try:
        return _iso(given)
    except ValueError:
        found = _written(given)
    return None if found is None else found.isoformat()


def unread(value: Any) -> str:
    """What stands where a date should, when `moment` does not read it."""
    return "" if moment(value) else words(value)


def _iso(given: str) -> str:
    if re.fullmatch(r"\d{4}-\d\d-\d\d", given):
        return date.fromisoformat(given).isoformat()
    found = datetime.fromisoformat(re.sub(r"\s(?=[+-]\d\d:?\d\d$)|\s?UTC$", "", given))
    return (found.astimezone(UTC) if found.tzinfo else found).isoformat(timespec="seconds")


def _written(given: str) -> date | None:
    """`31/Jan/26`, `31 January 2026`, `31.01.2026`, `2026/1/31`, and `31/01/2026` if it has one reading."""
    if match := re.match(r"(\d{1,2})[ /.-]+([A-Za-z]{3})[a-z]*[ /.,-]+(\d{4}|\d\d)\b", given):
        return _date(match[3], str(_MONTHS.get(match[2].casefold(), 0)), match[1])
    if match := re.match(r"([A-Za-z]{3})[a-z]*\.? (\d{1,2}),? (\d{4})\b", given):
        return _date(match[3], str(_MONTHS.get(match[1].casefold(), 0)), match[2])
    if match := re.match(r"(\d{1,2})\.(\d{1,2})\.(\d{4}|\d\d)\b", given):
        return _date(match[3], match[2], match[1])
    if match := re.match(r"(\d{4})/(\d{1,2})/(\d{1,2})\b", given):
        return _date(match[1], match[2], match[3])
    if match := re.match(r"(\d{1,2})/(\d{1,2})/(\d{4}|\d\d)\b", given):
        readings = {_date(match[3], match[2], match[1]), _date(match[3], match[1], match[2])} - {None}
        return readings.pop() if len(readings) == 1 else None
    return None


def _date(year: str, month: str, day: str) -> date | None:
    try:
        return date(int(year) + (2000 if len(year) == 2 else 0), int(month), int(day))
    except ValueError:
        return None


def key(value: Any) -> str:
    """A key as commits write it: `PROJ-12` in capitals, `#12` for a bare number, else the text without marks."""
    given = words(value).lstrip("#")
    if given.isdigit():
        return f"#{int(given)}" if given.isascii() else f"#{given}"
    return given.upper() if re.fullmatch(r"[A-Za-z]\w*-\d+", given) else re.sub(r"[\\`*]", "", given)
