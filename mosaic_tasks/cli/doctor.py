"""The command that looks for what is wrong: doctor."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import typer

from mosaic_queues.errors import ServerError
from mosaic_tasks.cli.checks import (
    Check,
    Level,
    check_beat,
    check_clock,
    check_engines,
    check_hosting,
    check_packages,
    check_queues,
    check_right,
    check_server,
    check_space,
    check_workers,
    worst,
)
from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.cli.options import JsonOption
from mosaic_tasks.cli.output import console, print_json

if TYPE_CHECKING:
    from redis import Redis

    from mosaic_queues.ledger import Ledger

_DISTRIBUTION = "mosaic-tasks"
_RUNS_A_TRIP = 100
_STYLES: dict[Level, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(as_json: JsonOption = False) -> None:
    """Look for what is wrong, and say what to do.

    Checks versions, server, eviction policy, memory, persistence, clock, workers, queues, hosted models and disk
    space. Exit code 0: nothing failed. 4: the server does not answer or is full. 5: a queue has no worker. 1:
    anything else failed.

    \b
    Examples:
      mosaic doctor
      mosaic doctor --json | jq '.checks[] | select(.level != "ok")'
    """
    checks = [_packages(), *_server(), _space()]
    if as_json:
        print_json({"level": worst(checks), "checks": checks})
    else:
        _print(checks)
    raise typer.Exit(_code(checks))


def _print(checks: list[Check]) -> None:
    from rich.text import Text

    out = console()
    for check in checks:
        line = Text.assemble((f"{check.level:<5}", _STYLES[check.level]), f"{check.name:<12} {check.text}")
        out.print(line, soft_wrap=True)
        if check.advice:
            out.print(Text(f"{'':18}{check.advice}"), soft_wrap=True)


def _code(checks: list[Check]) -> ExitCode:
    failed = {check.name for check in checks if check.level == "fail"}
    if failed & {"server", "memory"}:
        return ExitCode.SERVER
    if "queues" in failed:
        return ExitCode.NO_WORKER
    return ExitCode.FAILED if failed else ExitCode.OK


def _packages() -> Check:
    try:
        needed = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return Check(
            "packages", "warn", f"{_DISTRIBUTION} is not installed as a package", "install it with pip"
        )
    return check_packages(needed, _installed)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _server() -> list[Check]:
    """What the server says, who works, and which queues wait; one failed check when nobody answers."""
    from mosaic_queues.connection import connect, redact, server_urls

    try:
        url = server_urls().redis_url
        client = connect(url)
    except ServerError as error:
        return [Check("server", "fail", str(error))]
    with client:
        return [
            check for what, checks in _looks(client, redact(url)).items() for check in _allowed(what, checks)
        ]


def _looks(client: Redis, where: str) -> dict[str, Callable[[], list[Check]]]:
    """The checks that ask the server, by what they look at."""
    from mosaic_queues.connection import server_clock, server_facts
    from mosaic_queues.ledger import Ledger
    from mosaic_queues.liveness import live_processes
    from mosaic_queues.settings import settings
    from mosaic_routing.inventory import engines
    from mosaic_tasks.app import app
    from mosaic_tasks.scheduling.schedules import Schedules

    ledger = Ledger(client, namespace=settings().namespace)
    return {
        "version, eviction, memory and persistence": lambda: check_server(server_facts(client), where),
        "the clock": lambda: [check_clock(server_clock(client))],
        "workers": lambda: [check_workers(live_processes(client, ledger.keys))],
        "queues": lambda: check_queues(_waiting(ledger), live_processes(client, ledger.keys)),
        "beat": lambda: check_beat(
            len(Schedules(client, ledger.keys).all()), runs=bool(client.exists(app.conf.redbeat_lock_key))
        ),
        "engines": lambda: [
            *check_engines(hosted := engines(client, keys=ledger.keys)),
            *check_hosting(live_processes(client, ledger.keys), hosted),
        ],
    }


def _allowed(what: str, check: Callable[[], list[Check]]) -> list[Check]:
    """A check's verdicts; that a right is missing, where the server forbids the user what the check asks."""
    from redis.exceptions import NoPermissionError

    try:
        return check()
    except NoPermissionError as error:
        return [check_right(what, str(error))]


def _waiting(ledger: Ledger) -> Counter[str]:
    """How many calls of unfinished runs wait in each queue."""
    runs = [run_id for run_id, _ in ledger.listed_runs()]
    waiting: Counter[str] = Counter()
    for first in range(0, len(runs), _RUNS_A_TRIP):
        for calls in ledger.live_calls_of(runs[first : first + _RUNS_A_TRIP]):
            waiting.update(call.queue for call in calls if call.state != "claimed")
    return waiting


def _space() -> Check:
    from mosaic_queues.settings import settings

    store = urlsplit(settings().object_store or "")
    if store.scheme not in ("", "file"):
        return Check("space", "ok", f"large payloads go to {store.scheme}://{store.hostname or ''}")
    place = Path(unquote(store.path)) if store.path else settings().home / "objects"
    there = next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
    return check_space(str(place), shutil.disk_usage(there).free)
