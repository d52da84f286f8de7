"""A report as one HTML file that loads nothing and runs nothing; the PDF is made of the same page."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import NamedTuple

from mosaic_queues.times import utc_text
from mosaic_tasks.reports.document import (
    COLUMNS,
    About,
    Excerpt,
    Output,
    advice,
    cut_short,
    figures,
    headline,
    period,
    problem,
    remainder,
    row,
    told,
)
from mosaic_tasks.reports.result import Entry, Totals
from mosaic_tasks.reports.texts import Shown, shown, to_html, untitled

_STYLE = Path(__file__).with_name("report.css")
_NUMBERS = frozenset({"Line", "Took", "Tokens", "Cost"})
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-{digest}'; \
base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="mosaic-tasks">
{dates}<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


class Page(NamedTuple):
    """An HTML document.

    Attributes:
        ended_ms: the date of what it says; 0: none.
    """

    title: str
    body: str
    ended_ms: int

    def html(self) -> str:
        """All of it."""
        style = _style()
        digest = base64.b64encode(hashlib.sha256(f"\n{style}".encode()).digest()).decode()
        dates = _dates(self.ended_ms)
        return _PAGE.format(digest=digest, dates=dates, title=escape(self.title), style=style, body=self.body)


@lru_cache(maxsize=1)
def _style() -> str:
    return _STYLE.read_text("utf-8")


def _dates(ended_ms: int) -> str:
    if not ended_ms:
        return ""
    date = utc_text(ended_ms)
    return "".join(f'<meta name="dcterms.{name}" content="{date}">\n' for name in ("created", "modified"))


def report(about: About, excerpt: Excerpt) -> Page:
    """A report of what was taken out of a batch."""
    totals = excerpt.totals
    parts = [_header(about, totals), _figures(totals), _failures(about, excerpt)]
    parts += [_table(about, excerpt), _outputs(about, excerpt)]
    return Page(about.title, "\n".join(filter(None, parts)), totals.ended_ms)


def item(about: About, entry: Entry, *, most: int) -> Page:
    """The document of one line."""
    text = shown(entry.result.output, most=most)
    body = f"{_heading(entry, 1)}\n{_text(about, entry, text, below=1)}"
    return Page(entry.label, body, entry.result.usage.ended_ms if entry.result.usage else 0)


def of_markdown(title: str, markdown: str, *, ended_ms: int) -> Page:
    """The page of a text that a template made."""
    return Page(title, to_html(markdown), ended_ms)


def _header(about: About, totals: Totals) -> str:
    mark = "failed" if totals.failed else "done"
    known = " · ".join(filter(None, [period(totals), f"workflow {about.workflow}"]))
    return (
        f'<header>\n<p class="verdict {mark}">{escape(headline(totals))}</p>\n'
        f'<h1>{escape(about.title)}</h1>\n<p class="known">{escape(known)}</p>\n</header>'
    )


def _figures(totals: Totals) -> str:
    tiles = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in figures(totals))
    return f'<dl class="figures">\n{"".join(tiles)}\n</dl>'


def _failures(about: About, excerpt: Excerpt) -> str:
    if not excerpt.failures:
        return ""
    sentence, command = advice(about)
    found = "\n".join(_failure(entry) for entry in excerpt.failures)
    rest = _note(remainder(len(excerpt.failures), excerpt.totals.failed, "failed line", about))
    return (
        f'<section class="failures">\n<h2>Without output</h2>\n<ul>\n{found}\n</ul>\n{rest}'
        f"<p>{escape(sentence)}</p>\n<pre><code>{escape(command)}</code></pre>\n</section>"
    )


def _failure(entry: Entry) -> str:
    result = entry.result
    return (
        f"<li><strong>Line {result.line:,}</strong>, {escape(entry.label)} {_badge(result.status)}"
        f"<br>{escape(problem(entry))}</li>"
    )


def _badge(status: str) -> str:
    return f'<span class="badge {escape(status)}">{escape(status)}</span>'


def _table(about: About, excerpt: Excerpt) -> str:
    linked = {output.entry.result.line for output in excerpt.outputs}
    cells = [(entry.result.line, row(entry)) for entry in excerpt.rows]
    kept = [place for place in range(len(COLUMNS)) if any(each[place] for _, each in cells)]
    head = "".join(f"<th{_class(COLUMNS[place])}>{COLUMNS[place]}</th>" for place in kept)
    rows = "\n".join(f"<tr>{_row(each, kept, line if line in linked else None)}</tr>" for line, each in cells)
    rest = _note(remainder(len(excerpt.rows), excerpt.totals.lines, "line", about))
    return (
        f'<section>\n<h2>Lines</h2>\n<div class="wide"><table class="lines">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>\n{rest}</section>"
    )


def _row(cells: tuple[str, ...], kept: list[int], anchor: int | None) -> str:
    return "".join(
        f"<td{_class(COLUMNS[place])}>{_cell(COLUMNS[place], cells[place], anchor)}</td>" for place in kept
    )


def _cell(column: str, text: str, anchor: int | None) -> str:
    if column == "Status":
        return _badge(text)
    if column == "Item" and anchor is not None:
        return f'<a href="#line-{anchor}">{escape(text)}</a>'
    return escape(text)


def _class(column: str) -> str:
    return ' class="number"' if column in _NUMBERS else ""


def _outputs(about: About, excerpt: Excerpt) -> str:
    if not excerpt.outputs:
        return ""
    rest = _note(remainder(len(excerpt.outputs), excerpt.totals.done, "output", about))
    articles = "\n".join(_article(about, output) for output in excerpt.outputs)
    return f'<section class="outputs">\n<h2>Outputs</h2>\n{rest}{articles}\n</section>'


def _article(about: About, output: Output) -> str:
    body = _text(about, output.entry, output.text, below=3)
    return f'<article id="line-{output.entry.result.line}">\n{_heading(output.entry, 3)}\n{body}\n</article>'


def _heading(entry: Entry, level: int) -> str:
    return f'<h{level}>{escape(entry.label)}</h{level}>\n<p class="known">{escape(told(entry))}</p>'


def _text(about: About, entry: Entry, text: Shown, *, below: int) -> str:
    rest = _note(cut_short(text.left_out, entry, about))
    if text.is_code:
        return f"<pre><code>{escape(text.text)}</code></pre>\n{rest}"
    return f'<div class="text">\n{to_html(untitled(text.text, entry.label), below=below)}</div>\n{rest}'


def _note(sentence: str) -> str:
    return f'<p class="note">{escape(sentence)}</p>\n' if sentence else ""
