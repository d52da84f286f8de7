"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def utf8(text: str | None) -> str | None:
    """Lets text through that the server can hold; a terminal may give bytes that are none."""
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{text!r} is no UTF-8 text") from None
    return text


def duration(text: str | float) -> float:
    """Reads a duration, in seconds."""
    from mosaic_tasks.definition.parts import seconds

    try:
        return seconds(float(text) if str(text).replace(".", "", 1).isdecimal() else text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def lifetime(text: str | float) -> float:
    """Reads how long a key is valid, in seconds; without a unit people mean days, so a bare number is refused."""
    if isinstance(text, str) and text.replace(".", "", 1).isdecimal() and float(text):
        raise typer.BadParameter(f"{text!r} has no unit; write {text}d for days, {text}h for hours")
    return duration(text)


def dollars(text: str | float) -> float:
    """Reads an amount of US dollars."""
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise typer.BadParameter(
            f"{text!r} is no amount of money; write US dollars as a number, such as 0.50"
        )
    return amount


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", callback=utf8, help="Id of a run, as `mosaic run` prints it.")
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A workflow file (YAML).")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="PATH", help="Write the output to this file.")
]
PATIENCE_S = 5.0
PatienceOption = Annotated[
    float,
    typer.Option(
        "--patience", metavar="DURATION", parser=duration, help="Bear a queue without worker for so long."
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        parser=duration,
        help="Stop waiting after so long: 90s, 5m; the run goes on.",
    ),
]
