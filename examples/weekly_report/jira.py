"""Tickets from Jira's REST search: `{"issues": [{"key": ..., "fields": {...}}]}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weekly_report import ticket_fields as fields
from weekly_report.records import Ticket

Json = dict[str, Any]


def issues(page: Any) -> list[Json] | None:
    """The issues in a page of a search, or in a list of issues; None when it is something else."""
    found = page.get("issues") if isinstance(page, dict) else page
    if not isinstance(found, list) or (found is page and not found):
        return None
    return (
        found
        if all(isinstance(issue, dict) and "fields" in issue and "key" in issue for issue in found)
        else None
    )


def ticket(issue: Json) -> Ticket:
    """One issue as a ticket."""
    given = _table(issue, "fields")
    status = _table(given, "status")
    category = _table(status, "statusCategory").get("key")
    assignee = _table(given, "assignee")
    priority = fields.words(_table(given, "priority").get("name"))
    labels = [fields.words(label) for label in _list(given, "labels")]
    blockers = list(_blockers(given))
    done = None if category is None else category == "done"
    name = fields.words(status.get("name"))
    state = fields.state(name, labels, done=done, begun=category == "indeterminate")
    return Ticket(
        key=fields.key(issue.get("key")),
        title=fields.words(given.get("summary")) or "(no title)",
        status=name,
        state="blocked" if blockers and state != "done" else state,
        assignee=fields.words(assignee.get("displayName") or assignee.get("name")),
        assignee_email=fields.words(assignee.get("emailAddress")),
        priority=priority,
        rank=fields.rank(priority),
        due=fields.moment(given.get("duedate")),
        unread_due=fields.unread(given.get("duedate")),
        labels=labels,
        created=fields.moment(given.get("created")),
        updated=fields.moment(given.get("updated")),
        closed=fields.moment(given.get("resolutiondate")),
        reopened="reopened" in name.casefold() or _reopened(issue),
        blocked_by=blockers,
    )


def _table(value: Json, name: str) -> Json:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _list(value: Json, name: str) -> list[Any]:
    found = value.get(name)
    return found if isinstance(found, list) else []


def _blockers(given: Json) -> Iterator[str]:
    """Keys of the unfinished issues that block this one."""
    for link in _list(given, "issuelinks"):
        if (
            not isinstance(link, dict)
            or "blocked" not in fields.words(_table(link, "type").get("inward")).casefold()
        ):
            continue
        other = _table(link, "inwardIssue")
        status = _table(_table(other, "fields"), "status")
        done = _table(status, "statusCategory").get("key") == "done" or fields.is_done(
            fields.words(status.get("name"))
        )
        if other and not done:
            yield fields.key(other.get("key"))


def _reopened(issue: Json) -> bool:
    """Whether the exported changelog shows a way back from a finished status."""
    return any(
        fields.is_done(fields.words(change.get("fromString")))
        and not fields.is_done(fields.words(change.get("toString")))
        for entry in _list(_table(issue, "changelog"), "histories")
        if isinstance(entry, dict)
        for change in _list(entry, "items")
        if isinstance(change, dict) and change.get("field") == "status"
    )
