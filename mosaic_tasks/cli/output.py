"""What the command prints: JSON documents, and consoles that suit the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_UNKNOWN_WIDTH = 100


def to_json(document: Any, *, indent: int = 2) -> str:
    """JSON text of any value that a run can hold; bytes become base64. With `indent` 0 one line."""
    import msgspec

    from mosaic_tasks.inspection import documents

    data = documents.to_json(document)
    return (msgspec.json.format(data, indent=indent) if indent else data).decode()


def shown(text: str, *, stream: TextIO | None = None) -> str:
    """The text for stdout, or another stream: a terminal gets nothing to obey, files and pipes get it as it is."""
    from mosaic_queues.texts import visible

    return visible(text) if (stream or sys.stdout).isatty() else text


def print_json(document: Any) -> None:
    """Prints one JSON document: for a terminal on several lines, for everybody else on one."""
    typer.echo(shown(to_json(document, indent=2 if sys.stdout.isatty() else 0)))


def print_json_line(document: Any, *, stream: TextIO | None = None) -> None:
    """Prints one line of JSON, at once, for readers that follow; on stdout unless told otherwise."""
    typer.echo(shown(to_json(document, indent=0), stream=stream), file=stream)
    (stream or sys.stdout).flush()


def print_value(value: Any) -> None:
    """Prints a run's output: text as it is, everything else as JSON, and a newline where it ends without one."""
    text = shown(value if isinstance(value, str) else to_json(value))
    typer.echo(text, nl=not text.endswith("\n"))


def console(*, to_stderr: bool = False, unknown_width: int = _UNKNOWN_WIDTH) -> Console:
    """A rich console that marks nothing up by itself, of `unknown_width` where that of the terminal is not known."""
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() else unknown_width
    return Console(stderr=to_stderr, width=width, highlight=False, markup=False, emoji=False)


def table(*columns: str) -> Table:
    """A plain table."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def is_ascii_only() -> bool:
    """Whether stdout cannot show block characters."""
    return (sys.stdout.encoding or "ascii").lower().replace("-", "") not in ("utf8", "utf8sig")


def logs_to_stderr() -> None:
    """Keeps logs out of stdout, which belongs to the answer, and values out of their tracebacks."""
    import structlog

    processors = structlog.get_config()["processors"][:-1]
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(
        processors=[*processors, console], logger_factory=lambda *_: structlog.PrintLogger(sys.stderr)
    )
