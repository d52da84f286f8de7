"""Turns the findings into sentences, most important first: the facts that the writers get.

Each fact is one line and a whole sentence, so that also a writer without a language model can arrange them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from weekly_report.identities import Identities, everybody
from weekly_report.modules import label, namer
from weekly_report.paths import weight, written
from weekly_report.people import closed_within
from weekly_report.problems import is_fix
from weekly_report.records import (
    Brief,
    Briefs,
    Commit,
    History,
    Modules,
    People,
    Person,
    Plan,
    Problem,
    Problems,
    Share,
    Ticket,
    Tickets,
)
from weekly_report.words import (
    code,
    count,
    first_sentence,
    lines,
    listed,
    period,
    quoted,
    sentence,
    short_day,
)

_TRAILER = re.compile(
    r"^([A-Za-z][A-Za-z-]*-[Bb]y|[Cc]hange-[Ii]d|[Ff]ixes|[Cc]loses|[Rr]efs?|[Ss]ee): ?\S", re.MULTILINE
)
_TOLD = 5
_LARGE = 50
_NAMED = 8


def briefs(
    history: History, tickets: Tickets, people: People, modules: Modules, problems: Problems, plan: Plan
) -> Briefs:
    """The facts for the overview, the highlights and each person's section; programs get no section."""
    facts = _Facts(history, tickets, problems)
    return Briefs(
        overview=_overview(facts, people, modules, plan),
        highlights=[sentence(fact) for fact in _highlights(facts)],
        people=[
            Brief(name=person["name"], facts=_about(person, facts, plan))
            for person in people["items"]
            if not person["bot"]
        ],
    )


class _Facts:
    """The findings by key."""

    def __init__(self, history: History, tickets: Tickets, problems: Problems) -> None:
        self.history = history
        self.problems = problems["items"]
        self._identities = Identities(everybody(history["items"]))
        self._module_of = namer(history)
        self.commits = {commit["hash"]: commit for commit in history["items"]}
        self.tickets = {ticket["key"]: ticket for ticket in tickets["items"]}
        self.reverted = {problem["evidence"][1] for problem in self.problems if problem["kind"] == "revert"}
        self.closed = [ticket for ticket in tickets["items"] if closed_within(ticket, history)]

    def author(self, commit: Commit) -> str:
        """The author's name, as in the rest of the report."""
        return self._identities.name(self._identities.who(commit["author"]))

    def alone(self) -> bool:
        """Whether one person made all the commits."""
        return len({self._identities.who(one) for one in everybody(self.history["items"])}) < 2

    def where(self, commit: Commit) -> str:
        """The modules that a commit changed, most changed lines first."""
        sizes: Counter[str] = Counter()
        for change in written(commit):
            sizes[self._module_of(change["path"])] += change["insertions"] + change["deletions"]
        return listed(label(name for name, _ in sizes.most_common()), limit=2)

    def notable(self) -> list[Commit]:
        """The commits that changed most, without merges, reverts and what was reverted."""
        kept = [
            commit
            for commit in self.commits.values()
            if not commit["merge"] and not commit["reverts"] and commit["hash"] not in self.reverted
        ]
        return sorted(kept, key=lambda commit: -weight(commit))


def _grouped(*groups: Iterable[str]) -> list[list[str]]:
    """Facts as whole sentences, in groups that belong together."""
    sentences = ([sentence(fact) for fact in group] for group in groups)
    return [group for group in sentences if group]


def _overview(facts: _Facts, people: People, modules: Modules, plan: Plan) -> list[list[str]]:
    return _grouped(
        [_totals(facts.history, people), *_where(modules)],
        [*_closed(facts.closed), *_largest(facts)],
        _problem_facts(facts.problems),
        _next(plan),
    )


def _closed(closed: Sequence[Ticket]) -> Iterator[str]:
    if closed:
        were = "was" if len(closed) == 1 else "were"
        yield f"{count(len(closed), 'ticket')} {were} closed: {_ticket_list(closed)}"


def _totals(history: History, people: People) -> str:
    span = period(history["since"], history["until"])
    commits = [commit for commit in history["items"] if not commit["merge"]]
    merges = len(history["items"]) - len(commits)
    if not history["items"]:
        return f"Nothing was committed from {span}" if " to " in span else f"Nothing was committed on {span}"
    writers = [
        person
        for person in people["items"]
        if (person["commits"] or person["co_authored"] or person["merges"]) and not person["bot"]
    ] or people["items"]
    changed = lines(sum(c["insertions"] for c in commits), sum(c["deletions"] for c in commits))
    files = len({change["path"] for commit in commits for change in commit["files"]})
    when = f"From {span}" if " to " in span else f"On {span}"
    who = (
        f"{writers[0]['name']} made"
        if len(writers) == 1
        else f"{count(len(writers), 'person', 'people')} made"
    )
    merged = f" and {count(merges, 'merge')}" if merges else ""
    return f"{when}, {who} {count(len(commits), 'commit')}{merged} in {count(files, 'file')} ({changed})"


def _where(modules: Modules) -> Iterator[str]:
    changed = [module for module in modules["items"] if module["written"]]
    if changed:
        names = label(module["name"] for module in changed)
        most = f"Most of the work went into {names[0]} ({count(changed[0]['commits'], 'commit')})"
        yield (
            f"{most}, followed by {listed(names[1:4])}" if names[1:] else f"All the work went into {names[0]}"
        )


def _ticket_list(tickets: Sequence[Ticket], limit: int = 5) -> str:
    return listed([f"{ticket['key']} {quoted(ticket['title'], 70)}" for ticket in tickets], limit=limit)


def _problem_facts(problems: Sequence[Problem]) -> Iterator[str]:
    serious = [problem for problem in problems if problem["severity"] != "low"]
    for problem in serious[:4]:
        yield problem["title"]
    rest = len(serious) - 4
    if rest > 0:
        yield f"{count(rest, 'more problem')} of that weight {'is' if rest == 1 else 'are'} listed below"


def _largest(facts: _Facts) -> Iterator[str]:
    notable = facts.notable()[:3]
    if len(notable) > 1:
        subjects = [quoted(commit["subject"], 80) + _by(facts, commit) for commit in notable]
        yield f"The largest changes were {listed(subjects)}"


def _by(facts: _Facts, commit: Commit) -> str:
    return "" if facts.alone() else f" by {facts.author(commit)}"


def _next(plan: Plan) -> Iterator[str]:
    steps = [f"{step['key']} {quoted(step['title'], 70)}" for step in plan["steps"][:3]]
    if steps:
        rest = plan["open"] - len(steps)
        more = f"; {count(rest, 'other open ticket')} {'waits' if rest == 1 else 'wait'}" if rest else ""
        comes = "comes" if len(steps) == 1 else "come"
        yield f"Next week {listed(steps)} {comes} first{more}"


def _highlights(facts: _Facts) -> Iterator[str]:
    for ticket in facts.closed[:5]:
        by = f" by {ticket['assignee']}" if ticket["assignee"] else ""
        yield f"{ticket['key']} {quoted(ticket['title'])} was closed{by}"
    for commit in facts.notable()[:5]:
        changed = lines(commit["insertions"], commit["deletions"])
        where = f" in {modules}" if (modules := facts.where(commit)) else ""
        why = f": {explanation}" if (explanation := _explanation(commit)) else ""
        yield f"{quoted(commit['subject'])}{_by(facts, commit)} ({changed}{where}){why}"


def _about(person: Person, facts: _Facts, plan: Plan) -> list[list[str]]:
    commits = [facts.commits[identifier] for identifier in person["hashes"]]
    told = [one for one in commits if not one["reverts"] and one["hash"] not in facts.reverted]
    return _grouped(
        [*_opening(person), *_told(told, facts)],
        [*_ticket_facts(person, facts), *_troubles(person, commits, facts)],
        [*_next_steps(person, plan), *_partners(person)],
    )


def _told(commits: Sequence[Commit], facts: _Facts) -> Iterator[str]:
    """What the commits say: the large and the explained ones, then the subjects of the others."""
    told = [one for one in commits if _explanation(one) or weight(one) >= _LARGE][:_TOLD]
    for commit in told:
        yield _change(commit, facts)
    yield from _subjects([commit for commit in commits if commit not in told], more=bool(told))


def _change(commit: Commit, facts: _Facts) -> str:
    """One commit in a sentence: what its message explains, else where it went."""
    change = f"{quoted(commit['subject'])} ({short_day(commit['date'])})"
    if explanation := _explanation(commit):
        return f"{change}: {explanation}"
    files = sorted(written(commit), key=lambda file: -file["insertions"] - file["deletions"])
    new = all(file["status"] == "added" for file in files)
    names = [code(PurePosixPath(file["path"]).name) for file in files[:3]]
    where = f"{'added' if new else 'changed'} {count(len(files), 'file')} in {facts.where(commit)}"
    return (
        f"{change} {where}, most of all {listed(names)}"
        if len(files) > 3
        else f"{change} {where}: {listed(names)}"
    )


def _partners(person: Person) -> Iterator[str]:
    if person["partners"]:
        yield f"{person['name']} worked together with {listed(person['partners'], limit=5)}"


def _opening(person: Person) -> Iterator[str]:
    name, commits = person["name"], person["commits"]
    if commits:
        changed = lines(person["insertions"], person["deletions"])
        where = _most_of(person["modules"])
        yield f"{name} made {count(commits, 'commit')} in {count(person['files'], 'file')} ({changed}){where}"
    elif person["co_authored"]:
        yield f"{name} co-wrote {count(person['co_authored'], 'commit')}{_most_of(person['modules'])}"
    elif person["merges"]:
        merged = "1 branch" if person["merges"] == 1 else f"{person['merges']} branches"
        yield f"{name} merged {merged}"
        return
    else:
        yield f"{name} made no commits, but closed {count(len(person['tickets_closed']), 'ticket')}"
    if commits and person["co_authored"]:
        yield f"{name} also co-wrote {count(person['co_authored'], 'commit')} of others"


def _most_of(shares: Sequence[Share]) -> str:
    """Where the lines went: one module when it has over half of them, else the first ones."""
    total = sum(share["lines"] for share in shares)
    if not shares or not total:
        return ""
    names = label(share["module"] for share in shares)
    if len(shares) == 1:
        return f", all in {names[0]}"
    if shares[0]["lines"] * 2 > total:
        return f", most of it in {names[0]}"
    return f", mainly in {listed(names[:2])}"


def _subjects(commits: Sequence[Commit], *, more: bool) -> Iterator[str]:
    """The subjects of commits that explain themselves no further."""
    subjects = list(dict.fromkeys(quoted(commit["subject"], 80) for commit in commits))
    if len(subjects) == 1:
        yield f"{'Another' if more else 'The'} change is {subjects[0]}"
    elif subjects:
        yield f"{'Other' if more else 'The'} changes are {listed(subjects, limit=_NAMED)}"


def _explanation(commit: Commit) -> str:
    """The first sentence of the message's body; empty when the body is no prose."""
    body = commit["message"].partition("\n\n")[2]
    trailer = _TRAILER.search(body)
    prose = body[: trailer.start()] if trailer else body
    first = next((part for part in re.split(r"\n\s*\n", prose) if part.strip()), "")
    if len(first.split()) < 4 or re.match(r"\s*([-*+#>|`]|\d+[.)]|\[|https?:)", first):
        return ""
    return first_sentence(first)


def _ticket_facts(person: Person, facts: _Facts) -> Iterator[str]:
    closed = [facts.tickets[key] for key in person["tickets_closed"]]
    if closed and (person["commits"] or person["co_authored"]):
        yield f"{person['name']} closed {_ticket_list(closed)}"
    elif closed:
        yield f"Closed {'was' if len(closed) == 1 else 'were'} {_ticket_list(closed)}"
    others = [facts.tickets[key] for key in person["tickets_named"] if key not in person["tickets_closed"]]
    if others:
        yield f"The commits {'also ' if closed else ''}name {_ticket_list(others)}"


def _troubles(person: Person, commits: Iterable[Commit], facts: _Facts) -> Iterator[str]:
    reverted = [commit for commit in commits if commit["hash"] in facts.reverted]
    if reverted:
        were = "was" if len(reverted) == 1 else "were"
        yield f"{listed([quoted(commit['subject']) for commit in reverted], limit=3)} {were} reverted"
    fixes = sum(map(is_fix, commits))
    if fixes > 1 and person["commits"]:
        yield f"{fixes} of the commits by {person['name']} are fixes"


def _next_steps(person: Person, plan: Plan) -> Iterator[str]:
    mine = set(person["tickets_open"])
    steps = [step for step in plan["steps"] if step["key"] in mine]
    if steps:
        texts = [
            f"{step['key']} {quoted(step['title'], 70)}"
            + (f" ({', '.join(step['reasons'][:2])})" if step["reasons"] else "")
            for step in steps
        ]
        yield f"Next for {person['name']}: {listed(texts, limit=3)}"
