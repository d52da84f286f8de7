"""Batches that are over, without any that ran."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mosaic_tasks.reports.document import About
from mosaic_tasks.reports.formats import Format
from mosaic_tasks.reports.making import Work
from mosaic_tasks.reports.places import Folder, Place
from mosaic_tasks.reports.result import Entry, Result, Usage, read_results

BEGAN_MS = 1_796_000_000_000
ABOUT = About("Week <48>", "weekly", "mosaic batch weekly.yaml -o out/", "in.jsonl", "out/results.jsonl")


def done(line: int, output: Any, *, label: str = "", tokens: int = 0, cost_usd: float = 0.0) -> Entry:
    usage = Usage(
        began_ms=BEGAN_MS + line * 60_000,
        ended_ms=BEGAN_MS + line * 60_000 + 1_500,
        tokens=(tokens, 0),
        cost_usd=cost_usd,
    )
    made = Result(line=line, run=f"run-{line}", status="done", key=f"k{line}", output=output, usage=usage)
    return Entry(label or f"item {line}", made)


def failed(line: int, error: str, *, status: str = "failed") -> Entry:
    return Entry(f"item {line}", Result(line=line, run=None, status=status, key=f"k{line}", error=error))


def write(path: Path, entries: list[Entry]) -> None:
    """The file of their results."""
    lines = []
    for entry in entries:
        result = entry.result
        usage = result.usage and {
            name: getattr(result.usage, name) for name in result.usage.__struct_fields__
        }
        told = {"line": result.line, "run": result.run, "status": result.status, "usage": usage}
        lines.append(json.dumps({**told, "output": result.output, "error": result.error, "key": result.key}))
    path.write_text("".join(f"{line}\n" for line in lines))


def work(
    folder: Path,
    *formats: Format,
    each: bool = False,
    template: str | None = None,
    place: Place | None = None,
) -> Work:
    """What makes the reports of the results in a folder."""
    results = folder / "results.jsonl"

    def entries() -> Iterator[Entry]:
        for result in read_results(results):
            label = result.output.get("title") if isinstance(result.output, dict) else None
            yield Entry(label or f"item {result.line}", result)

    return Work(
        about=ABOUT, entries=entries, place=place or Folder(folder), stem="report", formats=formats,
        sources=(results,), results=results, each=each, template=template,
    )  # fmt: skip
