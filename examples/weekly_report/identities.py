"""Who is who: the same person under several emails and spellings of a name."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator

from weekly_report.records import Commit, History, Identity, Ticket, Tickets

_SHARED_EMAILS = re.compile(
    r"^$|^(root|none|nobody|noreply|no-reply|unknown|you)@|@localhost$|^[^@]*$|@\(none\)$"
)
_SHARED_NAMES = {
    "",
    "root",
    "unknown",
    "user",
    "admin",
    "(no name)",
    "no name",
    "your name",
    "ubuntu",
    "nobody",
}
_PROGRAMS = (
    r"dependabot|renovate(app|bot)?|github[- ]actions?|pre-commit-ci|semantic-release|greenkeeper|mergify"
)
_BOT_NAMES = re.compile(rf"\[bot\]$|[ _-]bot$|^({_PROGRAMS})\b", re.IGNORECASE)
_BOT_EMAILS = re.compile(
    rf"\[bot\]@|(^|[+._-])bot@|^action@github\.com$|(^|[+@._-])({_PROGRAMS})[@.\[-]", re.IGNORECASE
)
_MARKS = str.maketrans("", "", "\\`*")


def known(history: History, tickets: Tickets) -> Identities:
    """Everybody in the commits, and whoever the tickets belong to."""
    others = [assignee(ticket) for ticket in tickets["items"] if ticket["assignee"]]
    return Identities(everybody(history["items"]), others=others)


def assignee(ticket: Ticket) -> Identity:
    """Whose ticket it is, as an identity; an assignee may be given as an email."""
    name, email = ticket["assignee"], ticket["assignee_email"]
    return Identity(name=name, email=email or (name if "@" in name else ""))


def everybody(commits: Iterable[Commit]) -> Iterator[Identity]:
    """Authors and co-authors, as often as they appear."""
    for commit in commits:
        yield commit["author"]
        yield from commit["co_authors"]


class Identities:
    """Merges identities that share an email or a name. Git has applied the mailmap before.

    Names and emails that many use (`root`, `noreply@...`) join nobody.
    """

    def __init__(self, identities: Iterable[Identity], *, others: Iterable[Identity] = ()) -> None:
        """Joins `identities` and `others`; the latter lend their name only to who has no other."""
        self._parent: dict[str, str] = {}
        self._names: dict[str, Counter[str]] = {}
        self._emails: dict[str, set[str]] = {}
        weighed = [*((one, 1) for one in identities), *((one, 0) for one in others)]
        for identity, _ in weighed:
            first, *rest = _keys(identity)
            for other in rest:
                self._parent[self._root(other)] = self._root(first)
        for identity, weight in weighed:
            root = self._root(_keys(identity)[0])
            self._names.setdefault(root, Counter())[identity["name"]] += weight
            self._emails.setdefault(root, set()).add(identity["email"])

    def who(self, identity: Identity) -> str:
        """An opaque token, equal for the identities of one person; new people get a new one."""
        return next((self._root(key) for key in _keys(identity) if key in self._parent), _keys(identity)[0])

    def name(self, who: str) -> str:
        """The name that the person uses most, without signs that a text could take for marks."""
        names = self._names.get(who)
        name = min(names, key=lambda name: (-names[name], name)) if names else who.partition(":")[2]
        return name.translate(_MARKS)

    def name_of(self, identity: Identity) -> str:
        """The one name of the person behind an identity."""
        return self.name(self.who(identity))

    def owner(self, ticket: Ticket) -> str:
        """The name of whoever a ticket belongs to; empty when nobody has it."""
        return self.name_of(assignee(ticket)) if ticket["assignee"] else ""

    def is_bot(self, who: str) -> bool:
        """Whether a program commits under a name or an email of the person."""
        return any(map(_BOT_NAMES.search, self._names.get(who, ()))) or any(
            map(_BOT_EMAILS.search, self._emails.get(who, ()))
        )

    def emails(self, who: str) -> list[str]:
        """All emails of the person, sorted."""
        return sorted(email for email in self._emails.get(who, ()) if email)

    def _root(self, key: str) -> str:
        while (parent := self._parent.setdefault(key, key)) != key:
            self._parent[key] = self._parent.get(parent, parent)
            key = parent
        return key


def _keys(identity: Identity) -> list[str]:
    """What identifies a person: email, login, name; at least one."""
    email, name = identity["email"].casefold(), _plain(identity["name"])
    keys = []
    if not _SHARED_EMAILS.search(email):
        login = re.fullmatch(r"(?:\d+\+)?([^@]+)@users\.noreply\.github\.com", email)
        keys.append(f"login:{login[1]}" if login else f"email:{email}")
    if name not in _SHARED_NAMES:
        keys.append(f"name:{name}")
        if not email and re.fullmatch(r"[a-z\d-]+(\[bot\])?", name):
            keys.append(f"login:{name}")
    return keys or [f"pair:{name} <{email}>"]


def _plain(name: str) -> str:
    """The name without case, accents and surplus space."""
    decomposed = unicodedata.normalize("NFKD", name.casefold())
    return " ".join("".join(sign for sign in decomposed if not unicodedata.combining(sign)).split())
