"""The command that has a part of a run done again: rerun."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_tasks.cli.options import (
    PATIENCE_S,
    JsonOption,
    OutputOption,
    PatienceOption,
    RunArgument,
    TimeoutOption,
    utf8,
)
from mosaic_tasks.cli.running import conclude, say_started, watched


def rerun(
    run_id: RunArgument,
    node: Annotated[
        str, typer.Option("--node", "-n", metavar="NODE", callback=utf8, help="The node to run again.")
    ],
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the end and print the output.")
    ] = True,
    timeout_s: TimeoutOption = None,
    patience_s: PatienceOption = PATIENCE_S,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a node of a run again, and all that depends on it; the rest is kept.

    The run may be over or not. It goes on in a new epoch, which `mosaic events` and `mosaic timeline` tell apart.
    Workers do the work: start one with `mosaic worker`. Ctrl-C ends the watching, not the run.

    Exit code 1: the run failed (again). 2: it has no such node. 3: no such run. 6: it was cancelled.

    \b
    Examples:
      mosaic rerun $RUN --node summary
      mosaic rerun $RUN --node commits --no-wait --json
    """
    from mosaic_tasks.client import get_run

    found = get_run(run_id)
    known = list(found.events())
    found.rerun(node)
    if not wait:
        say_started(found, as_json=as_json)
        return
    record = watched(found, timeout_s, patience_s, quiet=as_json, known=known)
    conclude(found, record, output, as_json=as_json)
