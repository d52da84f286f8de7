"""Turns the findings into sentences, most important first: the facts that the writers get.

Each fact is one line and a whole sentence, so that a writer without a language model can choose and arrange them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from weekly_report.modules import label
from weekly_report.paths import weight
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
from weekly_report.words import count, first_sentence, lines, listed, period, quoted, sentence, short_day

_TRAILER = re.compile(
    r"^([A-Za-z][A-Za-z-]*-[Bb]y|[Cc]hange-[Ii]d|[Ff]ixes|[Cc]loses|[Rr]efs?|[Ss]ee): ?\S", re.MULTILINE
)
_TALKED_THROUGH = 4
_NAMED = 10


def briefs(
    history: History, tickets: Tickets, people: People, modules: Modules, problems: Problems, plan: Plan
) -> Briefs:
    """The facts for the overview and for each person's section."""
    facts = _Facts(history, tickets, problems)
    return Briefs(
        overview=[sentence(fact) for fact in _overview(facts, people, modules, plan)],
        highlights=[sentence(fact) for fact in _highlights(facts)],
        people=[
            Brief(name=person["name"], facts=[sentence(fact) for fact in _about(person, facts, plan)])
            for person in people["items"]
            if not person["bot"]
        ],
    )


class _Facts:
    """The findings by key."""

    def __init__(self, history: History, tickets: Tickets, problems: Problems) -> None:
        self.history = history
        self.problems = problems["items"]
        self.commits = {commit["hash"]: commit for commit in history["items"]}
        self.tickets = {ticket["key"]: ticket for ticket in tickets["items"]}
        self.reverted = {problem["evidence"][1] for problem in self.problems if problem["kind"] == "revert"}
        self.closed = [ticket for ticket in tickets["items"] if closed_within(ticket, history)]

    def notable(self) -> list[Commit]:
        """The commits that changed most, without merges, reverts and what was reverted."""
        kept = [
            commit
            for commit in self.commits.values()
            if not commit["merge"] and not commit["reverts"] and commit["hash"] not in self.reverted
        ]
        return sorted(kept, key=lambda commit: -weight(commit))


def _overview(facts: _Facts, people: People, modules: Modules, plan: Plan) -> Iterator[str]:
    yield _totals(facts.history, people)
    if modules["items"] and any(module["insertions"] + module["deletions"] for module in modules["items"]):
        yield _where(modules)
    if facts.closed:
        yield f"{_ticket_count(facts.closed, 'was', 'were')} closed: {_ticket_list(facts.closed)}"
    yield from _problem_facts(facts.problems)
    yield from _largest(facts)
    yield from _next(plan)
    yield from facts.history["notes"]


def _totals(history: History, people: People) -> str:
    span = period(history["since"], history["until"])
    commits = [commit for commit in history["items"] if not commit["merge"]]
    merges = len(history["items"]) - len(commits)
    if not history["items"]:
        return f"Nothing was committed from {span}" if " to " in span else f"Nothing was committed on {span}"
    writers = [
        person for person in people["items"] if person["commits"] or person["co_authored"] or person["merges"]
    ]
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


def _where(modules: Modules) -> str:
    first, *others = [module for module in modules["items"] if module["insertions"] + module["deletions"]]
    head = f"Most of the work went into {label([first['name']])[0]} ({count(first['commits'], 'commit')})"
    if not others:
        return head.replace("Most of the work", "The work")
    return f"{head}, followed by {listed(label(module['name'] for module in others[:3]))}"


def _ticket_count(tickets: Sequence[Ticket], one: str, many: str) -> str:
    return f"{count(len(tickets), 'ticket')} {one if len(tickets) == 1 else many}"


def _ticket_list(tickets: Sequence[Ticket], limit: int = 5) -> str:
    return listed([f"{ticket['key']} {quoted(ticket['title'], 70)}" for ticket in tickets], limit=limit)


def _problem_facts(problems: Sequence[Problem]) -> Iterator[str]:
    serious = [problem for problem in problems if problem["severity"] != "low"]
    for problem in serious[:4]:
        yield problem["title"]
    if len(serious) > 4:
        yield f"{count(len(serious) - 4, 'more problem')} of that weight {'is' if len(serious) == 5 else 'are'} listed below"


def _largest(facts: _Facts) -> Iterator[str]:
    notable = facts.notable()[:3]
    if len(notable) > 1:
        subjects = [f"{quoted(commit['subject'], 80)} by {commit['author']['name']}" for commit in notable]
        yield f"The largest changes were {listed(subjects)}"


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
        yield f"{commit['author']['name']}: {quoted(commit['subject'])} ({lines(commit['insertions'], commit['deletions'])})"


def _about(person: Person, facts: _Facts, plan: Plan) -> Iterator[str]:
    commits = [facts.commits[identifier] for identifier in person["hashes"]]
    yield from _opening(person)
    told = [commit for commit in commits if not commit["reverts"]]
    yield from _told(told[:_TALKED_THROUGH])
    yield from _ticket_facts(person, facts)
    yield from _troubles(person, commits, facts)
    yield from _next_steps(person, plan)
    yield from _rest(told[_TALKED_THROUGH:])
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


def _told(commits: Sequence[Commit]) -> Iterator[str]:
    """The large commits, with what their messages explain."""
    plain = [commit for commit in commits if not _explanation(commit)]
    if plain:
        subjects = listed([quoted(commit["subject"]) for commit in plain])
        yield f"The main {'change is' if len(plain) == 1 else 'changes are'} {subjects}"
    for commit in commits:
        if explanation := _explanation(commit):
            yield f"{quoted(commit['subject'])} ({short_day(commit['date'])}): {explanation}"


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
        yield f"{fixes} of the commits are fixes"


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


def _rest(commits: Sequence[Commit]) -> Iterator[str]:
    subjects = list(dict.fromkeys(quoted(commit["subject"], 80) for commit in commits))
    if subjects:
        yield f"Smaller changes: {listed(subjects, limit=_NAMED)}"
