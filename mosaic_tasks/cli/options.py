"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, as `mosaic run` prints it.")]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A workflow file (YAML).")]
PatienceOption = Annotated[
    float,
    typer.Option("--patience", min=0, metavar="SECONDS", help="Bear a queue without worker for so long."),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", min=0, metavar="SECONDS", help="Stop waiting after so long; the run goes on."),
]
