"""The command that reads a node's output while it is written: stream."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_tasks.cli.options import RunArgument, TimeoutOption, utf8
from mosaic_tasks.cli.output import print_json_line, shown
from mosaic_tasks.cli.running import bad_end

if TYPE_CHECKING:
    from mosaic_tasks.client import Run
    from mosaic_tasks.inspection.parts import StreamEvent


def stream(
    run_id: RunArgument,
    node: Annotated[
        str | None,
        typer.Argument(metavar="NODE", callback=utf8, help="A node's name; without it: the output node."),
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="ID", callback=utf8, help="Begin after the event with this id.")
    ] = None,
    timeout_s: TimeoutOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as one line of JSON.")] = False,
) -> None:
    """Print what a node puts out, as it comes.

    Text is printed as it is, items as one JSON document a line. What was taken back before this command read it is left
    out; what the node takes back of the printed is told on stderr. With --json each line is one event; its `id` is what
    --after takes, to go on where a reader stopped.

    Exit code 1: the run failed before the node's end. 6: it was cancelled. 7: the waiting time is over.

    \b
    Examples:
      mosaic stream $RUN
      mosaic stream $RUN sections --json
      mosaic stream $RUN --timeout 60
    """
    from mosaic_tasks.client import get_run

    run, last = get_run(run_id), None
    if queues := run.unserved_queues():
        typer.echo(f"mosaic: {run.no_worker(queues)}", err=True)
    with run.stream(node, after=after, timeout_s=timeout_s) as events:
        for event in events:
            (print_json_line if as_json else _print)(event)
            if event.kind == "end" and last is not None and not as_json:
                _end_line(last)
            last = event
    if last is None or last.kind != "end":
        _conclude(run)


def _print(event: StreamEvent) -> None:
    match event.kind:
        case "text":
            sys.stdout.write(shown(event.value))
            sys.stdout.flush()
        case "items":
            for item in event.value:
                print_json_line(item)
        case "value":
            print_json_line(event.value)
        case "retract":
            sys.stdout.write("\n")  # what follows begins a line of its own, also where nobody sees the notice
            sys.stdout.flush()
            typer.echo(f"mosaic: {event.node} takes back what it said from {event.offset} on", err=True)
        case "end":
            return


def _end_line(last: StreamEvent) -> None:
    if last.kind == "text" and not last.value.endswith("\n"):
        typer.echo()


def _conclude(run: Run) -> None:
    """Raises what a run came to that ended before its node."""
    record = run.record()
    if record.status in ("failed", "cancelled"):
        raise bad_end(record)
