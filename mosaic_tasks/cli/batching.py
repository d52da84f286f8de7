"""The command that runs a workflow for each line of a file: batch."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_queues.errors import InputError
from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.cli.options import PATIENCE_S, FileArgument, JsonOption, PatienceOption, utf8
from mosaic_tasks.cli.output import console, print_json
from mosaic_tasks.cli.running import PriorityOption
from mosaic_tasks.inspection.wording import counted, listed
from mosaic_tasks.reports.formats import Format

if TYPE_CHECKING:
    from mosaic_tasks.cli.batches.items import Item, Items
    from mosaic_tasks.cli.batches.publishing import Published
    from mosaic_tasks.cli.batches.results import Results
    from mosaic_tasks.cli.batches.window import Window
    from mosaic_tasks.client import Run
    from mosaic_tasks.definition.workflow import Workflow

AT_ONCE = 64
_SHOWN_PROBLEMS = 20
_SHOWN_LINES = 10


def batch(
    file: FileArgument,
    inputs: Annotated[
        Path,
        typer.Option(
            "--inputs", "-i", metavar="PATH", help="A file with the inputs of a run a line: a JSON object."
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PLACE",
            help="Write results and reports here: a file, a folder (PATH/), or the URL of an object store. Default: "
            "stdout.",
        ),
    ] = None,
    formats: Annotated[
        list[Format] | None,
        typer.Option(
            "--format",
            "-f",
            help="Make this too; several times. Default: as the suffix says; of a folder html.",
        ),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Also make a file of each line's output, in the folder items.")
    ] = False,
    title: Annotated[
        str | None,
        typer.Option("--title", callback=utf8, help="Of the report. Default: the workflow's name."),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option("--template", metavar="PATH", help="Jinja that makes the report's Markdown."),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(
            "--webhook", metavar="URL", help="POST here when all is over, signed with MOSAIC_WEBHOOK_SECRET."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            callback=utf8,
            help="Another name is another batch, which runs anew. Default: the path of the output, else of the inputs.",
        ),
    ] = None,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, help="So many runs are open at most.")
    ] = AT_ONCE,
    priority: PriorityOption = 9,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad", help="Go on without the lines that fit no run; their results say what is wrong."
        ),
    ] = False,
    patience_s: PatienceOption = PATIENCE_S,
    as_json: JsonOption = False,
) -> None:
    """Run a workflow file once for each line of a file of inputs.

    Results are lines of JSON in the order of the inputs, each written once those before it are: line, run, status
    (done, failed, cancelled, bad), output or error, and the key of the run. All lines are checked before the first run
    starts.

    The same command, given again after whatever ended it, goes on: lines with a result are not run again, nor those
    whose run is open or retained. Lines are known by what they say: one that was mended or added since runs, the others
    keep their results, and those of lines that are gone are left out. To run lines anew that stayed the same, give
    another --name and --output. Ctrl-C ends the command, not the runs that are open; `mosaic cancel` ends these.

    Reports say how it went, list the lines, and show their outputs: text as Markdown, all else as JSON. They are made
    when all lines have their results, and again only when these changed; a PDF or HTML page of a large batch shows the
    first lines and says so.

    Exit code 0: every line has its output. 8: some have none; the last line of stderr says which. 1: the webhook was
    not taken; the same command tells it again. --json prints how many, in one document, and needs --output.

    \b
    Examples:
      mosaic batch summary.yaml --inputs tickets.jsonl --output summaries.jsonl
      mosaic batch summary.yaml -i tickets.jsonl -o summaries.jsonl --at-once 500 --priority 6
      mosaic batch weekly.yaml -i repositories.jsonl -o s3://reports/week-48/ --format html --format pdf --each
      mosaic batch summary.yaml -i tickets.jsonl | jq -r 'select(.status == "done").output'
    """
    from mosaic_tasks.cli.batches.items import Items
    from mosaic_tasks.cli.batches.publishing import Wish, publishing_of
    from mosaic_tasks.cli.batches.results import opened
    from mosaic_tasks.definition.workflow import Workflow
    from mosaic_tasks.submission import plan_for

    _check_options(output, reports=bool(formats or each or template), webhook=webhook, as_json=as_json)
    workflow = Workflow.from_file(file)
    publishing, called = None, name or str(inputs.absolute())
    if output is not None:
        wish = Wish(output, tuple(formats or ()), each, title, template, webhook, name)
        command = ["mosaic", "batch", str(file), "--inputs", str(inputs)]
        publishing = publishing_of(wish, workflow.name, command)
        called = name or publishing.output.name
        _check_apart(inputs, publishing.output.results)
    items = Items(inputs, workflow, plan_for(workflow), name=called)
    with opened(publishing.output.results if publishing else None, mark=items.mark) as results:
        standing = _examine(items, results, skip_bad=skip_bad)
        for sentence in results.settle():
            typer.echo(sentence, err=True)
        start = partial(_start, workflow, priority)
        _run(items, results, standing, start, at_once=at_once, patience_s=patience_s, quiet=as_json)
        results.sort(items)
        published = publishing.publish(items, called, told=partial(_say, as_json)) if publishing else None
    _conclude(standing, called, inputs, published, as_json=as_json)


@dataclass
class _Standing:
    """What is known of the lines; `without` are those that came to no output."""

    total: int = 0
    earlier: int = 0
    without: list[int] = field(default_factory=list)


def _examine(items: Items, results: Results, *, skip_bad: bool) -> _Standing:
    """Reads all lines, and the results of an earlier try beside them.

    Raises:
        InputError: lines fit no run, there is none, or the results are those of something else.
    """
    standing, problems, bad = _Standing(), list[str](), 0
    for item in items:
        standing.total += 1
        _count_earlier(standing, item, results)
        bad += bool(item.problem)
        if item.problem and len(problems) < _SHOWN_PROBLEMS:
            problems.append(f"{items.path}:{item.number}: {item.problem}")
    if not standing.total:
        raise InputError(
            f"{str(items.path)!r} holds no line; write a JSON object a line, the inputs of a run"
        )
    if bad and not skip_bad:
        more = [f"and {bad - len(problems):,} more"] if bad > len(problems) else []
        raise InputError("\n".join([_refused(bad, standing.total), *problems, *more]))
    return standing


def _count_earlier(standing: _Standing, item: Item, results: Results) -> None:
    found = results.earlier(item)
    if found is not None:
        standing.earlier += 1
        standing.without += [item.number] if found.status != "done" else []


def _refused(bad: int, total: int) -> str:
    fits = "fits" if bad == 1 else "fit"
    return f"{bad:,} of {counted(total, 'line')} {fits} no run, so none was started; mend them, or give --skip-bad:"


def _start(workflow: Workflow, priority: int, item: Item) -> Run:
    from mosaic_tasks.client import submit

    return submit(workflow, item.inputs, key=item.key, priority=priority)


def _run(
    items: Items,
    results: Results,
    standing: _Standing,
    start: partial[Run],
    *,
    at_once: int,
    patience_s: float,
    quiet: bool,
) -> None:
    """Runs the lines that have no result, and writes these; counts those that come to no output."""
    from mosaic_tasks.cli.batches.progress import Progress, shown
    from mosaic_tasks.cli.batches.window import Window

    failed = len(standing.without)
    progress = Progress(
        standing.total, earlier=standing.earlier, done=standing.earlier - failed, failed=failed
    )
    window = Window(start, at_once=at_once, patience_s=patience_s, ended=progress.ended)
    to = console(to_stderr=True)
    to.quiet = quiet
    try:
        with shown(progress, lambda: len(window.open), to) as renew:
            left = filter(results.lacks, islice(items, results.in_order, None))
            for result in window.results(left):
                results.append(result)
                standing.without += [result.line] if result.status != "done" else []
                renew()
    except KeyboardInterrupt:
        typer.echo(_interrupted(window), err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _interrupted(window: Window) -> str:
    runs = counted(len(window.open), "run")
    goes = "goes" if len(window.open) == 1 else "go"
    return (
        f"\n{runs} {goes} on without this terminal\n"
        "  go on with the batch:  the same command again\n"
        "  see the open runs:     mosaic status\n"
        "  cancel one of them:    mosaic cancel RUN"
    )


def _check_options(output: str | None, *, reports: bool, webhook: str | None, as_json: bool) -> None:
    """All of these need a place for the results."""
    given = {"--format": reports, "--webhook": bool(webhook), "--json": as_json}
    option = next((option for option, is_given in given.items() if is_given), None)
    if output is None and option is not None:
        raise typer.BadParameter("with it name the place of the results: --output PLACE", param_hint=option)


def _check_apart(inputs: Path, results: Path) -> None:
    """The inputs must not be taken for results, which are cut after their last whole line.

    Raises:
        InputError: both are one file.
    """
    if os.path.exists(inputs) and os.path.exists(results) and inputs.samefile(results):
        raise InputError(
            f"the results would be written to {str(results)!r}, which are the inputs; name another --output"
        )


def _say(is_quiet: bool, sentence: str) -> None:
    if not is_quiet:
        typer.echo(sentence, err=True)


def _conclude(
    standing: _Standing, name: str, inputs: Path, published: Published | None, *, as_json: bool
) -> None:
    """Says how many lines have an output, and ends with the code for that."""
    failed = len(standing.without)
    standing.without.sort()
    undelivered = published.undelivered if published else ""
    if as_json and published:
        told = {"name": name, "inputs": str(inputs), "output": published.results, "lines": standing.total}
        told |= {"done": standing.total - failed, "failed": failed, "earlier": standing.earlier}
        told |= {"reports": published.reports, "undelivered": undelivered}
        print_json({**told, "failed_lines": standing.without})
    else:
        typer.echo(_summary(standing, inputs, published), err=True)
    raise typer.Exit(ExitCode.PARTLY if failed else ExitCode.FAILED if undelivered else ExitCode.OK)


def _summary(standing: _Standing, inputs: Path, published: Published | None) -> str:
    failed, where = len(standing.without), _where(published)
    if not failed:
        return f"all {counted(standing.total, 'line')} done{where}"
    lines = listed([f"{number:,}" for number in standing.without], most=_SHOWN_LINES)
    noun = "line" if failed == 1 else "lines"
    return f"{failed:,} of {counted(standing.total, 'line')} failed: {noun} {lines} of {inputs}{where}"


def _where(published: Published | None) -> str:
    if published is None:
        return ""
    reports = f"; reports: {', '.join(published.reports)}" if published.reports else ""
    untold = f"; the webhook was not told: {published.undelivered}" if published.undelivered else ""
    return f"; results: {published.results}{reports}{untold}"
