"""Turns the findings into sentences, most important first: the facts that the writers get.

Each fact is one line and a whole sentence, so that also a writer without a language model can arrange them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from typing_extensions import TypedDict

from mosaic_tasks import fold
from weekly_report.history import changed
from weekly_report.identities import known
from weekly_report.modules import label, namer
from weekly_report.paths import is_test, lines_written, weight, written
from weekly_report.people import alone, closed_within, person, team
from weekly_report.problems import is_fix, reverted
from weekly_report.records import (
    Assignment,
    Brief,
    Commit,
    Draft,
    History,
    Member,
    Modules,
    People,
    Person,
    Plan,
    Problem,
    ProblemKind,
    Problems,
    Step,
    Summary,
    Ticket,
    Tickets,
    Work,
)
from weekly_report.words import (
    code,
    count,
    escaped,
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
_SENTENCE_END = re.compile(r"(?<=[.!?]) ")
_TOLD = 5
_LARGE = 50
_NAMED = 8
_NAMED_OF_AREA = 4
_HIGHLIGHTS = 5

_KINDS: dict[ProblemKind, tuple[str, str]] = {
    "revert": ("revert", "reverts"),
    "reopened": ("reopened ticket", "reopened tickets"),
    "hotfix": ("hot-fix", "hot-fixes"),
    "repeated_fix": ("repeated fix", "repeated fixes"),
    "many_hands": ("file of many hands", "files of many hands"),
    "overdue": ("overdue ticket", "overdue tickets"),
    "blocked": ("blocked ticket", "blocked tickets"),
    "unread_due": ("due date in doubt", "due dates in doubt"),
}


def assignments(history: History, tickets: Tickets, plan: Plan) -> Iterator[Assignment]:
    """What each member of the team is to be asked about; an outline of the history is enough.

    Those with the fewest commits come first: they are read soonest, and writing begins.
    """
    members = team(history, tickets)
    by_key = {ticket["key"]: ticket for ticket in tickets["items"]}
    taken_back = reverted(history["items"])
    for member in sorted(members, key=lambda one: (len(one["own"]) + len(one["shared"]), one["name"])):
        keys = dict.fromkeys(member["tickets_closed"] + member["tickets_named"])
        yield Assignment(
            member=member,
            alone=alone(members),
            split=history["split"],
            commits=_of_member(member, history),
            reverted=sorted(taken_back.intersection(member["own"] + member["shared"])),
            tickets=[by_key[key] for key in keys],
            steps=[step for step in plan["steps"] if step["key"] in member["tickets_open"]],
        )


def _of_member(member: Member, history: History) -> list[Commit]:
    mine = {*member["own"], *member["shared"]}
    return [commit for commit in history["items"] if commit["hash"] in mine]


def work(assignment: Assignment, repo: str) -> Work:
    """Reads what somebody's commits changed, and tells it.

    Raises:
        RepositoryError: the repository is no longer usable.
    """
    return work_of(assignment, changed(repo, assignment["commits"]))


def work_of(assignment: Assignment, commits: list[Commit]) -> Work:
    """The commits, which tell their changes, and the facts in them; programs get no facts."""
    member = assignment["member"]
    facts = _Facts(
        commits,
        assignment["tickets"],
        reverted=assignment["reverted"],
        split=assignment["split"],
        alone=assignment["alone"],
    )
    who = person(member, facts.commits, facts.module_of)
    about = [] if member["bot"] else _about(who, facts, assignment["steps"])
    return Work(brief=Brief(name=who["name"], emails=who["emails"], facts=about), commits=commits)


@fold()
def briefs(state: None, works: list[Work]) -> tuple[None, list[Brief]]:
    """The facts for each person's section, as soon as they are there."""
    return state, [one["brief"] for one in works if one["brief"]["facts"]]


class Unpaired(TypedDict):
    """What came of one stream, and not yet of the other."""

    briefs: list[Brief]
    sections: list[str | None]


@fold(initial=Unpaired(briefs=[], sections=[]))
def drafts(state: Unpaired, briefs: list[Brief], sections: list[str | None]) -> tuple[Unpaired, list[Draft]]:
    """Each section with its facts, for the editor; where the writer delivered no text, the facts are to be edited."""
    waiting, written = state["briefs"] + briefs, state["sections"] + sections
    paired = [
        Draft(name=brief["name"], facts=brief["facts"], text=_to_edit(text, brief))
        for brief, text in zip(waiting, written, strict=False)
    ]
    return Unpaired(briefs=waiting[len(paired) :], sections=written[len(paired) :]), paired


def _to_edit(text: str | None, brief: Brief) -> str:
    """Two lines a paragraph: an editor without a language model, to whom a line is a sentence, joins paragraphs of one
    and splits those of many."""
    if not text or not text.strip():
        return "\n\n".join("\n".join(group) for group in brief["facts"])
    parts = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(_SENTENCE_END.sub("\n", part, count=1) for part in parts)


def summary(
    history: History, tickets: Tickets, people: People, modules: Modules, problems: Problems, plan: Plan
) -> Summary:
    """The facts for the overview, and the highlights.

    When one person did everything, the section tells the highlights, and leaves to the rest of the report what
    that says: each thing is told once.
    """
    facts = _Findings(history, tickets, problems, alone=alone(people["items"]))
    return Summary(
        overview=_overview(facts, people, modules, plan),
        highlights=[] if facts.alone else [sentence(fact) for fact in _highlights(facts)],
    )


class _Facts:
    """What the facts about a person are made of; `alone` when one person did everything."""

    def __init__(
        self,
        commits: Iterable[Commit],
        tickets: Iterable[Ticket],
        *,
        reverted: Iterable[str],
        split: Iterable[str],
        alone: bool,
    ) -> None:
        self.alone = alone
        self.module_of = namer(split)
        self.commits = {commit["hash"]: commit for commit in commits}
        self.tickets = {ticket["key"]: ticket for ticket in tickets}
        self.reverted = set(reverted)

    def areas(self, commit: Commit) -> list[str]:
        """The modules that a commit changed, most changed lines first; those where it changed tests alone last."""
        sizes: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        for change in written(commit):
            module = self.module_of(change["path"])
            sizes[is_test(change["path"])][module] += change["insertions"] + change["deletions"]
        return list(dict.fromkeys(name for counts in sizes.values() for name, _ in counts.most_common()))

    def where(self, commit: Commit) -> str:
        """The modules that a commit changed, in words."""
        return listed(label(self.areas(commit)), limit=2)


class _Findings(_Facts):
    """What the facts about the whole are made of."""

    def __init__(self, history: History, tickets: Tickets, problems: Problems, *, alone: bool) -> None:
        items, split = history["items"], history["split"]
        super().__init__(items, tickets["items"], reverted=reverted(items), split=split, alone=alone)
        self.history = history
        self.problems = problems["items"]
        self.identities = known(history, tickets)
        self.closed = [ticket for ticket in tickets["items"] if closed_within(ticket, history)]

    def author(self, commit: Commit) -> str:
        """The author's name, as in the rest of the report."""
        return self.identities.name_of(commit["author"])

    def by_bot(self, commit: Commit) -> bool:
        """Whether a program made the commit."""
        return self.identities.is_bot(self.identities.who(commit["author"]))

    def notable(self) -> list[Commit]:
        """What people changed, the largest change of each module first; modules with most commits lead.

        Without merges, reverts, what was reverted, and what changed only data and generated files.
        """
        by_area: dict[str, list[Commit]] = {}
        for commit in sorted(filter(self._tells, self.commits.values()), key=lambda commit: -weight(commit)):
            by_area.setdefault(self.areas(commit)[0], []).append(commit)
        placed = [
            (place, -len(found), commit) for found in by_area.values() for place, commit in enumerate(found)
        ]
        return [commit for _, _, commit in sorted(placed, key=lambda one: one[:2])]

    def _tells(self, commit: Commit) -> bool:
        undone = commit["reverts"] or commit["hash"] in self.reverted
        return bool(weight(commit)) and not (commit["merge"] or undone or self.by_bot(commit))


def _grouped(*groups: Iterable[str]) -> list[list[str]]:
    """Facts as whole sentences, in groups that belong together."""
    sentences = ([sentence(fact) for fact in group] for group in groups)
    return [group for group in sentences if group]


def _overview(facts: _Findings, people: People, modules: Modules, plan: Plan) -> list[list[str]]:
    return _grouped(
        [_totals(facts, people), *_where(modules)],
        [*_closed(facts.closed), *([] if facts.alone else _largest(facts))],
        _trouble(facts),
        _next(plan),
    )


def _closed(closed: Sequence[Ticket]) -> Iterator[str]:
    if closed:
        were = "was" if len(closed) == 1 else "were"
        yield f"{count(len(closed), 'ticket')} {were} closed: {_ticket_list(closed)}"


def _totals(facts: _Findings, people: People) -> str:
    """Who made how much; what programs made is counted apart."""
    span = period(facts.history["since"], facts.history["until"])
    spanned = " to " in span
    if not facts.commits:
        return f"Nothing was committed {'from' if spanned else 'on'} {span}"
    own = [commit for commit in facts.commits.values() if not facts.by_bot(commit)]
    by_bots = len(facts.commits) - len(own)
    made = _made(own, people, brief=facts.alone) if own else f"bots made {count(by_bots, 'commit')}"
    more = f"; bots made {by_bots:,} more" if own and by_bots else ""
    return f"{'From' if spanned else 'On'} {span}, {made}{more}"


def _made(commits: Sequence[Commit], people: People, *, brief: bool) -> str:
    """`Author One made 4 commits`, `3 people made 9 commits and 1 merge in 12 files (40 lines added)`."""
    names = [
        person["name"]
        for person in people["items"]
        if (person["commits"] or person["co_authored"] or person["merges"]) and not person["bot"]
    ]
    own = [commit for commit in commits if not commit["merge"]]
    merges = len(commits) - len(own)
    who = names[0] if len(names) == 1 else count(len(names), "person", "people")
    merged = f" and {count(merges, 'merge')}" if merges else ""
    files = len({change["path"] for commit in own for change in commit["files"]})
    size = "" if brief else f" in {count(files, 'file')} ({lines(*lines_written(own))})"
    return f"{who} made {count(len(own), 'commit')}{merged}{size}"


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


def _trouble(facts: _Findings) -> Iterator[str]:
    """How many problems of which kind; their list tells the rest."""
    kinds: dict[ProblemKind, list[Problem]] = {}
    for problem in facts.problems:
        if problem["severity"] != "low":
            kinds.setdefault(problem["kind"], []).append(problem)
    if kinds:
        yield f"What needs a look: {listed([_of_kind(kind, found, facts) for kind, found in kinds.items()])}"


def _of_kind(kind: ProblemKind, found: Sequence[Problem], facts: _Findings) -> str:
    if kind == "unread_due":  # one problem for all tickets
        return count(len(found[0]["evidence"]), *_KINDS[kind])
    keys = [problem["evidence"][0] for problem in found if problem["evidence"][0] in facts.tickets]
    which = f" ({_ticket_list([facts.tickets[key] for key in keys], limit=2)})" if keys else ""
    return count(len(found), *_KINDS[kind]) + which


def _largest(facts: _Findings) -> Iterator[str]:
    notable = sorted(facts.notable(), key=lambda commit: -weight(commit))[:3]
    if len(notable) > 1:
        subjects = [quoted(commit["subject"], 80) + _by(facts, commit) for commit in notable]
        yield f"The largest changes were {listed(subjects)}"


def _by(facts: _Findings, commit: Commit) -> str:
    return "" if facts.alone else f" by {facts.author(commit)}"


def _next(plan: Plan) -> Iterator[str]:
    steps = [f"{step['key']} {quoted(step['title'], 70)}" for step in plan["steps"][:3]]
    if steps:
        rest = plan["open"] - len(steps)
        more = f"; {count(rest, 'other open ticket')} {'waits' if rest == 1 else 'wait'}" if rest else ""
        comes = "comes" if len(steps) == 1 else "come"
        yield f"Next week {listed(steps)} {comes} first{more}"


def _highlights(facts: _Findings) -> Iterator[str]:
    for ticket in facts.closed[:_HIGHLIGHTS]:
        by = f" by {who}" if (who := facts.identities.owner(ticket)) else ""
        yield f"{ticket['key']} {quoted(ticket['title'])} was closed{by}"
    for commit in facts.notable()[:_HIGHLIGHTS]:
        changed = f"{lines(*lines_written([commit]))} in {facts.where(commit)}"
        why = f": {explanation}" if (explanation := _explanation(commit)) else ""
        yield f"{quoted(commit['subject'])}{_by(facts, commit)} ({changed}){why}"


def _about(person: Person, facts: _Facts, steps: Sequence[Step]) -> list[list[str]]:
    commits = [facts.commits[identifier] for identifier in person["hashes"]]
    told = [one for one in commits if not one["reverts"] and one["hash"] not in facts.reverted]
    if facts.alone:
        explained = [one for one in told if _explanation(one)][:_TOLD]
        return _grouped(
            [_change(commit, facts) for commit in explained],
            _by_area([commit for commit in told if commit not in explained], facts),
            [*_named(person, facts), *_fixes(person, commits)],
        )
    return _grouped(
        [*_opening(person), *_told(told, facts)],
        [*_ticket_facts(person, facts), *_reverted(commits, facts), *_fixes(person, commits)],
        [*_next_steps(person, steps), *_partners(person)],
    )


def _told(commits: Sequence[Commit], facts: _Facts) -> Iterator[str]:
    """What the commits say: the large and the explained ones, then the subjects of the others."""
    told = [one for one in commits if _explanation(one) or weight(one) >= _LARGE][:_TOLD]
    for commit in told:
        yield _change(commit, facts)
    yield from _subjects([commit for commit in commits if commit not in told], more=bool(told))


def _by_area(commits: Sequence[Commit], facts: _Facts) -> Iterator[str]:
    """The subjects by the module that they changed most, modules with most commits first."""
    areas: dict[str, list[str]] = {}
    for commit in commits:
        area = next(iter(label(facts.areas(commit))), "data and generated files")
        areas.setdefault(area, []).append(quoted(commit["subject"], 80))
    for area, subjects in sorted(areas.items(), key=lambda one: -len(one[1])):
        yield f"{count(len(subjects), 'change')} in {area}: {listed(subjects, limit=_NAMED_OF_AREA)}"


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
        where = _most_of(person)
        yield f"{name} made {count(commits, 'commit')} in {count(person['files'], 'file')} ({changed}){where}"
    elif person["co_authored"]:
        yield f"{name} co-wrote {count(person['co_authored'], 'commit')}{_most_of(person)}"
    elif person["merges"]:
        merged = "1 branch" if person["merges"] == 1 else f"{person['merges']} branches"
        yield f"{name} merged {merged}"
        return
    else:
        yield f"{name} made no commits, but closed {count(len(person['tickets_closed']), 'ticket')}"
    if commits and person["co_authored"]:
        yield f"{name} also co-wrote {count(person['co_authored'], 'commit')} of others"


def _most_of(person: Person) -> str:
    """Where the commits went: one module when over half of them changed it, else the first ones."""
    shares = person["modules"]
    names = label(share["module"] for share in shares)
    if not shares:
        return ""
    if len(shares) == 1:
        return f", all in {names[0]}"
    if shares[0]["commits"] * 2 > len(person["hashes"]) and shares[0]["commits"] > shares[1]["commits"]:
        return f", most of them in {names[0]}"
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
    return escaped(first_sentence(first))


def _ticket_facts(person: Person, facts: _Facts) -> Iterator[str]:
    closed = [facts.tickets[key] for key in person["tickets_closed"]]
    if closed and (person["commits"] or person["co_authored"]):
        yield f"{person['name']} closed {_ticket_list(closed)}"
    elif closed:
        yield f"Closed {'was' if len(closed) == 1 else 'were'} {_ticket_list(closed)}"
    yield from _named(person, facts)


def _named(person: Person, facts: _Facts) -> Iterator[str]:
    """The tickets that the commits name without closing them."""
    closed = person["tickets_closed"]
    others = [facts.tickets[key] for key in person["tickets_named"] if key not in closed]
    if others:
        yield f"The commits {'also ' if closed else ''}name {_ticket_list(others)}"


def _reverted(commits: Iterable[Commit], facts: _Facts) -> Iterator[str]:
    reverted = [commit for commit in commits if commit["hash"] in facts.reverted]
    if reverted:
        were = "was" if len(reverted) == 1 else "were"
        yield f"{listed([quoted(commit['subject']) for commit in reverted], limit=3)} {were} reverted"


def _fixes(person: Person, commits: Iterable[Commit]) -> Iterator[str]:
    fixes = sum(map(is_fix, commits))
    if fixes > 1 and person["commits"]:
        yield f"{fixes} of the commits by {person['name']} are fixes"


def _next_steps(person: Person, steps: Sequence[Step]) -> Iterator[str]:
    if steps:
        texts = [
            f"{step['key']} {quoted(step['title'], 70)}"
            + (f" ({', '.join(step['reasons'][:2])})" if step["reasons"] else "")
            for step in steps
        ]
        yield f"Next for {person['name']}: {listed(texts, limit=3)}"
