"""The `mosaic` command. Modules that cost time are imported by the command that needs them."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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


for _command in (
    running.run,
    batching.batch,
    defining.validate,
    defining.graph,
    defining.schema,
    importing.import_canvas,
    watching.status,
    watching.events,
    watching.explain,
    watching.timeline,
    streaming.stream,
    running.result,
    running.cancel,
    rerunning.rerun,
    scoring.score,
    scoring.experts,
    calibrating.calibrate,
    working.worker,
    serving.serve,
    engines.engines,
    infra.infra,
    metrics.metrics,
    manifests.manifests,
    probing.probe,
    probing.drain,
    topology.topology,
    doctor.doctor,
):
    application.command()(_command)
application.add_typer(dead.dead, name="dead")
application.add_typer(access.keys, name="keys")
application.add_typer(scheduling.schedule, name="schedule")


def main() -> None:
    """The `mosaic` command. Tools are found in the current directory, after everything that is installed."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    application()


__all__ = ["application", "main"]
