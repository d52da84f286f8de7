"""Merges commits and tickets by person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from weekly_report.identities import Identities, assignee, known
from weekly_report.matching import mentions
from weekly_report.modules import namer
from weekly_report.paths import lines_written, weight, written
from weekly_report.records import Commit, History, Member, People, Person, Share, Ticket, Tickets
from weekly_report.words import date_of


def people(history: History, tickets: Tickets) -> People:
    """Everybody who committed, co-wrote a commit or closed a ticket in the period, most commits first."""
    module_of = namer(history["split"])
    commits = {commit["hash"]: commit for commit in history["items"]}
    found = [person(member, commits, module_of) for member in team(history, tickets)]
    found.sort(
        key=lambda one: (one["bot"], -one["commits"], -one["insertions"], -one["co_authored"], one["name"])
    )
    return People(items=found)


def team(history: History, tickets: Tickets) -> list[Member]:
    """The same people in no order, as far as an outline of the history tells."""
    identities = known(history, tickets)
    works = _works(history, tickets, identities)
    return [_member(who, work, identities) for who, work in works.items() if work.matters]


def person(member: Member, commits: Mapping[str, Commit], module_of: Callable[[str], str]) -> Person:
    """What a member of the team did.

    Args:
        member: who.
        commits: with their changes, by hash; all of the member's at least.
        module_of: from `namer`.
    """
    own = [commits[identifier] for identifier in member["own"]]
    both = [*own, *(commits[identifier] for identifier in member["shared"])]
    both.sort(key=lambda commit: (-weight(commit), -commit["timestamp"]))
    insertions, deletions = lines_written(own)
    return Person(
        name=member["name"],
        emails=member["emails"],
        bot=member["bot"],
        commits=len(own),
        co_authored=len(member["shared"]),
        merges=member["merges"],
        insertions=insertions,
        deletions=deletions,
        files=len({change["path"] for commit in own for change in commit["files"]}),
        modules=_shares(both, module_of),
        hashes=[commit["hash"] for commit in both],
        partners=member["partners"],
        tickets_named=member["tickets_named"],
        tickets_closed=member["tickets_closed"],
        tickets_open=member["tickets_open"],
    )


def closed_within(ticket: Ticket, history: History) -> bool:
    """Whether the ticket was closed in the period."""
    closed = ticket["closed"]
    if ticket["state"] != "done" or closed is None:
        return False
    return date_of(history["since"]) <= date_of(closed) <= date_of(history["until"])


def alone(people: Iterable[Member | Person]) -> bool:
    """Whether one person did everything; programs do not count."""
    return sum(not one["bot"] for one in people) == 1


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
    team = {who for who in (author, *partners) if not identities.is_bot(who)}
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


def _member(who: str, work: _Work, identities: Identities) -> Member:
    return Member(
        name=identities.name(who),
        emails=identities.emails(who),
        bot=identities.is_bot(who),
        own=[commit["hash"] for commit in work.own],
        shared=[commit["hash"] for commit in work.shared],
        merges=work.merges,
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
    order = sorted(hashes, key=lambda module: (-len(hashes[module]), -lines[module], module))
    return [Share(module=module, commits=len(hashes[module]), lines=lines[module]) for module in order]
