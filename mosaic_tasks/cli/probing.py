"""The commands by which containers are looked after: probe and drain."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.cli.options import JsonOption, duration
from mosaic_tasks.cli.output import print_json
from mosaic_tasks.inspection.wording import counted

if TYPE_CHECKING:
    from redis import Redis

    from mosaic_queues.keys import Keys
    from mosaic_queues.liveness import LiveProcess
    from mosaic_routing.inventory import EngineReport

LOOK_S = 0.5
"""While workers drain, it is looked so often whether they are gone."""


class Question(StrEnum):
    """What a probe asks."""

    LIVE = "live"
    READY = "ready"


def probe(
    question: Annotated[Question, typer.Argument(help="Whether the worker lives, or takes calls.")],
    as_json: JsonOption = False,
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
        is_well: bool | None = not reason
    except ServerError as error:
        if question is Question.READY:
            raise
        is_well, reason = None, str(error)
    _answer(question, is_well, reason, as_json=as_json)


def _answer(question: Question, is_well: bool | None, reason: str, *, as_json: bool) -> None:
    """Yes, no, or that nobody can know."""
    if as_json:
        print_json({"question": question, "is_well": is_well, "reason": reason})
    else:
        told = {True: "yes", False: "no", None: "not known"}[is_well]
        typer.echo(f"{question}: {told}{reason and f', {reason}'}", err=is_well is False)
    if is_well is False:
        raise typer.Exit(ExitCode.FAILED)


def drain(
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="DURATION", parser=duration, help="Stop waiting after so long: 90s, 5m."
        ),
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """End the workers of this machine, or container, once they have finished what they run, and wait for that.

    They take no more calls from now on: as after Ctrl-C, or SIGTERM. Exit code 0: they are gone. 7: some still run
    something; what they are doing is not lost if they are killed, it is done again elsewhere.

    \b
    Examples:
      mosaic drain
      mosaic drain --timeout 5m
    """
    from mosaic_queues.liveness import live_processes

    with _server() as client:
        holders = {each.name for each in live_processes(client, _keys()) if _works_here(each)}
        _drain(client, holders, until=time.monotonic() + timeout_s)
    if as_json:
        print_json({"ended": len(holders)})
    else:
        typer.echo(f"ended: {counted(len(holders), 'worker')}")


def _drain(client: Redis, holders: Collection[str], *, until: float) -> None:
    """Asks workers to end until they have said goodbye.

    Raises:
        WaitTimeout: some have not.
    """
    from mosaic_queues.errors import WaitTimeout
    from mosaic_queues.liveness import live_processes

    while left := [each for each in live_processes(client, _keys()) if each.name in holders]:
        _ask_to_end(client, {each.name for each in left})
        if time.monotonic() > until:
            pids = ", ".join(str(each.pid) for each in left)
            raise WaitTimeout(f"{counted(len(left), 'worker')} still at work here (process {pids})")
        time.sleep(LOOK_S)


def _ask_to_end(client: Redis, holders: Collection[str]) -> None:
    """Those that do not hear it yet, or have not told their names, are asked again with the next look."""
    from mosaic_routing.machines import REPORTS
    from mosaic_tasks.app import app

    reports = (each.report for each in REPORTS.aged(client, keys=_keys()))
    if workers := [report.worker for report in reports if report.holder in holders]:
        app.control.shutdown(destination=workers)


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
    for process in here:
        hosted = [report for report in reports if report.holder == process.name]
        for report in hosted:
            if report.state != "ready":
                return (
                    f"the model {report.model!r} is {report.state}: {report.phase or 'nothing more is known'}"
                )
        if wrong := unhosted(process.queues, {queue for report in hosted for queue in report.queues}):
            return f"the model of the queue {wrong[0]!r} has not reported yet"
    return ""


def _server() -> Redis:
    from mosaic_queues.connection import connect, server_urls

    return connect(server_urls().redis_url)


def _keys() -> Keys:
    from mosaic_queues.keys import Keys
    from mosaic_queues.settings import settings

    return Keys(settings().namespace)
