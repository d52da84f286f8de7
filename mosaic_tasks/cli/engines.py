"""The command that shows the hosted engines: engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_tasks.cli.options import JsonOption
from mosaic_tasks.cli.output import console, print_json, print_json_line, table
from mosaic_tasks.inspection.wording import duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mosaic_routing.inventory import EngineReport

_EVERY_S = 1.0
"""Workers report so often."""
_NONE = "no worker hosts a model; start one with: mosaic worker --gpu CLASS --model SPEC"

_Read = Callable[[], "list[EngineReport]"]


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

    WAITING: requests that the engine took and has not begun; SLOTS: how many more it takes; KV: part of its cache that
    is in use; TOKENS/S: tokens that it writes; FIRST: mean time to the first token in the last seconds; HITS: part of
    the prompts' tokens that its prefix cache knew; PREEMPTED: requests that had to leave the batch, since its start.

    \b
    Examples:
      mosaic engines
      mosaic engines --follow
      mosaic engines --json | jq '.[] | {model, running, slots}'
      mosaic engines --prometheus > /var/lib/node_exporter/mosaic.prom
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
            _follow(lambda: living(client, keys=keys), as_json=as_json)
        else:
            _show(living(client, keys=keys), as_json=as_json, prometheus=prometheus)


def _show(reports: Sequence[EngineReport], *, as_json: bool, prometheus: bool) -> None:
    from mosaic_routing.inventory import prometheus as figures

    if as_json:
        print_json(reports)
    elif prometheus:
        typer.echo(figures(reports), nl=False)
    else:
        console().print(_rendered(reports), soft_wrap=True)


def _follow(read: _Read, *, as_json: bool) -> None:
    out = console()
    if as_json:
        _repeat(lambda: print_json_line(read()))
    elif not out.is_terminal or out.is_dumb_terminal:
        _repeat(lambda: out.print(_rendered(read()), soft_wrap=True))
    else:
        from rich.live import Live

        with Live(_rendered(read()), console=out, auto_refresh=False) as live:
            _repeat(lambda: live.update(_rendered(read()), refresh=True))


def _repeat(show: Callable[[], object]) -> None:
    while True:
        show()
        time.sleep(_EVERY_S)


def _rendered(reports: Sequence[EngineReport]) -> RenderableType:
    if not reports:
        return _NONE
    rows = table(
        "MODEL",
        "CLASS",
        "WORKER",
        "RUNNING",
        "WAITING",
        "SLOTS",
        "KV",
        "TOKENS/S",
        "FIRST",
        "HITS",
        "PREEMPTED",
    )
    for column in rows.columns[3:]:
        column.justify = "right"
    for report in reports:
        rows.add_row(*_cells(report))
    return rows


def _cells(report: EngineReport) -> tuple[str, ...]:
    return (
        report.model,
        report.gpu_class,
        report.holder,
        str(report.running),
        str(report.waiting),
        str(report.slots),
        f"{report.kv_use:.0%}",
        f"{report.generated_tokens_s:,.1f}",
        duration(report.ttft_s * 1000) if report.ttft_s else "",
        f"{report.prefix_hits:.0%}",
        str(report.preempted),
    )
