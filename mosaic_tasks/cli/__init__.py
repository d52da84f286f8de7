"""The `mosaic` command. Modules that cost time are imported by the command that needs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from itertools import groupby
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mosaic_queues.collector import spare_collector
from mosaic_tasks.cli import (
    access,
    batching,
    calibrating,
    dead,
    defining,
    doctor,
    engines,
    importing,
    infra,
    manifests,
    metrics,
    probing,
    rerunning,
    running,
    scheduling,
    scoring,
    serving,
    streaming,
    topology,
    watching,
    working,
)
from mosaic_tasks.cli.exits import told_errors
from mosaic_tasks.cli.output import logs_to_stderr


class _Commands(TyperGroup):
    """Turns what a command raises into one message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the chosen command."""
        debug, as_json = bool(ctx.params.get("debug")), "--json" in ctx.args
        with told_errors(debug=debug, as_json=as_json):
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands in the help, by what they are for."""
        del ctx
        commands: Mapping[str, Any] = self.commands
        widest = max(map(len, commands))
        for panel, below in groupby(commands.items(), key=lambda item: item[1].rich_help_panel):
            rows = [(name, each.get_short_help_str(formatter.width - widest - 6)) for name, each in below]
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(widest), what) for name, what in rows])


application = typer.Typer(
    name="mosaic",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mosaic-tasks {version('mosaic-tasks')}")
        raise typer.Exit


@application.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="MOSAIC_DEBUG", help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run workflows of tools and LLM agents on Celery and Redis.

    No server of your own is needed: an embedded one, with its data in .mosaic, runs as long as a command or a
    worker uses it. MOSAIC_REDIS_URL names a Redis 6.2+ or Valkey to use instead.

    \b
    A first run, in two terminals:
      mosaic worker
      echo '{name: hi, nodes: {hi: {tool: "string:capwords", with: {s: hello}}}, output: hi}' > hi.yaml
      mosaic run hi.yaml

    \b
    When something does not move:
      mosaic explain RUN       what each node waits for
      mosaic doctor            what is wrong with server, workers and queues

    \b
    Exit codes:
      0    all went well
      1    the run failed; a check of doctor failed; the worker ended by an error
      2    wrong usage, a wrong workflow file, wrong inputs
      3    no such run
      4    the server does not answer, is full, or forbids what is needed
      5    no worker serves a queue
      6    the run was cancelled
      7    the waiting time is over, the run is not
      8    the batch is over, and some of its lines have no output
      130  interrupted; a run that was watched goes on
    """
    del debug, version  # read by the group and by its callback
    logs_to_stderr()


_PANELS = {
    "Runs": (running.run, batching.batch, streaming.stream, running.result, running.cancel, rerunning.rerun),
    "Watching": (watching.status, watching.events, watching.explain, watching.timeline),
    "Workflow files": (defining.validate, defining.graph, defining.schema, importing.import_canvas),
    "Experts": (scoring.score, scoring.experts, calibrating.calibrate),
    "Processes": (working.worker, serving.serve, metrics.metrics, probing.probe, probing.drain),
    "Deployment": (doctor.doctor, engines.engines, infra.infra, topology.topology, manifests.manifests),
}
"""The commands by what they are for, in the order of the help and of the reference."""
for _panel, _functions in _PANELS.items():
    for _function in _functions:
        application.command(rich_help_panel=_panel)(_function)
for _group in (scheduling.schedule, access.keys, dead.dead):
    application.add_typer(_group, rich_help_panel="Schedules, keys, dead letters")


def main() -> None:
    """The `mosaic` command. Tools are found in the current directory, after everything that is installed."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    spare_collector()
    application()


__all__ = ["application", "main"]
