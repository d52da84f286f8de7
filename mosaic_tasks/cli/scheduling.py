"""The commands for runs that start by themselves: schedule add, list, show, run, pause, resume, remove."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mosaic_queues.errors import InputError
from mosaic_tasks.cli.checks import START_BEAT
from mosaic_tasks.cli.options import FileArgument, JsonOption, dollars, utf8
from mosaic_tasks.cli.output import console, print_json, table
from mosaic_tasks.cli.running import PriorityOption, read_inputs, say_started

if TYPE_CHECKING:
    from mosaic_tasks.definition.workflow import Workflow
    from mosaic_tasks.execution.process import Process
    from mosaic_tasks.scheduling.schedules import Schedule, Schedules, Started, Unreadable

T = TypeVar("T")

_NONE = "there are no schedules; add one: mosaic schedule add FILE --cron '0 7 * * MON'"
_SHOWN_TICKS = 5
_SHOWN_RUNS = 10

schedule = typer.Typer(
    name="schedule",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Start runs by the clock: add, list, show, run, pause, resume or remove schedules. A beat starts them: "
    f"{START_BEAT}",
)


class CatchUpChoice(StrEnum):
    """What becomes of ticks that nobody ran."""

    LATEST = "latest"
    ALL = "all"
    SKIP = "skip"


NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", callback=utf8, help="As `mosaic schedule list` shows it.")
]


@schedule.command()
def add(
    file: FileArgument,
    name: Annotated[
        str | None, typer.Option(callback=utf8, help="Its name. Default: that of the workflow.")
    ] = None,
    cron: Annotated[
        str | None, typer.Option(metavar="'M H D M W'", help="Minute, hour, day, month, weekday.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time from one tick to the next: 15m, 6h.")
    ] = None,
    zone: Annotated[
        str, typer.Option(help="IANA time zone of --cron, --start and --end, such as Europe/Berlin.")
    ] = "UTC",
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=VALUE",
            help="An input; may be repeated. Sees tick.time, tick.previous, tick.date.",
        ),
    ] = None,
    catch_up: Annotated[
        CatchUpChoice,
        typer.Option(help="Of ticks that nobody ran: run the latest alone, all of them, or none."),
    ] = CatchUpChoice.LATEST,
    jitter: Annotated[
        str, typer.Option(metavar="DURATION", help="Start each run later by up to this.")
    ] = "0s",
    start: Annotated[str | None, typer.Option(metavar="TIME", help="No tick before: 2026-12-01.")] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="No tick after.")] = None,
    priority: PriorityOption = 0,
    tenant: Annotated[str, typer.Option(callback=utf8, help="On whose account its runs are.")] = "",
    budget: Annotated[
        float | None, typer.Option(metavar="USD", parser=dollars, help="US dollars that a run may cost.")
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Have workers tell the end of each run here.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add a schedule of a workflow file, or with neither --cron nor --every all that stand in its `schedules:`.

    What runs is the workflow as it is now: add it again when the file, or the model that MOSAIC_MODEL names, has
    changed. Adding the same again changes nothing. Ticks count from now on.

    \b
    Examples:
      mosaic schedule add report.yaml
      mosaic schedule add report.yaml --cron '0 7 * * MON' --zone Europe/Berlin -i since='{{ tick.previous }}'
      mosaic schedule add check.yaml --name check --every 15m --jitter 2m --catch-up skip
    """
    from mosaic_tasks.definition.workflow import Workflow
    from mosaic_tasks.scheduling.starting import put_schedule

    workflow = Workflow.from_file(file)
    if cron is None and every is None:
        names = _names(workflow, name)
    else:
        data: dict[str, Any] = {"cron": cron, "every": every, "zone": zone, "jitter": jitter}
        data |= {"catch_up": str(catch_up), "start": start, "end": end, "priority": priority}
        data |= {"tenant": tenant, "budget": budget, "inputs": read_inputs(workflow, inputs or [])}
        data |= {"webhook": webhook}
        names = [name or workflow.name]
        workflow = _with_schedule(workflow, names[0], data)
    told = _with_schedules(lambda stored, _: {each: put_schedule(stored, each, workflow) for each in names})
    if as_json:
        print_json(told)
        return
    for each, what in told.items():
        typer.echo(f"{each}: {'there already, and the same' if what == 'same' else what}")
    typer.echo("see what comes: mosaic schedule list", err=True)
    _miss_beat()


def _names(workflow: Workflow, name: str | None) -> list[str]:
    """Those of the schedules of the file, or the one that is meant."""
    from mosaic_tasks.definition.references import did_you_mean

    names = list(workflow.schedules)
    if not names:
        raise InputError(
            f"workflow {workflow.name!r} has no `schedules:`; give --cron '0 7 * * MON' or --every 6h"
        )
    if name is None:
        return names
    if name not in names:
        raise InputError(f"workflow {workflow.name!r} has no schedule {name!r}{did_you_mean(name, names)}")
    return [name]


def _with_schedule(workflow: Workflow, name: str, data: dict[str, Any]) -> Workflow:
    """The workflow with the schedule that options say, as if it stood in the file."""
    from mosaic_tasks.definition.workflow import Workflow

    given = {key: value for key, value in data.items() if value is not None}
    whole = workflow.model_dump(by_alias=True, exclude_defaults=True)
    return Workflow.from_data({**whole, "schedules": {name: given}})


@schedule.command("list")
def list_schedules(as_json: JsonOption = False) -> None:
    """List the schedules: when they start a run next, what became of the last one, and what is wrong.

    \b
    Examples:
      mosaic schedule list
      mosaic schedule list --json | jq -r '.[] | select(.problem != "") | .name'
    """
    found = _with_schedules(_listed)
    if as_json:
        print_json(found)
    elif not found:
        typer.echo(_NONE)
    else:
        rows = table("NAME", "WORKFLOW", "NEXT", "LAST RUN", "STATUS", "PROBLEM")
        for each in found:
            ticks = [] if each["paused"] else each["next"]
            shown = ticks[0] if ticks else ("paused" if each["paused"] else "never")
            last = each["last_run"] or {"run": "", "status": ""}
            rows.add_row(each["name"], each["workflow"], shown, last["run"], last["status"], each["problem"])
        console(unknown_width=200).print(rows)
        _miss_beat()


def _listed(stored: Schedules, process: Process) -> list[dict[str, Any]]:
    found = stored.all()
    last = stored.last_runs([each.name for each in found])
    now = _now(process)
    return [
        _told(each, now, 1) | {"last_run": None if run is None else _run(run, process)}
        for each, run in zip(found, last, strict=True)
    ]


def _told(each: Schedule | Unreadable, now: int, ticks: int) -> dict[str, Any]:
    """What is known of a schedule, its next ticks in the time of its zone."""
    from mosaic_tasks.scheduling.schedules import Schedule
    from mosaic_tasks.scheduling.ticks import shown_at, upcoming

    if not isinstance(each, Schedule):
        return {"name": each.name, "workflow": "", "next": [], "paused": False, "problem": each.problem}
    try:
        coming, problem = upcoming(each.timing, max(now, each.last), ticks), each.problem
    except (ValueError, KeyError) as error:  # its zone is not known here
        coming, problem = [], str(error)
    return {
        "name": each.name,
        "workflow": each.said.workflow,
        "cron": each.timing.cron,
        "every_s": each.timing.every_s,
        "zone": each.timing.zone,
        "next": [shown_at(tick, each.timing.zone) for tick in coming],
        "paused": each.paused,
        "problem": problem,
    }


def _run(started: Started, process: Process) -> dict[str, Any]:
    """A run and its state, as far as it is kept."""
    from mosaic_queues.errors import UnknownRun

    try:
        status: str = process.ledger.run(started.run).status
    except UnknownRun:
        status = "past its retention"
    return {"run": started.run, "tick": started.tick, "at": started.at, "status": status}


@schedule.command()
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show a schedule: what it says, its next five ticks, and the runs that it started last.

    \b
    Example:
      mosaic schedule show monday
    """

    def look(stored: Schedules, process: Process) -> dict[str, Any]:
        found = stored.get(name)
        plan = stored.plan(name)
        runs = [_run(each, process) for each in stored.runs(name, most=_SHOWN_RUNS)]
        timing = {"catch_up": found.timing.catch_up, "jitter_s": found.timing.jitter_s}
        terms = {"priority": plan.priority, "tenant": plan.tenant, "budget_usd": plan.budget_usd}
        return {
            **_told(found, _now(process), _SHOWN_TICKS),
            "inputs": found.said.inputs,
            **timing,
            **terms,
            "runs": runs,
        }

    found = _with_schedules(look)
    if as_json:
        print_json(found)
        return
    from mosaic_tasks.scheduling.ticks import shown_at

    zone = found["zone"]
    for key, value in found.items():
        if key not in ("next", "runs") and value not in ("", None, {}, 0):
            typer.echo(f"{key + ':':11} {value}")
    for tick in found["next"]:
        typer.echo(f"next:       {tick}")
    for run in found["runs"]:
        by = "by hand" if run["tick"] is None else shown_at(run["tick"], zone)
        typer.echo(f"run:        {run['run']}  {run['status']}  {by}")


@schedule.command()
def run(name: NameArgument, as_json: JsonOption = False) -> None:
    """Start a run of a schedule now, besides its ticks.

    \b
    Example:
      mosaic schedule run monday
    """
    from mosaic_tasks.client import get_run
    from mosaic_tasks.scheduling.starting import start_now

    def start(stored: Schedules, process: Process) -> str:
        run_id = start_now(process, stored.get(name), stored.plan(name), _now(process))
        stored.note_by_hand(name, run_id)
        return run_id

    say_started(get_run(_with_schedules(start)), as_json=as_json)


@schedule.command()
def pause(name: NameArgument, as_json: JsonOption = False) -> None:
    """Have a schedule start nothing until it is resumed.

    \b
    Example:
      mosaic schedule pause monday
    """
    done = _with_schedules(lambda stored, _: stored.pause(name))
    _tell(name, "paused", done, "is paused" if done else "was paused already", as_json=as_json)


@schedule.command()
def resume(name: NameArgument, as_json: JsonOption = False) -> None:
    """Have a paused schedule go on, with the ticks from now on: those of the pause are left out.

    \b
    Example:
      mosaic schedule resume monday
    """
    done = _with_schedules(lambda stored, _: stored.resume(name))
    _tell(name, "resumed", done, "goes on" if done else "was not paused", as_json=as_json)


@schedule.command()
def remove(name: NameArgument, as_json: JsonOption = False) -> None:
    """Remove a schedule. Runs that it started go on.

    \b
    Example:
      mosaic schedule remove monday
    """
    _with_schedules(lambda stored, _: stored.remove(name))
    _tell(name, "removed", True, "is removed", as_json=as_json)


def _tell(name: str, key: str, done: bool, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, key: done})
    else:
        typer.echo(f"the schedule {name!r} {words}")


def _now(process: Process) -> int:
    from mosaic_queues.connection import server_ms

    return server_ms(process.client) // 1000


def _miss_beat() -> None:
    """Says so where nobody starts what is due."""
    from mosaic_tasks.app import app

    if not _with_schedules(lambda _, process: process.client.exists(app.conf.redbeat_lock_key)):
        typer.echo(f"no beat runs, so nothing starts by itself: {START_BEAT}", err=True)


def _with_schedules(act: Callable[[Schedules, Process], T]) -> T:
    from mosaic_queues.connection import server_errors
    from mosaic_tasks.app import app
    from mosaic_tasks.execution.process import ledger_url, process_for
    from mosaic_tasks.scheduling.schedules import Schedules

    with server_errors(ledger_url(app)):
        process = process_for(app)
        return act(Schedules(process.client, process.ledger.keys), process)
