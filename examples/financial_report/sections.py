"""Puts the report together while its sections are still being written.

A section is a stream of pieces of Markdown that ends with `LAST`. The report puts out the pieces of the section whose
turn it is as they come, and keeps those of later ones.
"""

from __future__ import annotations

from typing_extensions import TypedDict

from mosaic_tasks import fold

LAST = None
"""The last piece of a section."""

_HEADINGS = ("Overview", "Ratios", "Risks", "Outlook", "What to do", "Questions to ask", "Figures")


class Figure(TypedDict):
    """A figure, and the page of the annual report where it stands."""

    name: str
    value: float
    unit: str
    page: int


class Progress(TypedDict):
    """How far the report is.

    Attributes:
        turn: the section whose pieces are put out; beyond the last: all is out.
        begun: something of it is out.
        kept: pieces by section, not out yet.
    """

    turn: int
    begun: bool
    kept: list[list[str | None]]


@fold(finish=lambda _: [LAST])
def prose(state: None, text: str) -> tuple[None, list[str | None]]:
    """A section from a text that is being written."""
    return state, [text]


@fold()
def paragraphs(state: None, text: str) -> tuple[None, list[str]]:
    """The paragraphs of an agent that writes batch by batch: what it has written so far is whole paragraphs."""
    return state, [part for part in text.split("\n\n") if part]


@fold(initial=0, finish=lambda _: [LAST])
def figure_table(state: int, figures: list[Figure]) -> tuple[int, list[str | None]]:
    """A section with a table of figures that are still being found."""
    rows = [
        f"\n| {one['name']} | {one['value']:,.10g} | {one['unit']} | {one['page']} |".replace("  ", " ")
        for one in figures
    ]
    head = [] if state else ["| Figure | Value | Unit | Page |\n| --- | ---: | --- | ---: |"]
    return state + len(figures), [*head, *rows]


@fold(
    initial=Progress(turn=-1, begun=False, kept=[[] for _ in _HEADINGS]),
    finish=lambda _: ["\n"],
    output="text",
)
def report(
    state: Progress,
    company: str,
    year: int,
    overview: list[str | None],
    ratios: list[str | None],
    risks: list[str | None],
    outlook: list[str | None],
    actions: list[str | None],
    questions: list[str | None],
    figures: list[str | None],
) -> tuple[Progress, list[str]]:
    """The report as Markdown, each section in its place."""
    came = (overview, ratios, risks, outlook, actions, questions, figures)
    kept = [[*old, *new] for old, new in zip(state["kept"], came, strict=True)]
    turn, begun, out = state["turn"], state["begun"], []
    if turn < 0:
        turn, out = 0, [f"# {company}: the year {year}"]
    while turn < len(kept) and kept[turn]:
        piece = kept[turn].pop(0)
        if piece is LAST:
            turn, begun = turn + 1, False
            continue
        out += [piece] if begun else [f"\n\n## {_HEADINGS[turn]}\n\n", piece]
        begun = True
    return Progress(turn=turn, begun=begun, kept=kept), out
