"""The command that shows the hosted engines: engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_tasks.cli.following import follow as follow_reports
from mosaic_tasks.cli.options import JsonOption
from mosaic_tasks.cli.output import console, print_json, table
from mosaic_tasks.inspection.wording import duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mosaic_routing.inventory import EngineReport

_WIDTH = 200
"""Of the table where the terminal's is not known: a row shall not be broken."""
_NONE = "no worker hosts a model; start one with: mosaic worker --class CLASS --model SPEC"


def engines(
    as_json: JsonOption = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print the figures in Prometheus's text format.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Go on, once a second, until Ctrl-C; with --json a line each time."
        ),
    ] = False,
) -> None:
    """Show the engines that GPU workers host, and how busy they are.

    STATE: only an engine that is ready takes requests; what others are at stands below. WAITING: requests that the
    engine took and has not begun; SLOTS: how many more it takes; KV: part of its cache that is in use; TOKENS/S: tokens
    that it writes; FIRST: mean time to the first token in the last seconds; HITS: part of the prompts' tokens that its
    prefix cache knew; PREEMPTED: requests that had to leave the batch, since its start.

    \b
    Examples:
      mosaic engines
      mosaic engines --follow
      mosaic engines --json | jq '.[] | {model, running, slots}'
      mosaic engines --prometheus > mosaic.prom
    """
    from mosaic_queues.connection import connect, server_urls
    from mosaic_queues.keys import Keys
    from mosaic_queues.settings import settings
    from mosaic_routing.inventory import engines as living

    if prometheus and (follow or as_json):
        raise typer.BadParameter("give it without --follow and --json", param_hint="--prometheus")
    keys = Keys(settings().namespace)
    with connect(server_urls().redis_url) as client:
        if follow:
            follow_reports(lambda: living(client, keys=keys), _rendered, as_json=as_json)
        else:
            _show(living(client, keys=keys), as_json=as_json, prometheus=prometheus)


def _show(reports: Sequence[EngineReport], *, as_json: bool, prometheus: bool) -> None:
    from mosaic_routing.inventory import prometheus as figures

    if as_json:
        print_json(reports)
    elif prometheus:
        typer.echo(figures(reports), nl=False)
    else:
        console(unknown_width=_WIDTH).print(_rendered(reports), soft_wrap=True)


def _rendered(reports: Sequence[EngineReport]) -> RenderableType:
    from rich.console import Group

    if not reports:
        return _NONE
    rows = table(
        "MODEL",
        "CLASS",
        "WORKER",
        "STATE",
        "RUNNING",
        "WAITING",
        "SLOTS",
        "KV",
        "TOKENS/S",
        "FIRST",
        "HITS",
        "PREEMPTED",
    )
    for column in rows.columns[4:]:
        column.justify = "right"
    for report in reports:
        rows.add_row(*_cells(report))
    phases = [f"{report.title} in {report.holder}: {report.phase}" for report in reports if report.phase]
    return Group(rows, *phases)


def _cells(report: EngineReport) -> tuple[str, ...]:
    return (
        report.title,
        report.gpu_class,
        report.holder,
        report.state,
        str(report.running),
        str(report.waiting),
        str(report.slots),
        f"{report.kv_use:.0%}",
        f"{report.generated_tokens_s:,.1f}",
        duration(report.ttft_s * 1000) if report.ttft_s else "",
        f"{report.prefix_hits:.0%}",
        str(report.preempted),
    )
