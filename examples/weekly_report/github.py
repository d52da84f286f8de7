"""Tickets from GitHub: the REST API's list of issues, and `gh issue list --json`."""

from __future__ import annotations

from typing import Any

from weekly_report import ticket_fields as fields
from weekly_report.records import Ticket

Json = dict[str, Any]


def issues(page: Any) -> list[Json] | None:
    """The issues in a page, also in one found by search; None when it is something else."""
    found = page.get("items") if isinstance(page, dict) else page
    if not isinstance(found, list) or (found is page and not found):
        return None
    fit = all(
        isinstance(issue, dict) and "number" in issue and ("title" in issue or "state" in issue)
        for issue in found
    )
    return found if fit else None


def is_pull_request(issue: Json) -> bool:
    """Whether the entry is a pull request: the REST API lists them among the issues."""
    return isinstance(issue.get("pull_request"), dict)


def ticket(issue: Json) -> Ticket:
    """One issue as a ticket."""
    labels = [
        fields.words(label.get("name") if isinstance(label, dict) else label)
        for label in _list(issue, "labels")
    ]
    status = fields.words(issue.get("state")).casefold() or "open"
    reason = fields.words(_either(issue, "state_reason", "stateReason")).casefold().replace("_", " ")
    milestone = issue.get("milestone")
    milestone = milestone if isinstance(milestone, dict) else {}
    priority, rank = fields.label_rank(labels)
    assignee = _assignee(issue)
    return Ticket(
        key=fields.key(issue.get("number")),
        title=fields.words(issue.get("title")) or "(no title)",
        status=f"{status} ({reason})" if reason else status,
        state=fields.state(status, labels, done=status == "closed", begun=any(map(_begun, labels))),
        assignee=fields.words(assignee.get("name") or assignee.get("login")),
        assignee_email=fields.words(assignee.get("email")),
        priority=priority,
        rank=rank,
        due=fields.moment(_either(milestone, "due_on", "dueOn")),
        unread_due=fields.unread(_either(milestone, "due_on", "dueOn")),
        labels=labels,
        created=fields.moment(_either(issue, "created_at", "createdAt")),
        updated=fields.moment(_either(issue, "updated_at", "updatedAt")),
        closed=fields.moment(_either(issue, "closed_at", "closedAt")),
        reopened=reason == "reopened",
        blocked_by=[],
    )


def _begun(label: str) -> bool:
    return fields.state(label.replace("-", " "), []) == "in_progress"


def _either(value: Json, *names: str) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)


def _list(value: Json, name: str) -> list[Any]:
    found = value.get(name)
    return found if isinstance(found, list) else []


def _assignee(issue: Json) -> Json:
    candidates = [issue.get("assignee"), *_list(issue, "assignees")]
    return next((one for one in candidates if isinstance(one, dict)), {})
