"""Commands that start, end and collect runs: run, result, cancel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mosaic_queues.errors import InputError, RunCancelled, RunFailed, WaitTimeout
from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.cli.options import (
    PATIENCE_S,
    FileArgument,
    JsonOption,
    OutputOption,
    PatienceOption,
    RunArgument,
    TimeoutOption,
    dollars,
    duration,
    utf8,
)
from mosaic_tasks.cli.output import console, print_json, print_value, to_json


class Goal(StrEnum):
    """What routing cares for most."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    COST = "cost"


def urgency(text: str) -> int:
    """Reads a priority."""
    from mosaic_queues.topology import level_of

    try:
        return level_of(int(text) if str(text).isdecimal() else text)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None


PriorityOption = Annotated[
    int,
    typer.Option(
        "--priority",
        metavar="0..9|NAME",
        parser=urgency,
        help="Urgency in queues and engines: 0 goes first, 9 gives way to everything else; or a name of the topology.",
    ),
]

if TYPE_CHECKING:
    from mosaic_queues.events import Event
    from mosaic_queues.transitions import RunRecord
    from mosaic_routing.targets import Objective
    from mosaic_tasks.client import Run
    from mosaic_tasks.definition.workflow import Workflow


def run(
    file: FileArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="NAME=VALUE", help="An input; may be repeated. NAME=@FILE reads JSON."
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the end and print the output.")
    ] = True,
    key: Annotated[
        str | None,
        typer.Option(
            callback=utf8,
            help="Idempotency key: the same key gives the same run, started once; it is refused for anything else.",
        ),
    ] = None,
    priority: PriorityOption = 0,
    objective: Annotated[
        Goal | None,
        typer.Option(help="What the router cares for most. Default: as the workflow says, else latency."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION", parser=duration, help="The run fails when it takes longer: 90s, 5m, 1h."
        ),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="USD", parser=dollars, help="US dollars that the run may cost.")
    ] = None,
    timeout_s: TimeoutOption = None,
    patience_s: PatienceOption = PATIENCE_S,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a workflow file and print its output.

    Values of inputs are read by their declared type: text as it is, numbers, lists and objects as JSON.
    Workers do the work: start one with `mosaic worker`. Ctrl-C ends the watching, not the run.

    \b
    Examples:
      mosaic run report.yaml --input repo=. --input since='7 days ago'
      mosaic run report.yaml -i tickets=@tickets.json --output report.md
      RUN=$(mosaic run report.yaml --no-wait --key monday)    # its id, which other commands take
      mosaic run report.yaml --json | jq .output
      mosaic run report.yaml --objective cost --budget 0.50 --deadline 10m
    """
    from mosaic_tasks.client import submit
    from mosaic_tasks.definition.workflow import Workflow

    workflow = Workflow.from_file(file)
    started = submit(
        workflow,
        read_inputs(workflow, inputs or []),
        key=key,
        priority=priority,
        objective=cast("Objective | None", objective and str(objective)),
        deadline_s=deadline,
        budget_usd=budget,
    )
    if not wait:
        say_started(started, as_json=as_json)
        return
    record = watched(started, timeout_s, patience_s, quiet=as_json)
    conclude(started, record, output, as_json=as_json)


def read_inputs(workflow: Workflow, pairs: Sequence[str]) -> dict[str, Any]:
    """The inputs from `NAME=VALUE` and `NAME=@FILE`; not yet validated.

    Raises:
        InputError: one of them cannot be read.
    """
    texts: dict[str, str] = {}
    read: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InputError(f"{pair!r} is no input; write --input NAME=VALUE, or NAME=@FILE for a JSON file")
        if name in texts or name in read:
            raise InputError(f"input {name!r} is given twice; give it once, a list as JSON: '{name}=[1, 2]'")
        if text.startswith("@"):
            read[name] = _json_file(name, Path(text[1:]))
        else:
            texts[name] = text
    return {**workflow.parse_inputs(texts), **read}


def _json_file(name: str, path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"input {name!r}: cannot read {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"input {name!r}: {str(path)!r} is no JSON: {error}") from error


def say_started(started: Run, *, as_json: bool) -> None:
    """Prints the id of a run that nobody waits for."""
    if as_json:
        print_json({"run": started.id, "status": started.record().status})
        return
    typer.echo(started.id)
    typer.echo(f"watch it: mosaic events {started.id} --follow", err=True)


def watched(
    started: Run, timeout_s: float | None, patience_s: float, *, quiet: bool, known: Sequence[Event] = ()
) -> RunRecord:
    """Waits for a run's end, and shows what happens but for what is known; Ctrl-C ends that alone.

    Why a run failed is not shown: whoever takes the record tells.
    """
    from mosaic_tasks.app import app
    from mosaic_tasks.cli.live import watch
    from mosaic_tasks.cli.watched import Watched
    from mosaic_tasks.execution.process import process_for

    try:
        if quiet:
            return started.wait(timeout_s, no_worker_s=patience_s)
        shown, to = Watched(started.id, process_for(app)), console(to_stderr=True)
        return watch(shown, to, known=known, timeout_s=timeout_s, no_worker_s=patience_s)
    except KeyboardInterrupt:
        typer.echo(
            f"\nrun {started.id} goes on without this terminal\n"
            f"  watch it:  mosaic events {started.id} --follow\n"
            f"  output:    mosaic result {started.id} --wait\n"
            f"  cancel it: mosaic cancel {started.id}",
            err=True,
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def result(
    run_id: RunArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the run's end.")] = False,
    timeout_s: TimeoutOption = None,
    patience_s: PatienceOption = PATIENCE_S,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the output of a run.

    Exit code 1: the run failed. 6: it was cancelled. 7: it is not over (yet).

    \b
    Examples:
      mosaic result $RUN
      mosaic result $RUN --wait --timeout 60
    """
    from mosaic_tasks.client import get_run

    found = get_run(run_id)
    record = found.wait(timeout_s, no_worker_s=patience_s) if wait else found.record()
    if record.status == "running":
        raise WaitTimeout(f"run {run_id} is not over; wait for it with: mosaic result {run_id} --wait")
    conclude(found, record, output, as_json=as_json)


def conclude(ended: Run, record: RunRecord, output: Path | None, *, as_json: bool) -> None:
    """Prints what a run came to; raises what its end stands for."""
    value = ended.output() if record.status == "done" else None
    if as_json:
        print_json({**_head(record), "output": value})
    if record.status == "done":
        _hand_over(value, output, printed=as_json)
    elif as_json:
        raise typer.Exit(ExitCode.CANCELLED if record.status == "cancelled" else ExitCode.FAILED)
    else:
        raise bad_end(record)


def bad_end(record: RunRecord) -> RunFailed | RunCancelled:
    """The error that the end of a run stands for which is not done."""
    if record.status == "cancelled":
        return RunCancelled(f"run {record.run_id} was cancelled: {record.error or 'no reason given'}")
    return RunFailed(f"run {record.run_id} failed: {record.error}; more: mosaic explain {record.run_id}")


def _head(record: RunRecord) -> dict[str, Any]:
    return {
        "run": record.run_id,
        "name": record.name,
        "status": record.status,
        "error": record.error,
        "created_ms": record.created_ms,
        "ended_ms": record.ended_ms,
    }


def _hand_over(value: Any, output: Path | None, *, printed: bool) -> None:
    if output is None:
        if not printed:
            print_value(value)
        return
    text = value if isinstance(value, str) else to_json(value)
    try:
        output.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the output to {str(output)!r}: {error.strerror}") from error
    typer.echo(f"output: {output}", err=True)


def cancel(
    run_id: RunArgument,
    reason: Annotated[
        str, typer.Option(callback=utf8, help="Why; `mosaic status` shows it.")
    ] = "cancelled from the command line",
    as_json: JsonOption = False,
) -> None:
    """Cancel a run.

    It is durable: workers that are down now are told when they come back. What already runs is interrupted.

    \b
    Example:
      mosaic cancel $RUN --reason "wrong repository"
    """
    from mosaic_tasks.client import get_run

    found = get_run(run_id)
    cancelled = found.cancel(reason)
    status = found.record().status
    if as_json:
        print_json({"run": run_id, "cancelled": cancelled, "status": status})
    else:
        typer.echo(f"run {run_id} is cancelled" if cancelled else f"run {run_id} was over already: {status}")
