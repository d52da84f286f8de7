"""A report as Markdown: all lines of a batch, however many, written piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mosaic_tasks.reports.document import (
    COLUMNS,
    About,
    Entries,
    advice,
    cut_short,
    figures,
    headline,
    period,
    problem,
    row,
    told,
)
from mosaic_tasks.reports.result import Entry, Totals, totals_of
from mosaic_tasks.reports.texts import Shown, fenced, plain, quoted, shown, untitled, without_html

MAX_OUTPUT_CHARS = 1_000_000


def report(about: About, entries: Entries) -> Iterator[str]:
    """The blocks of a report, with the lines between them."""
    totals = totals_of(entry.result for entry in entries())
    yield f"# {plain(about.title)}\n\n{_summary(totals)}\n"
    if totals.failed:
        yield f"\n## Without output\n\n{_advice(about)}\n\n"
        yield from (_failure(entry) for entry in entries() if not entry.result.is_done)
    yield f"\n## Lines\n\n{_cells(COLUMNS)}\n{_cells(['---:', '---', '---', '---:', '---:', '---:'])}\n"
    yield from (f"{_cells(map(plain, row(entry)))}\n" for entry in entries())
    if totals.done:
        yield "\n## Outputs\n"
        yield from (_output(about, entry) for entry in entries() if entry.result.is_done)


def item(about: About, entry: Entry) -> Iterator[str]:
    """The document of one line."""
    yield f"# {_item(about, entry, quote=False)}\n"


def _summary(totals: Totals) -> str:
    when = period(totals)
    known = "\n".join(f"- {name}: {value}" for name, value in figures(totals))
    return f"**{headline(totals)}.** {when}\n\n{known}".replace(".** \n", ".**\n")


def _advice(about: About) -> str:
    sentence, command = advice(about)
    return f"{plain(sentence)}\n\n{fenced(command, 'sh')}"


def _failure(entry: Entry) -> str:
    result = entry.result
    return f"- **Line {result.line:,}**, {plain(entry.label)}, {result.status}: {plain(problem(entry))}\n"


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _output(about: About, entry: Entry) -> str:
    return f"\n### {_item(about, entry, quote=True)}\n"


def _item(about: About, entry: Entry, *, quote: bool) -> str:
    """A heading, without its mark, and what stands below it."""
    text = shown(entry.result.output, most=MAX_OUTPUT_CHARS)
    rest = cut_short(text.left_out, entry, about)
    parts = [plain(entry.label), plain(told(entry)), _body(text, entry.label, quote=quote), plain(rest)]
    return "\n\n".join(filter(None, parts))


def _body(text: Shown, label: str, *, quote: bool) -> str:
    if text.is_code:
        return fenced(text.text)
    body = untitled(text.text, label)
    return without_html(quoted(body) if quote else body)
