"""Tickets from a table: CSV with a header line, separated by commas, semicolons or tabs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from weekly_report import ticket_fields as fields
from weekly_report.records import Ticket

_COLUMNS = {
    "key": "key id issue issuekey issueid ticket ticketid number no nr identifier",
    "title": "title summary subject name description",
    "status": "status state",
    "assignee": "assignee assignedto assigned owner responsible assignees",
    "email": "assigneeemail email owneremail",
    "priority": "priority prio severity urgency",
    "due": "due duedate deadline dueon targetdate dueby",
    "labels": "labels label tags tag",
    "created": "created createdat creationdate opened openedat createdon datecreated",
    "updated": "updated updatedat lastmodified modified modifiedat updatedon",
    "closed": "closed closedat resolved resolvedat resolutiondate completed completedat closedon doneon",
    "reopened": "reopened reopencount reopens timesreopened",
    "blocked": "blockedby blocked blockers dependson",
}
_NAMES = {alias: name for name, aliases in _COLUMNS.items() for alias in aliases.split()}
_TRUE = re.compile(r"^(true|yes|y|x|ja|reopened|[1-9]\d*)$", re.IGNORECASE)

Row = dict[str, list[str]]


def rows(text: str) -> list[Row] | None:
    """The rows by our column names; None when the first line is no header with a key and a title or status.

    Raises:
        csv.Error: the text cannot be read as CSV.
    """
    header_line = text.lstrip("\n").partition("\n")[0]
    delimiter = max(",;\t|", key=header_line.count)
    reader = csv.reader(io.StringIO(text.lstrip("\n"), newline=""), delimiter=delimiter)
    columns = [_NAMES.get(re.sub(r"[^a-z]", "", name.casefold())) for name in next(reader, [])]
    if "key" not in columns or not {"title", "status"} & set(columns):
        return None
    return [row for row in (_row(columns, values) for values in reader) if row.get("key")]


def _row(columns: Sequence[str | None], values: Sequence[str]) -> Row:
    row: Row = {}
    for name, value in zip(columns, values, strict=False):
        if name and (tidy := fields.words(value)):
            row.setdefault(name, []).append(tidy)
    return row


def ticket(row: Row) -> Ticket:
    """One row as a ticket."""

    def cell(name: str) -> str:
        return row.get(name, [""])[0]

    labels = [label for value in row.get("labels", []) for label in re.split(r"[,;|\s]\s*", value) if label]
    blockers = [fields.key(one) for one in re.split(r"[,;\s]+", cell("blocked")) if re.search(r"\d", one)]
    closed = fields.moment(cell("closed"))
    done = None if cell("status") else closed is not None
    state = fields.state(cell("status"), labels, done=done)
    blocked = state != "done" and (blockers or _TRUE.match(cell("blocked")))
    label, label_rank = fields.label_rank(labels)
    return Ticket(
        key=fields.key(cell("key")),
        title=cell("title") or "(no title)",
        status=cell("status"),
        state="blocked" if blocked else state,
        assignee=cell("assignee"),
        assignee_email=cell("email"),
        priority=cell("priority") or label,
        rank=fields.rank(cell("priority")) if cell("priority") else label_rank,
        due=fields.moment(cell("due")),
        unread_due=fields.unread(cell("due")),
        labels=labels,
        created=fields.moment(cell("created")),
        updated=fields.moment(cell("updated")),
        closed=closed,
        reopened=bool(_TRUE.match(cell("reopened"))) or "reopened" in cell("status").casefold(),
        blocked_by=blockers,
    )
