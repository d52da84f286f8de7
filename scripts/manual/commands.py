"""The page of the command line, from the help of each command."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from manual.words import page, prose, table


def cli_page() -> str:
    """The command line."""
    import typer

    from mosaic_tasks.cli import application

    command = typer.main.get_command(application)
    about = "`mosaic`, and each of its commands."
    return page("Command line", about, _contents(command), *_commands(command, "mosaic", depth=1))


def _contents(command: Any) -> str:
    """The commands by what they are for."""
    panels = groupby(command.commands.items(), key=lambda item: item[1].rich_help_panel)
    links = ((panel, ", ".join(f"[{name}](#mosaic-{name})" for name, _ in below)) for panel, below in panels)
    return table(("for", "commands"), links)


def _commands(command: Any, name: str, *, depth: int) -> Iterator[str]:
    """A command, and those below it."""
    context = command.make_context(name, [], resilient_parsing=True)
    if depth > 1:
        yield f"{'#' * min(depth, 3)} {name}"
    yield from _help(command.help)
    if not hasattr(command, "commands"):
        yield f"```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```"
    records = [each.get_help_record(context) for each in command.get_params(context)]
    rows = [(f"`{left}`", right) for left, right in filter(None, records) if "--help" not in left]
    if rows:
        yield table(("option", "meaning"), rows)
    for word, below in getattr(command, "commands", {}).items():
        yield from _commands(below, f"{name} {word}", depth=depth + 1)


def _help(text: str) -> Iterator[str]:
    """The paragraphs of a help; examples as commands that a test runs."""
    for paragraph in text.split("\n\n"):
        if not paragraph.startswith("\b"):
            yield prose(paragraph)
            continue
        title, _, block = paragraph.removeprefix("\b\n").partition("\n")
        language = "sh examples" if title.startswith(("Example", "A first run")) else "text"
        yield f"{title}\n\n```{language}\n{textwrap.dedent(block)}\n```"
