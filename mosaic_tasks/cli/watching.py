"""Commands that look at runs: status, events, explain, timeline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_queues.errors import InputError
from mosaic_tasks.cli.options import JsonOption, RunArgument, utf8
from mosaic_tasks.cli.output import console, is_ascii_only, print_json, print_json_line, table
from mosaic_tasks.inspection.wording import dollars, duration, shortened

if TYPE_CHECKING:
    from mosaic_queues.events import Event
    from mosaic_queues.transitions import RunRecord
    from mosaic_tasks.client import Run
    from mosaic_tasks.inspection.explaining import Explanation
    from mosaic_tasks.inspection.progress import NodeView
    from mosaic_tasks.mixtures.recording import Record


class State(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


def status(
    run_id: Annotated[
        str | None,
        typer.Argument(metavar="RUN", callback=utf8, help="Id of a run; without it: runs, newest first."),
    ] = None,
    state: Annotated[
        State | None, typer.Option("--status", help="Of all runs: those in this state alone.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Of all runs: so many at most.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show runs, newest first, those that are over too; or one run with its nodes.

    \b
    Examples:
      mosaic status
      mosaic status --status running
      mosaic status $RUN --json
    """
    from mosaic_tasks.client import get_run, list_runs

    if run_id is None:
        found = list_runs(status=None if state is None else state.value, limit=limit)
        _show_runs(found, as_json=as_json)
    else:
        _show_run(get_run(run_id), as_json=as_json)


def _show_runs(records: list[RunRecord], *, as_json: bool) -> None:
    if as_json:
        print_json(records)
        return
    if not records:
        typer.echo("there is no such run")
        return
    rows = table("RUN", "WORKFLOW", "STATUS", "SINCE")
    now_ms = time.time() * 1000
    for record in records:
        rows.add_row(record.run_id, record.name, record.status, duration(now_ms - record.created_ms))
    console().print(rows)


def _show_run(run: Run, *, as_json: bool) -> None:
    from mosaic_tasks.inspection.explaining import ending

    record, view = run.record(), run.view()
    if as_json:
        print_json({"run": record, "nodes": view.nodes})
        return
    now_ms = int(time.time() * 1000)
    running = f"running for {duration(now_ms - record.created_ms)}"
    typer.echo(f"{record.name} {record.run_id}: {running if record.status == 'running' else ending(view)}")
    _show_nodes(view.nodes, now_ms)
    _show_usage(view.nodes)


def _show_nodes(nodes: Sequence[NodeView], now_ms: int) -> None:
    """Each node, and what mixtures came to."""
    from mosaic_tasks.inspection.arranging import arranged, label
    from mosaic_tasks.inspection.decisions import in_short

    rows = table("NODE", "STATE", "TIME", "CALLS", "ATTEMPTS", "ERROR")
    for node in arranged(nodes):
        took = node.running_ms(now_ms)
        rows.add_row(
            label(node),
            f"{node.state} (epoch {node.epoch})" if node.epoch else node.state,
            "" if took is None else duration(took),
            _calls(node),
            str(node.attempts),
            node.error,
        )
    console().print(rows)
    for node in nodes:
        if node.record is not None and node.state != "failed":  # whose error is in the table
            typer.echo(f"{node.name}: {in_short(node.record)}")


def _show_usage(nodes: Sequence[NodeView]) -> None:
    sent, received = (sum(node.tokens[side] for node in nodes) for side in (0, 1))
    if sent or received:
        cost = sum(node.cost_usd for node in nodes)
        typer.echo(f"engines: {sent} tokens in, {received} out, {dollars(cost)} where the price is known")
    if hits := [node for node in nodes if node.cached_tokens]:
        rates = ", ".join(f"{node.name} {node.cached_tokens / node.tokens[0]:.0%}" for node in hits)
        typer.echo(f"prompt tokens from prefix caches: {rates}")


def _calls(node: NodeView) -> str:
    cut = f" ({node.calls_cut} cut off)" if node.calls_cut else ""
    return f"{node.calls_done}/{node.calls}{'+' if node.grows else ''}{cut}"


def events(
    run_id: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as things happen, to the end.")
    ] = False,
    after: Annotated[str, typer.Option(metavar="ID", help="Begin after the event with this id.")] = "0",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")] = False,
) -> None:
    """Print what happened to a run, in order.

    A node that reads streams is claimed many times: told are the first time and, in the end, how often. With --json
    each line is one event, and none is left out; its `id` is what --after takes, to go on where a reader stopped.

    \b
    Examples:
      mosaic events $RUN
      mosaic events $RUN --follow --json
    """
    from mosaic_tasks.client import get_run
    from mosaic_tasks.inspection.progress import nodes_of
    from mosaic_tasks.inspection.telling import Teller

    run = get_run(run_id)
    plan = run.plan()
    teller = Teller(plan, run.record().created_ms)
    for event in _checked(run.events(follow=follow, after=after), after):
        if as_json:
            print_json_line({**event._asdict(), "nodes": nodes_of(plan, event)})
        else:
            for line in teller.lines(event):
                typer.echo(line)


def _checked(found: Iterable[Event], after: str) -> Iterable[Event]:
    entry, _, index = after.partition("/")
    if not all(part.isdigit() for part in (*entry.split("-"), index or "0")):
        raise InputError(f"{after!r} is no id of an event; take one from: mosaic events RUN --json")
    return found


_MOST_LINES = 40


def explain(
    run_id: RunArgument,
    everything: Annotated[bool, typer.Option("--all", help="Explain every node, however many.")] = False,
    node: Annotated[
        str | None,
        typer.Option(metavar="NODE", callback=utf8, help="Explain this node alone; of a mixture: each call."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what each node of a run waits for.

    Names the queue that no worker serves, the retry that is due and its error, the process that works on a
    node or died, the producers that are not done. Of a finished run: how it ended. Of a mixture: whom it asks, why it
    stopped, the votes, who was cut off and what that saved; with --node what each expert answered.

    \b
    Examples:
      mosaic explain $RUN
      mosaic explain $RUN --node summary
    """
    from mosaic_tasks.client import get_run

    run = get_run(run_id)
    found = run.explain()
    if node is not None:
        _explain_node(run.node(node), run_id, found, as_json=as_json)
        return
    if as_json:
        print_json({"run": run_id, "explanations": found})
        return
    shown = found if everything else found[:_MOST_LINES]
    for explanation in shown:
        typer.echo(str(explanation))
    if len(found) > len(shown):
        typer.echo(f"... and {len(found) - len(shown)} more nodes; see all with --all")


def _explain_node(node: NodeView, run_id: str, explanations: Iterable[Explanation], *, as_json: bool) -> None:
    found = [each for each in explanations if each.node == node.name]
    if as_json:
        print_json({"run": run_id, "node": node, "explanations": found})
        return
    for explanation in found:
        typer.echo(str(explanation))
    if not found:
        typer.echo(f"{node.name}: {_state(node)}")
    if node.record is not None:
        _show_record(node.record)


def _state(node: NodeView) -> str:
    took = node.running_ms(int(time.time() * 1000))
    after = "" if took is None else f" after {duration(took)}"
    return f"{node.state}{after}" + (f": {shortened(node.error, 500)}" if node.error else "")


def _show_record(record: Record) -> None:
    """What each call of a mixture came to, and the votes."""
    from mosaic_tasks.inspection import decisions

    for columns, found in (
        (decisions.CALL_COLUMNS, decisions.call_rows(record)),
        (decisions.VOTE_COLUMNS, decisions.vote_rows(record)),
    ):
        if found:
            rows = table(*columns)
            for row in found:
                rows.add_row(*row)
            console().print("", rows)
    typer.echo(f"\n{decisions.totals(record)}")


def timeline(
    run_id: RunArgument,
    svg: Annotated[Path | None, typer.Option(metavar="PATH", help="Write an SVG file instead.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw when each node of a run waited and ran.

    \b
    Examples:
      mosaic timeline $RUN
      mosaic timeline $RUN --svg run.svg
    """
    from mosaic_tasks.client import get_run
    from mosaic_tasks.inspection.timeline import draw_svg, draw_text
    from mosaic_tasks.inspection.timeline import timeline as chart_of

    run = get_run(run_id)
    chart = chart_of(run.plan(), run.events(), now_ms=int(time.time() * 1000), run_id=run_id)
    if svg is not None:
        _write(svg, draw_svg(chart))
    if as_json:
        print_json(chart)
    elif svg is not None:
        typer.echo(f"timeline: {svg}", err=True)
    else:
        typer.echo(draw_text(chart, width=console().width, ascii_only=is_ascii_only()))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}") from error
