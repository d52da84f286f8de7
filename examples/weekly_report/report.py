"""Assembles the report from the findings and what the writers wrote about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weekly_report.document import Block, Bullets, Details, Heading, Note, Paragraph, Table, cut, prose
from weekly_report.modules import label
from weekly_report.paths import is_generated
from weekly_report.people import closed_within
from weekly_report.records import (
    Brief,
    Briefs,
    Commit,
    Figure,
    History,
    Module,
    Modules,
    People,
    Person,
    Plan,
    Problem,
    Problems,
    Report,
    Step,
    Tickets,
)
from weekly_report.rendering import to_html, to_markdown
from weekly_report.words import clipped, code, count, date_of, listed, period, quoted, sentence, short_day

MODULES_SHOWN = 15
PROBLEMS_SHOWN = 12
COMMITS_SHOWN = 200


def assemble(
    history: History,
    tickets: Tickets,
    people: People,
    modules: Modules,
    problems: Problems,
    plan: Plan,
    briefs: Briefs,
    overview: str | None = None,
    sections: list[str | None] | None = None,
    title: str | None = None,
) -> Report:
    """The whole report. Where a writer delivered no text, the facts it was to use stand instead."""
    heading = title or f"Weekly report: {history['repository']}"
    span = period(history["since"], history["until"])
    figures = list(_figures(history, tickets, people))
    blocks: list[Block] = [
        Heading(heading, 1),
        Paragraph(_subtitle(history, span)),
        *map(Note, [*history["notes"], *tickets["notes"]]),
        *_written(overview, briefs["overview"]),
        *_figure_blocks(figures),
        *_listed("Highlights", briefs["highlights"], 10),
        *_module_blocks(modules["items"]),
        *_people_blocks(people["items"], briefs["people"], sections),
        *_problem_blocks(problems["items"]),
        *_plan_blocks(plan),
        *_commit_blocks(history["items"]),
    ]
    return Report(
        title=heading,
        period=span,
        markdown=to_markdown(blocks),
        html=to_html(heading, blocks),
        figures=figures,
        problems=len(problems["items"]),
        people=[person["name"] for person in people["items"]],
    )


def _subtitle(history: History, span: str) -> str:
    branch = f", branch {code(history['branch'])}" if history["branch"] else ""
    return f"{span[0].upper()}{span[1:]}, repository {code(history['repository'])}{branch}"


def _written(text: str | None, facts: Sequence[Sequence[str]]) -> list[Block]:
    """The writer's text; without one, the facts."""
    blocks = prose(text) if isinstance(text, str) else []
    return blocks or [Paragraph(" ".join(group)) for group in facts]


def _figures(history: History, tickets: Tickets, people: People) -> Iterator[Figure]:
    commits = [commit for commit in history["items"] if not commit["merge"]]
    merges = len(history["items"]) - len(commits)
    if commits or merges:
        yield Figure(
            label="Commits", value=f"{len(commits):,}" + (f" and {count(merges, 'merge')}" if merges else "")
        )
        yield Figure(label="People", value=f"{sum(not person['bot'] for person in people['items']):,}")
        files = {change["path"] for commit in commits for change in commit["files"]}
        yield Figure(label="Files changed", value=f"{len(files):,}")
        generated = sum(
            change["insertions"]
            for commit in commits
            for change in commit["files"]
            if is_generated(change["path"])
        )
        added = f"{sum(commit['insertions'] for commit in commits):,}"
        yield Figure(
            label="Lines added", value=added + (f", {generated:,} in generated files" if generated else "")
        )
        yield Figure(label="Lines removed", value=f"{sum(commit['deletions'] for commit in commits):,}")
    if tickets["items"]:
        yield from _ticket_figures(history, tickets)


def _ticket_figures(history: History, tickets: Tickets) -> Iterator[Figure]:
    items = tickets["items"]
    first, last = date_of(history["since"]), date_of(history["until"])
    waiting = [ticket for ticket in items if ticket["state"] != "done"]
    late = sum(ticket["due"] is not None and date_of(ticket["due"]) < last for ticket in waiting)
    new = sum(
        ticket["created"] is not None and first <= date_of(ticket["created"]) <= last for ticket in items
    )
    yield Figure(label="Tickets closed", value=f"{sum(closed_within(ticket, history) for ticket in items):,}")
    yield Figure(label="Tickets opened", value=f"{new:,}")
    yield Figure(
        label="Tickets open now", value=f"{len(waiting):,}" + (f", {late:,} overdue" if late else "")
    )


def _figure_blocks(figures: Sequence[Figure]) -> Iterator[Block]:
    if figures:
        yield Heading("Key figures")
        rows = tuple((figure["label"], figure["value"]) for figure in figures)
        yield Table(("Figure", "Value"), rows, frozenset({1}))


def _listed(heading: str, items: Sequence[str], limit: int) -> Iterator[Block]:
    if items:
        yield Heading(heading)
        yield Bullets(cut(items, limit))


def _module_blocks(modules: Sequence[Module]) -> Iterator[Block]:
    if modules:
        yield Heading("Where the work went")
        yield _module_table(modules[:MODULES_SHOWN])
        if len(modules) > MODULES_SHOWN:
            yield Paragraph(f"And {count(len(modules) - MODULES_SHOWN, 'more module')} with fewer changes.")


def _module_table(modules: Sequence[Module]) -> Table:
    """The column of people is left out where it would say the same name in each row."""
    header = ("Module", "Commits", "Files", "Added", "Removed", "People")
    columns = len(header) if len({name for module in modules for name in module["people"]}) > 1 else -1
    rows = tuple(_module_row(module)[:columns] for module in modules)
    return Table(header[:columns], rows, frozenset({1, 2, 3, 4}))


def _module_row(module: Module) -> tuple[str, ...]:
    numbers = (module["commits"], module["files"], module["insertions"], module["deletions"])
    people = listed(module["people"], limit=3)
    return (label([module["name"]])[0], *(f"{number:,}" for number in numbers), people)


def _people_blocks(
    people: Sequence[Person], briefs: Sequence[Brief], sections: list[str | None] | None
) -> Iterator[Block]:
    texts = sections if isinstance(sections, list) else []
    if briefs:
        yield Heading("Who did what")
    for number, brief in enumerate(briefs):
        person = next(one for one in people if one["name"] == brief["name"])
        yield Heading(brief["name"], 3)
        if line := _person_line(person):
            yield Paragraph(line)
        yield from _written(texts[number] if number < len(texts) else None, brief["facts"])
    if bots := [
        f"{person['name']} ({count(person['commits'], 'commit')})" for person in people if person["bot"]
    ]:
        yield Paragraph(sentence(f"Programs committed too: {listed(bots, limit=5)}"))


def _person_line(person: Person) -> str:
    parts = [
        count(person["commits"], "commit") if person["commits"] else "",
        f"{person['co_authored']:,} co-written" if person["co_authored"] else "",
        count(person["merges"], "merge") if person["merges"] else "",
        f"+{person['insertions']:,} −{person['deletions']:,}" if person["commits"] else "",
        listed(label(share["module"] for share in person["modules"]), limit=3),
        f"closed {listed(person['tickets_closed'], limit=5)}" if person["tickets_closed"] else "",
    ]
    return " · ".join(part for part in parts if part)


def _problem_blocks(problems: Sequence[Problem]) -> Iterator[Block]:
    if problems:
        yield Heading("Problems")
        yield Bullets(cut(map(_problem, problems), PROBLEMS_SHOWN))


def _problem(problem: Problem) -> str:
    hashes = [piece for piece in problem["evidence"] if len(piece) >= 40]
    evidence = f" See {listed([code(piece[:7]) for piece in hashes], limit=4)}." if hashes else ""
    return (
        f"**{problem['severity'].capitalize()}:** {sentence(problem['title'])} {problem['detail']}{evidence}"
    )


def _plan_blocks(plan: Plan) -> Iterator[Block]:
    if plan["steps"] or plan["follow_ups"]:
        yield Heading("Next week")
    if plan["steps"]:
        yield Bullets(tuple(map(_step, plan["steps"])), ordered=True)
    if plan["waiting"]:
        yield Paragraph(sentence(f"{count(plan['waiting'], 'more open ticket')} can wait"))
    if plan["follow_ups"]:
        if plan["steps"]:
            yield Paragraph("Left over from this week:")
        yield Bullets(cut(plan["follow_ups"], 6))


def _step(step: Step) -> str:
    who = f", {step['assignee']}" if step["assignee"] else ""
    why = f": {', '.join(step['reasons'])}" if step["reasons"] else ""
    return f"**{step['key']}** {quoted(step['title'])}{who}{why}"


def _commit_blocks(commits: Sequence[Commit]) -> Iterator[Block]:
    if commits:
        shown = Bullets(cut(map(_commit, commits), COMMITS_SHOWN))
        yield Heading("All commits")
        yield Details(f"Show {count(len(commits), 'commit')}", (shown,))


def _commit(commit: Commit) -> str:
    if commit["merge"]:
        size = "merge"
    elif commit["boundary"]:
        size = "changes unknown"
    else:
        size = f"+{commit['insertions']:,} −{commit['deletions']:,}, {count(commit['file_count'], 'file')}"
    authors = listed([commit["author"]["name"], *(person["name"] for person in commit["co_authors"])])
    date = short_day(commit["date"])
    return f"{code(commit['hash'][:7])} {date}, {authors}: {clipped(commit['subject'], 120)} ({size})"
