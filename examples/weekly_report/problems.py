"""Finds what needs a look: reverts, hurried fixes, files of many hands, tickets reopened, late, blocked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from weekly_report.identities import Identities, known
from weekly_report.paths import is_bulk, is_shared, is_test
from weekly_report.records import (
    Commit,
    History,
    Problem,
    ProblemKind,
    Problems,
    Severity,
    Ticket,
    Tickets,
)
from weekly_report.ticket_fields import blocks
from weekly_report.words import code, count, date_of, day, escaped, first_sentence, listed, quoted, sentence

SOON_S = 2 * 86_400
MANY = 3
LONG_OVERDUE_DAYS = 7

_ORDER = {"high": 0, "medium": 1, "low": 2}
_HOTFIX = re.compile(
    r"\bhot-?\s?fix(es|ed)?\b|\b(urgent|emergency)\b.{0,20}\bfix|\bfix\b.{0,20}\b(production|prod|outage)\b",
    re.IGNORECASE,
)
_RESTORES = re.compile(r'(Reapply|Revert "(Revert|Reapply)) ')
_REASON = re.compile(
    r"this reverts commit [0-9a-f]{7,64}[^.]*\.\s+(?![\w-]+: )(\S.*)", re.IGNORECASE | re.DOTALL
)
_FIX = re.compile(r"^([\w-]+(\([^)]*\))?!?: *)?((bug|hot)-?)?fix(e[sd]|ing)?\b|\bregression\b", re.IGNORECASE)


def problems(history: History, tickets: Tickets) -> Problems:
    """All problems of the period, most severe first, each with its evidence."""
    commits = history["items"]
    identities = known(history, tickets)
    found = [
        *_reverts(commits, identities),
        *_reopened(tickets["items"], identities),
        *_overdue(tickets["items"], history["until"], identities),
        *_blocked(tickets["items"], identities),
        *_unread_due(tickets["items"]),
        *_hotfixes(commits, identities),
        *_repeated_fixes(commits, identities),
        *_many_hands(commits, identities),
    ]
    return Problems(items=sorted(found, key=lambda problem: _ORDER[problem["severity"]]))


def is_fix(commit: Commit) -> bool:
    """Whether the commit says that it mends something."""
    return not commit["merge"] and not commit["reverts"] and bool(_FIX.search(commit["subject"]))


def reverted(commits: list[Commit]) -> set[str]:
    """The hashes of what was taken back; an outline of the commits is enough."""
    return {original["hash"] if original else start for _, start, original in _taken_back(commits)}


def _taken_back(commits: list[Commit]) -> Iterator[tuple[Commit, str, Commit | None]]:
    """A revert, the hash that it names, and the commit of the period that this is."""
    for commit in commits:
        for start in commit["reverts"] if not _RESTORES.match(commit["subject"]) else ():
            yield commit, start, _find(commits, start)


def _reverts(commits: list[Commit], identities: Identities) -> Iterator[Problem]:
    for commit, start, original in _taken_back(commits):
        who = listed(_names([commit], identities))
        undone = _is_reverted(commit, commits)
        yield Problem(
            kind="revert",
            severity="low" if undone else "medium",
            title=f"{quoted(_reverted_subject(commit, original))} was reverted",
            detail=f"{who} {_revert_detail(commit, original, undone=undone)}",
            evidence=[commit["hash"], original["hash"] if original else start],
            people=_names([commit, *([original] if original else [])], identities),
        )


def _find(commits: Iterable[Commit], start: str) -> Commit | None:
    return next((commit for commit in commits if commit["hash"].startswith(start)), None)


def _is_reverted(commit: Commit, commits: Iterable[Commit]) -> bool:
    return any(commit["hash"].startswith(start) for other in commits for start in other["reverts"])


def _reverted_subject(commit: Commit, original: Commit | None) -> str:
    if original:
        return original["subject"]
    quotation = re.search(r'"(.+)"', commit["subject"])
    return quotation[1] if quotation else commit["subject"]


def _revert_detail(commit: Commit, original: Commit | None, *, undone: bool) -> str:
    if original is None:
        since = "it was made before this period"
    else:
        days = (date_of(commit["date"]) - date_of(original["date"])).days
        since = f"{count(days, 'day')} after it was made" if days else "on the day it was made"
    reason = _REASON.search(commit["message"])
    why = f" The reason given: {sentence(escaped(first_sentence(reason[1])))}" if reason else ""
    later = ", and it was restored later" if undone else ""
    return f"took it back on {day(commit['date'])}, {since}{later}.{why}"


def _reopened(tickets: Iterable[Ticket], identities: Identities) -> Iterator[Problem]:
    for ticket in tickets:
        if ticket["reopened"]:
            done = ticket["state"] == "done"
            detail = "done again by now" if done else f"it is open again{_with(ticket, identities)}"
            severity: Severity = "low" if done else "high"
            yield _about(ticket, identities, "reopened", severity, "was reopened", detail)


def _overdue(tickets: Iterable[Ticket], now: str, identities: Identities) -> Iterator[Problem]:
    for ticket in tickets:
        if ticket["due"] is None or ticket["state"] == "done":
            continue
        late = (date_of(now) - date_of(ticket["due"])).days
        if late > 0:
            severity: Severity = "high" if late > LONG_OVERDUE_DAYS or ticket["rank"] < 2 else "medium"
            detail = (
                f"it was due on {day(ticket['due'])}, {count(late, 'day')} ago{_with(ticket, identities)}"
            )
            yield _about(ticket, identities, "overdue", severity, "is overdue", detail)


def _blocked(tickets: Iterable[Ticket], identities: Identities) -> Iterator[Problem]:
    for ticket in tickets:
        if ticket["state"] == "blocked":
            detail = _blocker(ticket) + _with(ticket, identities)
            severity: Severity = "high" if ticket["rank"] < 2 else "medium"
            yield _about(ticket, identities, "blocked", severity, "is blocked", detail)


def _blocker(ticket: Ticket) -> str:
    """What the tracker says about why the ticket is blocked."""
    if ticket["blocked_by"]:
        return f"it waits for {listed(ticket['blocked_by'])}"
    if blocks(ticket["status"]):
        return f"its status is {quoted(ticket['status'])}"
    labels = [quoted(label) for label in ticket["labels"] if blocks(label)]
    return f"its label is {listed(labels)}" if labels else "the export marks it so"


def _unread_due(tickets: Iterable[Ticket]) -> Iterator[Problem]:
    unread = [ticket for ticket in tickets if ticket["unread_due"] and ticket["state"] != "done"]
    if unread:
        told = listed([f"{ticket['key']} {quoted(ticket['unread_due'], 40)}" for ticket in unread])
        many = len(unread) > 1
        yield Problem(
            kind="unread_due",
            severity="medium",
            title=f"{count(len(unread), 'due date')} cannot be read",
            detail=f"Write {'them' if many else 'it'} as 2026-01-31: {told}.",
            evidence=[ticket["key"] for ticket in unread],
            people=[],
        )


def _with(ticket: Ticket, identities: Identities) -> str:
    return f"; {identities.owner(ticket) or 'nobody'} has it"


def _about(
    ticket: Ticket, identities: Identities, kind: ProblemKind, severity: Severity, what: str, detail: str
) -> Problem:
    return Problem(
        kind=kind,
        severity=severity,
        title=f"{ticket['key']} {quoted(ticket['title'])} {what}",
        detail=sentence(detail),
        evidence=[ticket["key"], *ticket["blocked_by"]] if kind == "blocked" else [ticket["key"]],
        people=[who] if (who := identities.owner(ticket)) else [],
    )


def _hotfixes(commits: Iterable[Commit], identities: Identities) -> Iterator[Problem]:
    for commit in commits:
        if _HOTFIX.search(commit["subject"]) and not commit["reverts"]:
            files = [code(path) for path in _own_files(commit)]
            where = f" in {listed(files, limit=3, rest='more files')}" if files else ""
            who = listed(_names([commit], identities))
            what = "merged" if commit["merge"] else "needed"
            yield Problem(
                kind="hotfix",
                severity="medium",
                title=f"A hot-fix was {what}: {quoted(commit['subject'])}",
                detail=f"{who} made it on {day(commit['date'])}{where}.",
                evidence=[commit["hash"]],
                people=_names([commit], identities),
            )


def _repeated_fixes(commits: list[Commit], identities: Identities) -> Iterator[Problem]:
    """Files that were fixed again within two days of a fix: the first fix may not have been enough."""
    fixes: dict[str, list[Commit]] = {}
    for commit in filter(is_fix, reversed(commits)):
        for path in _own_files(commit):
            fixes.setdefault(path, []).append(commit)
    same: dict[tuple[str, ...], list[str]] = {}
    for path, found in fixes.items():
        if run := _run(found):
            same.setdefault(tuple(commit["hash"] for commit in run), []).append(path)
    for hashes, paths in same.items():
        run = [commit for commit in reversed(commits) if commit["hash"] in hashes]
        yield _repeated(run, paths, identities)


def _run(fixes: list[Commit]) -> list[Commit]:
    """The fixes, oldest first, that came within two days of another."""
    pairs = [(a, b) for a, b in pairwise(fixes) if b["timestamp"] - a["timestamp"] <= SOON_S]
    return list({commit["hash"]: commit for pair in pairs for commit in pair}.values())


def _repeated(run: list[Commit], paths: list[str], identities: Identities) -> Problem:
    files = listed([code(path) for path in paths], limit=3, rest="more files")
    return Problem(
        kind="repeated_fix",
        severity="high" if len(run) > 3 else "medium",
        title=f"{files} {'was' if len(paths) == 1 else 'were'} fixed {len(run)} times",
        detail=sentence(
            f"the fixes are {listed([quoted(commit['subject'], 70) for commit in run], limit=4)}"
        ),
        evidence=[*(commit["hash"] for commit in run), *paths],
        people=_names(run, identities),
    )


def _many_hands(commits: Iterable[Commit], identities: Identities) -> Iterator[Problem]:
    """Files that several people changed: worth a word between them."""
    hands: dict[str, dict[str, Commit]] = {}
    changes: dict[str, int] = {}
    for commit in commits:
        for path in _own_files(commit):
            changes[path] = changes.get(path, 0) + 1
            for who in map(identities.who, (commit["author"], *commit["co_authors"])):
                if not identities.is_bot(who):
                    hands.setdefault(path, {}).setdefault(who, commit)
    many = [path for path, people in hands.items() if len(people) >= MANY]
    for path in sorted(many, key=lambda path: (-len(hands[path]), -changes[path], path)):
        names = sorted(identities.name(who) for who in hands[path])
        yield Problem(
            kind="many_hands",
            severity="medium" if len(names) > 2 * MANY else "low",
            title=f"{code(path)} was changed by {count(len(names), 'person', 'people')}",
            detail=sentence(f"{listed(names, limit=6)} changed it in {count(changes[path], 'commit')}"),
            evidence=[path, *sorted({commit["hash"] for commit in hands[path].values()})],
            people=names,
        )


def _own_files(commit: Commit) -> list[str]:
    """The files whose changes say something: no tests, no data, none that programs or all people write to."""
    paths = (change["path"] for change in commit["files"])
    return [path for path in paths if not (is_bulk(path) or is_shared(path) or is_test(path))]


def _names(commits: Iterable[Commit], identities: Identities) -> list[str]:
    return list(dict.fromkeys(identities.name_of(commit["author"]) for commit in commits))
