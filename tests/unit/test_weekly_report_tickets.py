"""Ticket exports: three formats told apart by content, and everything that is none of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from weekly_report import tickets as tickets_module
from weekly_report.errors import TicketFileError
from weekly_report.records import Ticket, Tickets
from weekly_report.ticket_fields import key, label_rank, moment, rank, state
from weekly_report.tickets import tickets


def jira_issue(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "key": f"PROJ-{number}",
        "fields": {
            "summary": f"Task {number}",
            "status": {"name": "To Do", "statusCategory": {"key": "new"}},
            **fields,
        },
    }


def read(tmp_path: Path, content: str | bytes | object, name: str = "export") -> Tickets:
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return tickets(str(file))


def one(found: Tickets) -> Ticket:
    [ticket] = found["items"]
    return ticket


def test_no_path_means_no_tickets() -> None:
    nothing = Tickets(source="none", items=[], notes=[])
    assert tickets(None) == nothing
    assert tickets("") == nothing


def test_a_jira_search_is_read_with_priority_due_date_and_assignee(tmp_path: Path) -> None:
    issue = jira_issue(
        12,
        summary="Retry  payments",
        status={"name": "In Arbeit", "statusCategory": {"key": "indeterminate"}},
        assignee={"displayName": "Author One", "emailAddress": "one@example.org"},
        priority={"name": "Highest"},
        duedate="2026-12-03",
        created="2026-11-20T09:00:00.000+0100",
        labels=["payments"],
    )
    ticket = one(read(tmp_path, {"issues": [issue], "total": 1}))
    assert ticket == {
        "key": "PROJ-12",
        "title": "Retry payments",
        "status": "In Arbeit",
        "state": "in_progress",
        "assignee": "Author One",
        "assignee_email": "one@example.org",
        "priority": "Highest",
        "rank": 0,
        "due": "2026-12-03",
        "unread_due": "",
        "labels": ["payments"],
        "created": "2026-11-20T08:00:00+00:00",
        "updated": None,
        "closed": None,
        "reopened": False,
        "blocked_by": [],
    }


def test_a_jira_changelog_shows_that_a_ticket_was_reopened(tmp_path: Path) -> None:
    change = {"items": [{"field": "status", "fromString": "Done", "toString": "To Do"}]}
    reopened = jira_issue(1) | {"changelog": {"histories": [change]}}
    assert [
        ticket["reopened"] for ticket in read(tmp_path, {"issues": [reopened, jira_issue(2)]})["items"]
    ] == [
        True,
        False,
    ]


def test_a_jira_ticket_is_blocked_by_unfinished_links_only(tmp_path: Path) -> None:
    def link(number: int, category: str) -> dict[str, Any]:
        other = jira_issue(number, status={"name": "?", "statusCategory": {"key": category}})
        return {"type": {"inward": "is blocked by"}, "inwardIssue": other}

    found = read(
        tmp_path,
        {"issues": [jira_issue(1, issuelinks=[link(7, "new")]), jira_issue(2, issuelinks=[link(8, "done")])]},
    )
    assert [(ticket["state"], ticket["blocked_by"]) for ticket in found["items"]] == [
        ("blocked", ["PROJ-7"]),
        ("open", []),
    ]


def test_jira_pages_are_joined_and_a_key_counts_once(tmp_path: Path) -> None:
    pages = [{"issues": [jira_issue(1), jira_issue(2)]}, {"issues": [jira_issue(2, summary="Newer")]}]
    for content in (json.dumps(pages), "\n".join(map(json.dumps, pages))):
        found = read(tmp_path, content)
        assert [(ticket["key"], ticket["title"]) for ticket in found["items"]] == [
            ("PROJ-1", "Task 1"),
            ("PROJ-2", "Newer"),
        ]


def test_an_issue_with_null_and_odd_fields_is_still_a_ticket(tmp_path: Path) -> None:
    odd = {
        "key": "PROJ-1",
        "fields": {"summary": None, "status": None, "labels": "x", "priority": [], "duedate": 5},
    }
    assert one(read(tmp_path, {"issues": [odd]}))["title"] == "(no title)"


def test_the_github_rest_list_is_read_without_its_pull_requests(tmp_path: Path) -> None:
    issue = {
        "number": 12,
        "title": "Broken list",
        "state": "open",
        "state_reason": "reopened",
        "assignee": {"login": "author-one"},
        "labels": [{"name": "P1"}, {"name": "blocked"}],
        "milestone": {"due_on": "2026-12-03T08:00:00Z"},
        "created_at": "2026-11-20T09:00:00Z",
    }
    pull = {"number": 13, "title": "Mend it", "state": "open", "pull_request": {"url": ""}}
    found = read(tmp_path, [issue, pull])
    ticket = one(found)
    assert (ticket["key"], ticket["state"], ticket["rank"], ticket["priority"]) == ("#12", "blocked", 1, "P1")
    assert (ticket["reopened"], ticket["assignee"], ticket["due"]) == (
        True,
        "author-one",
        "2026-12-03T08:00:00+00:00",
    )
    assert found["notes"] == ["The export also lists 1 pull request, not counted as tickets."]


def test_the_answer_of_gh_is_read(tmp_path: Path) -> None:
    issue = {
        "number": 3,
        "title": "Old",
        "state": "CLOSED",
        "stateReason": "COMPLETED",
        "assignees": [{"login": "author-two", "name": "Author Two"}],
        "labels": [],
        "closedAt": "2026-11-27T10:00:00Z",
    }
    ticket = one(read(tmp_path, [issue]))
    assert (ticket["state"], ticket["assignee"], ticket["closed"]) == (
        "done",
        "Author Two",
        "2026-11-27T10:00:00+00:00",
    )


def test_a_csv_with_other_names_separators_and_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    text = (
        "Issue Key;Summary;Status;Assignee;Priority;Due Date;Labels;Labels;Reopened;Blocked by\r\n"
        'proj-1;"Größe; and\nmore";In Progress;Author One;High;03.12.2026;web;api;yes;PROJ-9\r\n'
        ";no key;;;;;;;;\r\n"
    )
    for data in (text.encode("utf-8-sig"), text.encode("utf-16"), text.encode("cp1252")):
        ticket = one(read(tmp_path, data))
        assert (ticket["key"], ticket["title"], ticket["rank"]) == ("PROJ-1", "Größe; and more", 1)
        assert (ticket["state"], ticket["due"], ticket["labels"]) == ("blocked", "2026-12-03", ["web", "api"])
        assert (ticket["reopened"], ticket["blocked_by"]) == (True, ["PROJ-9"])


def test_a_due_date_that_cannot_be_read_is_kept_as_it_stands(tmp_path: Path) -> None:
    table = read(tmp_path, "id,title,due\n1,One,03/12/2026\n2,Two,2026-12-03\n3,Three,\n")
    assert [(ticket["due"], ticket["unread_due"]) for ticket in table["items"]] == [
        (None, "03/12/2026"),
        ("2026-12-03", ""),
        (None, ""),
    ]
    jira = one(read(tmp_path, {"issues": [jira_issue(1, duedate="soon")]}))
    milestone = {"due_on": "someday"}
    github = one(read(tmp_path, [{"number": 1, "title": "One", "state": "open", "milestone": milestone}]))
    assert (jira["unread_due"], github["unread_due"]) == ("soon", "someday")


def test_the_name_of_the_file_does_not_matter(tmp_path: Path) -> None:
    assert read(tmp_path, "id,title\n1,One\n", "export.json")["source"] == "csv"
    assert read(tmp_path, {"issues": [jira_issue(1)]}, "export.csv")["source"] == "jira"


@pytest.mark.parametrize("content", [b"", b" \n", b"\xef\xbb\xbf", b"[]", b"[]\n[]"])
def test_an_empty_export_is_no_error(tmp_path: Path, content: bytes) -> None:
    found = read(tmp_path, content)
    assert (found["source"], found["items"], len(found["notes"])) == ("empty", [], 1)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ('{"data": [], "meta": 1}', "a JSON object with the keys 'data', 'meta'"),
        ('[{"name": "x"}]', "a JSON list of 1 whose first element is a JSON object with the keys 'name'"),
        ('{"issues": [{"key": "PROJ-1"}]}', "the keys 'issues'"),
        ('{"issues": [', "begins like JSON but is not"),
        ("[" * 200_000, "nested too deeply"),
        ("first,second\n1,2\n", "begins with 'first,second'"),
        ("%PDF-1.4 \x00\x01", "begins with '%PDF-1.4"),
        ("id,title\n1," + "x" * 200_000, "cannot be read as CSV"),
    ],
)
def test_an_unknown_format_is_told_with_what_was_seen_and_what_is_accepted(
    tmp_path: Path, content: str, seen: str
) -> None:
    with pytest.raises(TicketFileError) as caught:
        read(tmp_path, content)
    message = str(caught.value)
    assert seen in message
    assert all(name in message for name in ("Jira", "GitHub", "CSV", "export"))
    assert "\n" not in message


def test_a_missing_file_a_folder_and_a_huge_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TicketFileError, match="does not exist"):
        tickets(str(tmp_path / "nowhere"))
    with pytest.raises(TicketFileError, match="is not a file"):
        tickets(str(tmp_path))
    monkeypatch.setattr(tickets_module, "MAX_BYTES", 3)
    with pytest.raises(TicketFileError, match="more than 3"):
        read(tmp_path, "id,title\n")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-12-03", "2026-12-03"),
        ("2026-12-03 10:30", "2026-12-03T10:30:00"),
        ("2026-12-03T10:30:00.000+0100", "2026-12-03T09:30:00+00:00"),
        ("03/Dec/26 9:15 AM", "2026-12-03"),
        ("3 December 2026", "2026-12-03"),
        ("Dec 3, 2026", "2026-12-03"),
        ("3.12.2026", "2026-12-03"),
        ("25/12/2026", "2026-12-25"),
        ("12/25/2026", "2026-12-25"),
        ("03/12/2026", None),
        ("31.02.2026", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_dates_are_read_when_they_have_one_reading(given: str | None, expected: str | None) -> None:
    assert moment(given) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Critical", 0),
        ("P1", 1),
        ("Medium", 2),
        ("", 2),
        ("minor", 3),
        ("Lowest", 4),
        ("1", 0),
        ("1 - High", 1),
    ],
)
def test_priorities_become_ranks(text: str, expected: int) -> None:
    assert rank(text) == expected


def test_a_label_names_a_priority_only_when_it_says_so() -> None:
    assert label_rank(["good first issue", "priority: high"]) == ("priority: high", 1)
    assert label_rank(["major-rewrite", "docs"]) == ("", 2)


def test_states_and_keys_follow_the_words() -> None:
    assert state("Won't fix", []) == "done"
    assert state("On hold", []) == "blocked"
    assert state("Code in progress", []) == "in_progress"
    assert state("Backlog", []) == "open"
    assert [key(value) for value in ("proj-1", 12, "#012", "T 5")] == ["PROJ-1", "#12", "#12", "T 5"]
