"""What a report says, whatever its format: the facts of a batch, and of its lines as many as the format bears."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from mosaic_tasks.inspection.wording import counted, dollars, duration, shortened
from mosaic_tasks.reports.result import Entry, Result, Totals
from mosaic_tasks.reports.texts import Shown, shown

Entries = Callable[[], Iterable[Entry]]
"""Reads the entries of a batch, from the first, each time it is called."""

_MAX_ERROR_CHARS = 2_000


class Limits(NamedTuple):
    """How much of a batch is shown: failed lines, lines in the table, outputs, and characters of one and of all."""

    failures: int
    rows: int
    outputs: int
    output_chars: int
    all_chars: int


@dataclass(frozen=True)
class About:
    """A batch.

    Attributes:
        workflow: its name.
        again: the command that goes on with it.
        inputs: the file with its lines.
        results: where the whole results are.
    """

    title: str
    workflow: str
    again: str
    inputs: str
    results: str


class Output(NamedTuple):
    """An output as far as it is shown."""

    entry: Entry
    text: Shown


@dataclass
class Excerpt:
    """The entries that are shown, without their outputs but for `outputs`, and the totals of all."""

    totals: Totals = field(default_factory=Totals)
    failures: list[Entry] = field(default_factory=list)
    rows: list[Entry] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)


def excerpt_of(entries: Iterable[Entry], limits: Limits) -> Excerpt:
    """Takes the first ones of each kind, and of outputs and errors the beginnings."""
    found, left = Excerpt(), limits.all_chars
    for entry in entries:
        found.totals.add(entry.result)
        bare = Entry(entry.label, msgspec.structs.replace(entry.result, output=None))
        if len(found.rows) < limits.rows:
            found.rows.append(bare)
        if not entry.result.is_done and len(found.failures) < limits.failures:
            found.failures.append(bare)
        if entry.result.is_done and len(found.outputs) < limits.outputs and left > 0:
            found.outputs.append(
                Output(bare, shown(entry.result.output, most=min(limits.output_chars, left)))
            )
            left -= len(found.outputs[-1].text.text)
    return found


def headline(totals: Totals) -> str:
    """How it went: `All 12 lines done`, `2 of 12 lines failed`."""
    if totals.failed:
        return f"{totals.failed:,} of {counted(totals.lines, 'line')} failed"
    return f"All {counted(totals.lines, 'line')} done" if totals.lines != 1 else "Its one line is done"


def period(totals: Totals) -> str:
    """`30 November 2026, 08:00 to 08:04 UTC`; empty where nothing ran."""
    if not totals.began_ms:
        return ""
    began, ended = (datetime.fromtimestamp(ms // 1000, UTC) for ms in (totals.began_ms, totals.ended_ms))
    day = f"{began.day} {began:%B %Y, %H:%M}"
    if (began.date(), began.hour, began.minute) == (ended.date(), ended.hour, ended.minute):
        return f"{day} UTC"
    return (
        f"{day} to {'' if began.date() == ended.date() else f'{ended.day} {ended:%B %Y, }'}{ended:%H:%M} UTC"
    )


def figures(totals: Totals) -> Iterator[tuple[str, str]]:
    """The key figures by their names; what no engine counted is left out."""
    yield "Lines", f"{totals.lines:,}"
    yield "Done", f"{totals.done:,}"
    yield "Failed", f"{totals.failed:,}"
    if totals.began_ms:
        yield "Took", duration(totals.ended_ms - totals.began_ms)
    if totals.tokens_in or totals.tokens_out:
        yield "Tokens", f"{totals.tokens_in + totals.tokens_out:,}"
    if totals.cost_usd:
        yield "Cost", dollars(totals.cost_usd)


COLUMNS = ("Line", "Item", "Status", "Took", "Tokens", "Cost")


def row(entry: Entry) -> tuple[str, ...]:
    """The cells of a line."""
    result = entry.result
    return (f"{result.line:,}", entry.label, result.status, *_usage(result))


def _usage(result: Result) -> tuple[str, str, str]:
    if (usage := result.usage) is None:
        return "", "", ""
    tokens = sum(usage.tokens)
    cost = dollars(usage.cost_usd) if usage.cost_usd else ""
    return duration(usage.ended_ms - usage.began_ms), f"{tokens:,}" if tokens else "", cost


def told(entry: Entry) -> str:
    """What is known of a line besides its output: `line 3, run 0193..., 3.2 s, 120 tokens`."""
    took, tokens, cost = _usage(entry.result)
    run = f"run {entry.result.run}" if entry.result.run else ""
    parts = [f"line {entry.result.line:,}", run, took, f"{tokens} tokens" if tokens else "", cost]
    return ", ".join(filter(None, parts))


def problem(entry: Entry) -> str:
    """Why a line has no output, on one line."""
    return shortened(entry.result.error, _MAX_ERROR_CHARS) or f"it was {entry.result.status}"


def remainder(shown: int, total: int, noun: str, about: About) -> str:
    """The sentence about what is not shown; empty where all is."""
    if shown >= total:
        return ""
    return f"The first {shown:,} of {counted(total, noun)} are shown; all of them are in {about.results}."


def cut_short(left_out: int, entry: Entry, about: About) -> str:
    """The sentence about the end of an output that is not shown; empty where it is."""
    if not left_out:
        return ""
    return f"{counted(left_out, 'more character')}: line {entry.result.line:,} of {about.results}."


def advice(about: About) -> tuple[str, str]:
    """How to go on where lines failed: a sentence, and the command."""
    return (
        f"The other lines keep their results. Mend these lines in {about.inputs}, which runs them anew, and give the "
        "same command again:",
        about.again,
    )
