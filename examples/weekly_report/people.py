"""Merges commits and tickets by person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from weekly_report.identities import Identities, everybody, is_bot
from weekly_report.matching import mentions
from weekly_report.modules import namer
from weekly_report.paths import weight, written
from weekly_report.records import Commit, History, Identity, People, Person, Share, Ticket, Tickets
from weekly_report.words import date_of


def people(history: History, tickets: Tickets) -> People:
    """Everybody who committed, co-wrote a commit or closed a ticket in the period, most commits first."""
    identities = Identities(
        everybody(history["items"]),
        others=[assignee(ticket) for ticket in tickets["items"] if ticket["assignee"]],
    )
    works = _works(history, tickets, identities)
    module_of = namer(history)
    found = [_person(who, work, identities, module_of) for who, work in works.items() if work.matters]
    found.sort(
        key=lambda one: (one["bot"], -one["commits"], -one["insertions"], -one["co_authored"], one["name"])
    )
    return People(items=found)


def closed_within(ticket: Ticket, history: History) -> bool:
    """Whether the ticket was closed in the period."""
    closed = ticket["closed"]
    if ticket["state"] != "done" or closed is None:
        return False
    return date_of(history["since"]) <= date_of(closed) <= date_of(history["until"])


def assignee(ticket: Ticket) -> Identity:
    """Whose ticket it is, as an identity; an assignee may be given as an email."""
    name, email = ticket["assignee"], ticket["assignee_email"]
    return Identity(name=name, email=email or (name if "@" in name else ""))


@dataclass
class _Work:
    own: list[Commit] = field(default_factory=list)
    shared: list[Commit] = field(default_factory=list)
    merges: int = 0
    partners: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    @property
    def matters(self) -> bool:
        return bool(self.own or self.shared or self.merges or self.closed)


def _works(history: History, tickets: Tickets, identities: Identities) -> dict[str, _Work]:
    works: dict[str, _Work] = {}
    for commit in history["items"]:
        _add_commit(works, commit, identities)
    for ticket in tickets["items"]:
        _add_ticket(works, ticket, history, identities)
    named = mentions(history["items"], tickets["items"])
    for work in works.values():
        hashes = {commit["hash"] for commit in (*work.own, *work.shared)}
        work.named = [key for key, found in named.items() if hashes & {mention["hash"] for mention in found}]
    return works


def _add_commit(works: dict[str, _Work], commit: Commit, identities: Identities) -> None:
    author = identities.who(commit["author"])
    partners = {identities.who(person) for person in commit["co_authors"]} - {author}
    work = works.setdefault(author, _Work())
    if commit["merge"]:
        work.merges += 1
        return
    work.own.append(commit)
    for who in partners:
        works.setdefault(who, _Work()).shared.append(commit)
    team = {author, *partners}
    for who in team:
        works[who].partners.update(identities.name(other) for other in team - {who})


def _add_ticket(works: dict[str, _Work], ticket: Ticket, history: History, identities: Identities) -> None:
    if not ticket["assignee"]:
        return
    work = works.setdefault(identities.who(assignee(ticket)), _Work())
    if closed_within(ticket, history):
        work.closed.append(ticket["key"])
    elif ticket["state"] != "done":
        work.open.append(ticket["key"])


def _person(who: str, work: _Work, identities: Identities, module_of: Callable[[str], str]) -> Person:
    commits = sorted((*work.own, *work.shared), key=lambda commit: (-weight(commit), -commit["timestamp"]))
    name = identities.name(who)
    return Person(
        name=name,
        emails=identities.emails(who),
        bot=is_bot(name),
        commits=len(work.own),
        co_authored=len(work.shared),
        merges=work.merges,
        insertions=sum(commit["insertions"] for commit in work.own),
        deletions=sum(commit["deletions"] for commit in work.own),
        files=len({change["path"] for commit in work.own for change in commit["files"]}),
        modules=_shares(commits, module_of),
        hashes=[commit["hash"] for commit in commits],
        partners=sorted(work.partners, key=lambda partner: (-work.partners[partner], partner)),
        tickets_named=work.named,
        tickets_closed=work.closed,
        tickets_open=work.open,
    )


def _shares(commits: list[Commit], module_of: Callable[[str], str]) -> list[Share]:
    lines: Counter[str] = Counter()
    hashes: dict[str, set[str]] = {}
    for commit in commits:
        for change in written(commit):
            module = module_of(change["path"])
            lines[module] += change["insertions"] + change["deletions"]
            hashes.setdefault(module, set()).add(commit["hash"])
    order = sorted(hashes, key=lambda module: (-lines[module], -len(hashes[module]), module))
    return [Share(module=module, commits=len(hashes[module]), lines=lines[module]) for module in order]
