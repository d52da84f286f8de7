"""Reads a ticket export and tells by its content which of the three known formats it has."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from weekly_report import github, jira, table
from weekly_report.errors import TicketFileError
from weekly_report.records import Ticket, Tickets, TicketSource
from weekly_report.words import clipped, count

MAX_BYTES = 50_000_000

ACCEPTED = (
    'accepted are Jira\'s REST search (`{"issues": [{"key", "fields"}]}`), GitHub\'s issues (the REST list '
    "or `gh issue list --json number,title,state,...`) and CSV whose header names a key and a title or status"
)


def tickets(path: str | None = None) -> Tickets:
    """The tickets of an export; none when there is no path.

    Raises:
        TicketFileError: the file cannot be read, is too large, or has no known format.
    """
    if not path:
        return Tickets(source="none", items=[], notes=[])
    text = _text(path)
    if not text.strip():
        return Tickets(source="empty", items=[], notes=["The ticket file is empty."])
    try:
        return _json(path, text) if text.lstrip()[0] in "[{" else _csv(path, text)
    except RecursionError as error:
        raise TicketFileError(
            f"the ticket file {path!r} is nested too deeply to be tickets; {ACCEPTED}"
        ) from error


def _text(path: str) -> str:
    try:
        file = Path(path).expanduser()
        if not file.is_file():
            what = "is not a file" if file.exists() else "does not exist"
            raise TicketFileError(f"the ticket file {path!r} {what}; give the path of an export, or none")
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise TicketFileError(
                f"the ticket file {path!r} has {size:,} bytes, more than {MAX_BYTES:,}; export fewer tickets"
            )
        return _decoded(file.read_bytes())
    except OSError as error:
        raise TicketFileError(
            f"the ticket file {path!r} cannot be read ({error.strerror}); check it"
        ) from error


def _decoded(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def _json(path: str, text: str) -> Tickets:
    try:
        pages = list(_pages(text))
    except ValueError as error:
        raise TicketFileError(
            f"the ticket file {path!r} begins like JSON but is not ({error}); {ACCEPTED}"
        ) from error
    if all(page == [] for page in pages):
        return Tickets(source="empty", items=[], notes=["The ticket file holds no tickets."])
    if (found := _all(pages, jira.issues)) is not None:
        return _tickets("jira", [jira.ticket(issue) for issue in found])
    if (found := _all(pages, github.issues)) is not None:
        return _github(found)
    raise TicketFileError(f"the ticket file {path!r} is {_described(pages[0])}; {ACCEPTED}")


def _github(found: list[dict[str, Any]]) -> Tickets:
    issues = [issue for issue in found if not github.is_pull_request(issue)]
    result = _tickets("github", [github.ticket(issue) for issue in issues])
    if left_out := len(found) - len(issues):
        result["notes"].append(
            f"The export also lists {count(left_out, 'pull request')}, not counted as tickets."
        )
    return result


def _pages(text: str) -> Iterator[Any]:
    """The JSON values one after the other, as `gh api --paginate` prints them, and the pages in a list."""
    decoder, at = json.JSONDecoder(), 0
    text = text.strip()
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        nested = isinstance(value, list) and value and all(_is_page(part) for part in value)
        yield from value if nested else [value]
        at += len(text[at:]) - len(text[at:].lstrip())


def _is_page(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and isinstance(value.get("issues"), list))


def _all(
    pages: list[Any], issues: Callable[[Any], list[dict[str, Any]] | None]
) -> list[dict[str, Any]] | None:
    found = [issues(page) for page in pages if page != []]
    if any(part is None for part in found):
        return None
    return [issue for part in found if part is not None for issue in part]


def _csv(path: str, text: str) -> Tickets:
    try:
        found = table.rows(text)
    except csv.Error as error:
        raise TicketFileError(
            f"the ticket file {path!r} cannot be read as CSV ({error}); {ACCEPTED}"
        ) from error
    if found is None:
        first = clipped(text.strip().partition("\n")[0], 80)
        raise TicketFileError(f"the ticket file {path!r} begins with {first!r}; {ACCEPTED}")
    return _tickets("csv", [table.ticket(row) for row in found])


def _tickets(source: TicketSource, items: list[Ticket]) -> Tickets:
    """Each key once: where an export lists it twice, as it was last."""
    return Tickets(source=source, items=list({item["key"]: item for item in items}.values()), notes=[])


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return f"a JSON object with the keys {clipped(', '.join(map(repr, value)), 120) or '(none)'}"
    if isinstance(value, list):
        first = value[0]
        return (
            f"a JSON list of {len(value)} whose first element is {_described(first) if value else 'missing'}"
        )
    return f"a JSON {type(value).__name__}"
