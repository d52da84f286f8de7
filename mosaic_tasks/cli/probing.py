"""The commands by which containers are looked after: probe and drain."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_tasks.cli.exits import ExitCode

if TYPE_CHECKING:
    from redis import Redis

    from mosaic_queues.keys import Keys
    from mosaic_queues.liveness import LiveProcess
    from mosaic_routing.inventory import EngineReport

LOOK_S = 0.2
"""While workers drain, it is looked so often whether they are gone."""


class Question(StrEnum):
    """What a probe asks."""

    LIVE = "live"
    READY = "ready"


def probe(
    question: Annotated[Question, typer.Argument(help="Whether the worker lives, or takes calls.")],
) -> None:
    """Ask whether the worker of this machine, or container, is well: for probes and health checks.

    live: it has told the server of late that it lives. While the server is away nobody can know, and the answer is
    yes, for a restart would not mend that. ready: it takes calls, and each model that it hosts answers. Where several
    workers run on a machine, one must live, and all must be ready. Exit code 0: yes. 1: no. 4: the server is away.

    \b
    Examples:
      mosaic probe ready
      mosaic probe live || systemctl restart mosaic-worker
    """
    from mosaic_queues.errors import ServerError

    try:
        reason = _not_well(question)
    except ServerError as error:
        if question is Question.READY:
            raise
        typer.echo(f"not known: {error}")
        return
    if reason:
        typer.echo(f"no: {reason}", err=True)
        raise typer.Exit(ExitCode.FAILED)
    typer.echo(f"{question}: yes")


def drain(
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", min=0, metavar="SECONDS", help="Stop waiting after so long."),
    ] = 60.0,
) -> None:
    """End the workers of this machine, or container, once they have finished what they run, and wait for that.

    They take no more calls from now on: as after Ctrl-C, or SIGTERM. Exit code 0: they are gone. 7: some still run
    something; what they are doing is not lost if they are killed, it is done again elsewhere.

    \b
    Examples:
      mosaic drain
      mosaic drain --timeout 600
    """
    from mosaic_routing.machines import REPORTS

    with _server() as client:
        keys, host = _keys(), socket.gethostname()
        reports = [each.report for each in REPORTS.aged(client, keys=keys)]
        names = {report.holder: report.worker for report in reports if report.host == host}
        if names:
            _end(list(names.values()))
            _await_end(client, keys, names, until=time.monotonic() + timeout_s)
        typer.echo(f"ended: {', '.join(sorted(names.values())) or 'no worker was here'}")


def _end(workers: Sequence[str]) -> None:
    from mosaic_tasks.app import app

    app.control.shutdown(destination=workers)


def _await_end(client: Redis, keys: Keys, holders: Collection[str], *, until: float) -> None:
    """Waits until they have said goodbye.

    Raises:
        WaitTimeout: some have not.
    """
    from mosaic_queues.errors import WaitTimeout
    from mosaic_queues.liveness import live_processes

    while left := [each.pid for each in live_processes(client, keys) if each.name in holders]:
        if time.monotonic() > until:
            raise WaitTimeout(f"still at work: {', '.join(f'the process {pid}' for pid in left)}")
        time.sleep(LOOK_S)


def _not_well(question: Question) -> str:
    """What is wrong; empty: nothing."""
    from mosaic_queues.liveness import live_processes
    from mosaic_routing.inventory import engines

    with _server() as client:
        here = [each for each in live_processes(client, _keys()) if _works_here(each)]
        if question is Question.LIVE:
            return "" if here else "no worker here has told the server that it lives"
        return not_ready(here, engines(client, keys=_keys()))


def _works_here(process: LiveProcess) -> bool:
    return bool(process.queues) and process.host == socket.gethostname()


def not_ready(here: Sequence[LiveProcess], reports: Sequence[EngineReport]) -> str:
    """Why a machine's workers do not take all of their calls yet; empty: they do."""
    from mosaic_routing.serving import unhosted

    if not here:
        return "no worker here takes calls"
    ready = {report.holder: report for report in reports if report.state == "ready"}
    for report in reports:
        if report.state != "ready" and any(report.holder == process.name for process in here):
            return f"the model {report.model!r} is {report.state}: {report.phase}"
    for process in here:
        hosting = ready[process.name].queues if process.name in ready else ()
        if not hosting and (wrong := unhosted(process.queues, ())):
            return f"the model of {wrong[0]!r} has not reported"
    return ""


def _server() -> Redis:
    from mosaic_queues.connection import connect, server_urls

    return connect(server_urls().redis_url)


def _keys() -> Keys:
    from mosaic_queues.keys import Keys
    from mosaic_queues.settings import settings

    return Keys(settings().namespace)
