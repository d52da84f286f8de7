"""The values that the tools pass to each other: dictionaries of strings, numbers, lists and booleans.

Dates are ISO 8601 strings, with or without a time.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

FileStatus = Literal["added", "changed", "removed", "renamed", "copied"]
TicketState = Literal["open", "in_progress", "blocked", "done"]
TicketSource = Literal["none", "empty", "jira", "github", "csv"]
Severity = Literal["high", "medium", "low"]
ProblemKind = Literal[
    "revert", "reopened", "hotfix", "repeated_fix", "many_hands", "overdue", "blocked", "unread_due"
]


class Identity(TypedDict):
    """A name and an email, as git or a ticket gives them."""

    name: str
    email: str


class FileChange(TypedDict):
    """What a commit did to a file. `old_path` is set for renames and copies; a binary file has no lines."""

    path: str
    old_path: str | None
    status: FileStatus
    insertions: int
    deletions: int
    binary: bool


class Commit(TypedDict):
    """A commit. A merge has no files and no lines of its own, so that nothing counts twice.

    `boundary` marks the oldest commit of a shallow clone: what it changed is not known.
    `file_count` is the true number; `files` may be cut.
    """

    hash: str
    author: Identity
    co_authors: list[Identity]
    date: str
    authored: str
    timestamp: int
    subject: str
    message: str
    merge: bool
    root: bool
    boundary: bool
    reverts: list[str]
    files: list[FileChange]
    file_count: int
    insertions: int
    deletions: int


class History(TypedDict):
    """The commits of the period, newest first, and what a reader must know about them.

    An outline is a history whose commits have no files and no lines yet. `split` are the folders that are modules by
    their own folders.
    """

    repository: str
    branch: str | None
    since: str
    until: str
    items: list[Commit]
    split: list[str]
    latest: str | None
    shallow: bool
    truncated: bool
    notes: list[str]


class Ticket(TypedDict):
    """A ticket.

    `rank` is the priority as a number: 0 is the most urgent, 2 the normal one, 4 the least.
    `unread_due` is what the export gives as due date when that is no date with a single reading.
    """

    key: str
    title: str
    status: str
    state: TicketState
    assignee: str
    assignee_email: str
    priority: str
    rank: int
    due: str | None
    unread_due: str
    labels: list[str]
    created: str | None
    updated: str | None
    closed: str | None
    reopened: bool
    blocked_by: list[str]


class Tickets(TypedDict):
    """The tickets of an export."""

    source: TicketSource
    items: list[Ticket]
    notes: list[str]


class Mention(TypedDict):
    """A commit names a ticket; `closes` when it says that the ticket is done."""

    hash: str
    closes: bool


class Share(TypedDict):
    """How much of somebody's work went into a module."""

    module: str
    commits: int
    lines: int


class Member(TypedDict):
    """Somebody, as far as messages and tickets tell; `own` and `shared` are hashes of commits, merges left out."""

    name: str
    emails: list[str]
    bot: bool
    own: list[str]
    shared: list[str]
    merges: int
    partners: list[str]
    tickets_named: list[str]
    tickets_closed: list[str]
    tickets_open: list[str]


class Person(TypedDict):
    """What somebody did; lines are those in files that people write.

    `hashes` are the commits written or co-written, merges left out, largest first.
    """

    name: str
    emails: list[str]
    bot: bool
    commits: int
    co_authored: int
    merges: int
    insertions: int
    deletions: int
    files: int
    modules: list[Share]
    hashes: list[str]
    partners: list[str]
    tickets_named: list[str]
    tickets_closed: list[str]
    tickets_open: list[str]


class People(TypedDict):
    """Everybody who committed or closed a ticket, most commits first."""

    items: list[Person]


class Module(TypedDict):
    """What happened in a part of the repository. `written`: changed lines in files that people write line by line."""

    name: str
    commits: int
    people: list[str]
    files: int
    insertions: int
    deletions: int
    written: int


class Modules(TypedDict):
    """The parts of the repository that changed, most commits first; those without written lines last."""

    items: list[Module]


class Problem(TypedDict):
    """Something that needs a look, as a sentence. `evidence` holds hashes, ticket keys and paths."""

    kind: ProblemKind
    severity: Severity
    title: str
    detail: str
    evidence: list[str]
    people: list[str]


class Problems(TypedDict):
    """All problems, most severe first."""

    items: list[Problem]


class Step(TypedDict):
    """A ticket for next week and why."""

    key: str
    title: str
    assignee: str
    reasons: list[str]
    commits: list[str]


class Plan(TypedDict):
    """Next week: tickets in order, and how many wait."""

    steps: list[Step]
    waiting: int
    open: int


class Brief(TypedDict):
    """What a writer needs to know about a person: sentences in groups, most important first."""

    name: str
    emails: list[str]
    facts: list[list[str]]


class Assignment(TypedDict):
    """All that is needed to tell what a member of the team did, but for the changes in `commits`.

    `reverted` and `tickets` are those of this person, `steps` the next ones.
    """

    member: Member
    alone: bool
    split: list[str]
    commits: list[Commit]
    reverted: list[str]
    tickets: list[Ticket]
    steps: list[Step]


class Work(TypedDict):
    """What a member of the team did: the commits, with their changes, and the facts that they tell."""

    brief: Brief
    commits: list[Commit]


class Summary(TypedDict):
    """What the writer of the overview needs to know, and the highlights."""

    overview: list[list[str]]
    highlights: list[str]


class Draft(TypedDict):
    """A section to be edited, and the facts that it may tell."""

    name: str
    facts: list[list[str]]
    text: str


class Findings(TypedDict):
    """All that the tools found out."""

    history: History
    tickets: Tickets
    people: People
    modules: Modules
    problems: Problems
    plan: Plan
    summary: Summary
    briefs: list[Brief]


class Figure(TypedDict):
    """A key figure."""

    label: str
    value: str


class Report(TypedDict):
    """The report, written twice, with its key figures."""

    title: str
    period: str
    markdown: str
    html: str
    figures: list[Figure]
    problems: int
    people: list[str]
