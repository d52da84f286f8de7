"""Assembles the report from the findings and what the writers wrote about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import TypedDict

from mosaic_tasks import fold
from weekly_report.document import Block, Bullets, Details, Heading, Note, Paragraph, Table, cut, prose
from weekly_report.identities import Identities, everybody, known
from weekly_report.modules import label
from weekly_report.paths import lines_written
from weekly_report.people import alone, closed_within
from weekly_report.planning import follow_ups
from weekly_report.records import (
    Brief,
    Commit,
    Figure,
    Findings,
    History,
    Module,
    People,
    Person,
    Plan,
    Problem,
    Report,
    Step,
    Tickets,
)
from weekly_report.rendering import to_html, to_markdown
from weekly_report.words import (
    clipped,
    code,
    count,
    date_of,
    escaped,
    listed,
    period,
    quoted,
    sentence,
    short_day,
)

MODULES_SHOWN = 15
PROBLEMS_SHOWN = 12
COMMITS_SHOWN = 200


class Piece(TypedDict, total=False):
    """A piece of the report in its order.

    Attributes:
        text: Markdown as it stands.
        written: how many characters of an overview go before this.
        section: which of the sections goes here.
        facts: what stands instead where the writer delivered no text.
    """

    text: str
    written: int
    section: int
    facts: list[list[str]]


class Progress(TypedDict):
    """How far the streamed report is.

    Attributes:
        begun: its front is out.
        overview: text of it that is not out yet, and `heard` how much of it came in all.
        told: something of the overview is out.
        pieces: of the body, those that are not out yet; None: the body has not begun.
        sections: that came from the writer.
        edited: that came from the editor.
    """

    begun: bool
    overview: str
    heard: int
    told: bool
    pieces: list[Piece]
    sections: list[str | None]
    edited: list[str | None]


def front(history: History, tickets: Tickets, title: str | None = None) -> Iterator[str]:
    """Title, period and remarks, as Markdown; an outline of the history is enough."""
    yield to_markdown(_front(history, tickets, title))


def body(findings: Findings, overview: str | None = None) -> Iterator[Piece]:
    """What follows the overview, piece by piece, with places for the sections."""
    yield Piece(written=len(overview or ""), facts=findings["summary"]["overview"])
    for part in _body(findings):
        yield (
            Piece(section=part.number, facts=part.facts)
            if isinstance(part, _Section)
            else Piece(text=to_markdown([part]))
        )


_NOTHING = Progress(begun=False, overview="", heard=0, told=False, pieces=[], sections=[], edited=[])


@fold(initial=_NOTHING, output="text")
def document(
    state: Progress,
    front: list[str],
    overview: str,
    body: list[Piece],
    sections: list[str | None],
    edited: list[str | None],
) -> tuple[Progress, list[str]]:
    """The report as Markdown, in its order, each part as soon as it and all before it are there."""
    out = list(front)
    state = {
        "begun": state["begun"] or bool(front),
        "overview": state["overview"] + overview,
        "heard": state["heard"] + len(overview),
        "told": state["told"],
        "pieces": state["pieces"] + body,
        "sections": state["sections"] + sections,
        "edited": state["edited"] + edited,
    }
    if state["begun"]:
        out += _told_overview(state)
        while state["pieces"] and (texts := _next(state)) is not None:
            state["pieces"] = state["pieces"][1:]
            out += texts
    return state, out


def _told_overview(state: Progress) -> Iterator[str]:
    """The paragraphs of the overview that are whole."""
    is_whole = bool(state["pieces"]) and state["pieces"][0].get("written") == state["heard"]
    cut = len(state["overview"]) if is_whole else state["overview"].rfind("\n\n") + 1
    blocks, state["overview"] = prose(state["overview"][:cut]), state["overview"][cut:]
    if blocks:
        state["told"] = True
        yield "\n" + to_markdown(blocks)


def _next(state: Progress) -> list[str] | None:
    """The texts of the next piece; None: what goes there has not come."""
    piece = state["pieces"][0]
    if "text" in piece:
        return ["\n" + piece["text"]]
    if "section" not in piece:
        if state["heard"] < piece["written"]:
            return None
        return [] if state["told"] else _markdown(_written(None, piece["facts"]))
    texts = list(map(_finished, state["edited"], state["sections"]))
    if piece["section"] >= len(texts):
        return None
    return _markdown(_written(texts[piece["section"]], piece["facts"]))


def _finished(edited: str | None, section: str | None) -> str | None:
    """The editor's text; without one, the writer's."""
    return edited if edited and edited.strip() else section


def _markdown(blocks: list[Block]) -> list[str]:
    return ["\n" + to_markdown(blocks)] if blocks else []


def assemble(
    findings: Findings,
    markdown: str,
    overview: str | None = None,
    sections: list[str | None] | None = None,
    edited: list[str | None] | None = None,
    title: str | None = None,
) -> Report:
    """The whole report: `markdown` is the document, the page says the same.

    Where an editor delivered no text, the writer's stands; where that delivered none, the facts it was to use.
    """
    history, tickets, people = findings["history"], findings["tickets"], findings["people"]
    heading = _title(history, title)
    texts = list(map(_finished, edited or [], sections or []))
    blocks = [*_front(history, tickets, title), *_written(overview, findings["summary"]["overview"])]
    for part in _body(findings):
        if isinstance(part, _Section):
            blocks += _written(texts[part.number] if part.number < len(texts) else None, part.facts)
        else:
            blocks.append(part)
    return Report(
        title=heading,
        period=period(history["since"], history["until"]),
        markdown=markdown,
        html=to_html(heading, blocks),
        figures=list(_figures(history, tickets, people)),
        problems=len(findings["problems"]["items"]),
        people=[person["name"] for person in people["items"]],
    )


def _title(history: History, title: str | None) -> str:
    return title or f"Weekly report: {escaped(history['repository'])}"


def _front(history: History, tickets: Tickets, title: str | None) -> list[Block]:
    span = period(history["since"], history["until"])
    return [
        Heading(_title(history, title), 1),
        Paragraph(_subtitle(history, span)),
        *map(Note, [*history["notes"], *tickets["notes"]]),
    ]


@dataclass(frozen=True)
class _Section:
    """The place of what a writer wrote about a person, and the facts for it."""

    number: int
    facts: list[list[str]]


def _body(findings: Findings) -> Iterator[Block | _Section]:
    """What follows the overview."""
    history, tickets, people = findings["history"], findings["tickets"], findings["people"]
    problems = findings["problems"]
    yield from _figure_blocks(list(_figures(history, tickets, people)))
    yield from _listed("Highlights", findings["summary"]["highlights"], 10)
    yield from _module_blocks(findings["modules"]["items"])
    yield from _people_blocks(people, findings["briefs"])
    yield from _problem_blocks(problems["items"])
    yield from _plan_blocks(findings["plan"], list(follow_ups(problems)))
    yield from _commit_blocks(history["items"], known(history, tickets))


def _subtitle(history: History, span: str) -> str:
    branch = f", branch {code(history['branch'])}" if history["branch"] else ""
    return f"{span[0].upper()}{span[1:]}, repository {code(history['repository'])}{branch}"


def _written(text: str | None, facts: Sequence[Sequence[str]]) -> list[Block]:
    """The writer's text; without one, the facts."""
    blocks = prose(text) if isinstance(text, str) else []
    return blocks or [Paragraph(" ".join(group)) for group in facts]


def _figures(history: History, tickets: Tickets, people: People) -> Iterator[Figure]:
    if history["items"]:
        yield from _commit_figures(history["items"], known(history, tickets), people)
    if tickets["items"]:
        yield from _ticket_figures(history, tickets)


def _commit_figures(found: Sequence[Commit], identities: Identities, people: People) -> Iterator[Figure]:
    """What programs committed is counted, but apart; so are the lines that nobody wrote."""
    own = [commit for commit in found if not identities.is_bot(identities.who(commit["author"]))]
    commits = [commit for commit in own if not commit["merge"]]
    parts = [f"{len(commits):,}", _merges(len(own) - len(commits)), _by_bots(len(found) - len(own))]
    yield Figure(label="Commits", value=listed([part for part in parts if part]))
    yield Figure(label="People", value=f"{sum(not person['bot'] for person in people['items']):,}")
    files = {change["path"] for commit in commits for change in commit["files"]}
    yield Figure(label="Files changed", value=f"{len(files):,}")
    added, removed = lines_written(commits)
    bulk = sum(commit["insertions"] for commit in commits) - added
    more = f" and {bulk:,} in data and generated files" if bulk else ""
    yield Figure(label="Lines added", value=f"{added:,}{more}")
    yield Figure(label="Lines removed", value=f"{removed:,}")


def _merges(number: int) -> str:
    return count(number, "merge") if number else ""


def _by_bots(number: int) -> str:
    return f"{number:,} by bots" if number else ""


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
            yield Paragraph(f"And {count(len(modules) - MODULES_SHOWN, 'more module')} with fewer commits.")


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


def _people_blocks(people: People, briefs: Sequence[Brief]) -> Iterator[Block | _Section]:
    """A section for each person; the figures of somebody who did everything are those of the whole."""
    single = alone(people["items"])
    sections = {_key(brief): _Section(number, brief["facts"]) for number, brief in enumerate(briefs)}
    if briefs:
        yield Heading(f"What {briefs[0]['name']} did" if single else "Who did what")
    for person in people["items"]:
        if (section := sections.get(_key(person))) is not None:
            yield from () if single else _person_head(person)
            yield section
    bots = [
        f"{one['name']} ({count(one['commits'] + one['merges'], 'commit')})"
        for one in people["items"]
        if one["bot"]
    ]
    if bots:
        yield Paragraph(sentence(f"Bots committed too: {listed(bots, limit=5)}"))


def _key(one: Brief | Person) -> tuple[str, ...]:
    """Two people may have one name, but no email."""
    return one["name"], *one["emails"]


def _person_head(person: Person) -> Iterator[Block]:
    yield Heading(person["name"], 3)
    if line := _person_line(person):
        yield Paragraph(line)


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


def _plan_blocks(plan: Plan, left_over: list[str]) -> Iterator[Block]:
    if plan["steps"] or left_over:
        yield Heading("Next week")
    if plan["steps"]:
        yield Bullets(tuple(map(_step, plan["steps"])), ordered=True)
    if plan["waiting"]:
        yield Paragraph(sentence(f"{count(plan['waiting'], 'more open ticket')} can wait"))
    if left_over:
        if plan["steps"]:
            yield Paragraph("Left over from this week:")
        yield Bullets(cut(left_over, 6))


def _step(step: Step) -> str:
    who = f", {step['assignee']}" if step["assignee"] else ""
    why = f": {', '.join(step['reasons'])}" if step["reasons"] else ""
    return f"**{step['key']}** {quoted(step['title'])}{who}{why}"


def _commit_blocks(commits: Sequence[Commit], identities: Identities) -> Iterator[Block]:
    """All commits; the authors are left out where each line would name the same one."""
    named = len(set(map(identities.who, everybody(commits)))) > 1
    if commits:
        shown = (_commit(commit, _authors(commit, identities) if named else "") for commit in commits)
        yield Heading("All commits")
        yield Details(f"Show {count(len(commits), 'commit')}", (Bullets(cut(shown, COMMITS_SHOWN)),))


def _authors(commit: Commit, identities: Identities) -> str:
    names = dict.fromkeys(map(identities.name_of, everybody([commit])))
    return f", {listed(list(names))}"


def _commit(commit: Commit, authors: str) -> str:
    if commit["merge"]:
        size = "merge"
    elif commit["boundary"]:
        size = "changes unknown"
    else:
        size = f"+{commit['insertions']:,} −{commit['deletions']:,}, {count(commit['file_count'], 'file')}"
    subject = escaped(clipped(commit["subject"], 120))
    return f"{code(commit['hash'][:7])} {short_day(commit['date'])}{authors}: {subject} ({size})"
