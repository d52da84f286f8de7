"""A report by a template of one's own: Jinja that makes Markdown, of which HTML and PDF are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mosaic_queues.errors import BindingError, InputError
from mosaic_tasks.definition.templates import TemplateProblem, names_in, render
from mosaic_tasks.inspection.wording import listed
from mosaic_tasks.reports.document import About, Entries, figures, headline, period, problem
from mosaic_tasks.reports.result import Entry, Totals
from mosaic_tasks.reports.texts import without_html

MAX_LINES = 2_000
"""A template gets so many lines, and so many bytes of outputs; `left_out` tells it how many lines it does not get."""
MAX_BYTES = 4_000_000
NAMES = ("again", "figures", "headline", "left_out", "lines", "period", "title", "workflow")


def read_template(path: Path) -> str:
    """The text of a template.

    Raises:
        InputError: it cannot be read or used, or reads what no report has.
    """
    try:
        source = path.read_text("utf-8")
        unknown = sorted(names_in(source) - set(NAMES))
    except (OSError, UnicodeDecodeError, TemplateProblem) as error:
        raise InputError(f"the template {str(path)!r} cannot be used: {error}") from error
    if unknown:
        raise InputError(
            f"the template {str(path)!r} reads {listed(unknown)}, which no report has; it has {listed(NAMES, most=20)}"
        )
    return source


def rendered(source: str, about: About, entries: Entries) -> tuple[str, Totals]:
    """The Markdown of a report, with tags in it shown as text; and the totals that it is of.

    Raises:
        InputError: the template fails, or does more than it may.
    """
    totals = Totals()
    lines = list(_taken(entries(), totals))
    try:
        return without_html(render(source, _names(about, totals, lines))), totals
    except BindingError as error:
        raise InputError(str(error)) from error


def _taken(entries: Iterable[Entry], totals: Totals) -> Iterator[dict[str, Any]]:
    left = MAX_BYTES
    for entry in entries:
        totals.add(entry.result)
        if totals.lines > MAX_LINES or left <= 0:
            continue
        left -= len(msgspec.json.encode(entry.result.output))
        if left > 0:
            yield _line(entry)


def _line(entry: Entry) -> dict[str, Any]:
    result = entry.result
    named = {"line": result.line, "label": entry.label, "status": result.status, "run": result.run or ""}
    usage = msgspec.to_builtins(result.usage) if result.usage else {}
    error = "" if result.is_done else problem(entry)
    return {**named, "output": result.output, "error": error, "usage": usage}


def _names(about: About, totals: Totals, lines: list[dict[str, Any]]) -> Mapping[str, Any]:
    return {
        "title": about.title,
        "workflow": about.workflow,
        "again": about.again,
        "headline": headline(totals),
        "period": period(totals),
        "figures": dict(figures(totals)),
        "lines": lines,
        "left_out": totals.lines - len(lines),
    }
