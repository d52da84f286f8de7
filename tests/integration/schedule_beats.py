"""Beats of tests: their clock is a key of the server, and they die or freeze at a chosen place, once.

As a scheduler of Celery (`--scheduler tests.integration.schedule_beats:Scheduler`): BEAT_AT names the place, BEAT_FLAG
a file that says that it happened, and BEAT_SIGNAL what the beat sends itself there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_queues.ledger import Ledger
from mosaic_queues.openings import Openings
from mosaic_tasks.definition.workflow import Workflow
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.scheduling import beat
from mosaic_tasks.scheduling.schedules import Schedules
from mosaic_tasks.scheduling.starting import put_schedule
from mosaic_tasks.scheduling.turns import Turns
from tests.services import READY_S, Worker, Workers, key_events

CLOCK, LOCK = "clock", "mosaic:beat::lock"
PLACES: dict[str, tuple[Any, str, bool]] = {
    "before_start": (Ledger, "run_for_key", False),
    "after_key": (Ledger, "run_for_key", True),
    "after_index": (Openings, "_prepare", True),
    "after_open": (Ledger, "open_run", True),
    "before_note": (Schedules, "note", False),
    "after_note": (Schedules, "note", True),
    "before_send": (beat.Scheduler, "apply_async", False),
    "before_reserve": (beat.Scheduler, "reserve", False),
    "after_reserve": (beat.Scheduler, "reserve", True),
    "before_close": (beat.Scheduler, "close", False),
}
"""Where a beat may die: what is called there, and whether it has been."""


def _interrupt_once() -> None:
    flag = Path(os.environ["BEAT_FLAG"])
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.Signals[os.environ.get("BEAT_SIGNAL", "SIGKILL")])


def _interrupted(owner: Any, name: str, after: bool) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def called(*args: Any, **options: Any) -> Any:
        if not after:
            _interrupt_once()
        answer = original(*args, **options)
        if after:
            _interrupt_once()
        return answer

    setattr(owner, name, called)


class _Turns(Turns):
    def now_s(self) -> float:
        """What the key says, else the server's time."""
        told: Any = self._process.client.get(CLOCK)
        return super().now_s() if told is None else float(told)


class Scheduler(beat.Scheduler):
    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **{**options, "max_interval": 0.1})

    @cached_property
    def turns(self) -> Turns:
        """The looks, by that clock."""
        return _Turns(process_for(self.app), lock=self.lock_key, hold=self._hold)


if place := os.environ.get("BEAT_AT"):
    _interrupted(*PLACES[place])


class Beats(Workers):
    """Starts beats."""

    def beat(
        self,
        *,
        at: str = "",
        signal: str = "SIGKILL",
        flag: str = "interrupted",
        app: str = "mosaic_tasks.app",
    ) -> Worker:
        """Starts one.

        Args:
            at: the place where it interrupts itself, once for all beats with this flag.
        """
        words = ["beat", "--scheduler", "tests.integration.schedule_beats:Scheduler"]
        command = [sys.executable, "-m", "celery", "-A", app, *words, "--loglevel", "INFO"]
        more = {"BEAT_AT": at, "BEAT_SIGNAL": signal, "BEAT_FLAG": str(self._directory / flag)}
        worker = Worker("beat", command, environment=self._environment(more), cwd=self._directory)
        self._started.append(worker)
        return worker


class Clock:
    """The clock of the beats, and what schedules start while it moves."""

    def __init__(self, client: Redis, heard: Iterator[tuple[str, str]]) -> None:
        self._client, self._heard = client, heard

    def begin(self, name: str, at: int) -> None:
        """Has the ticks of a schedule count from a time on."""
        self._client.hset(f"mosaic:schedule:{name}", "last", str(at))
        self.move(at)

    def move(self, at: int) -> None:
        """Sets it, in Unix seconds."""
        self._client.set(CLOCK, str(at), px=int(READY_S * 10_000))

    def await_ticks(self, name: str, count: int) -> list[int]:
        """The ticks of a schedule that have a run, once there are so many."""
        while len(found := ticks(self._client, name)) < count:
            next(key for _, key in self._heard if key == f"mosaic:schedule:{name}:runs")
        return found


@contextmanager
def moving_clock(client: Redis) -> Iterator[Clock]:
    """The clock."""
    with key_events(client, "l") as heard:
        yield Clock(client, heard)


def noted(client: Redis, name: str) -> list[dict[str, Any]]:
    """What is noted of the runs of a schedule, the oldest first."""
    raws: Any = client.lrange(f"mosaic:schedule:{name}:runs", 0, -1)
    return [json.loads(raw) for raw in reversed(raws)]


def ticks(client: Redis, name: str) -> list[int]:
    """Those that have a run, the oldest first."""
    return [each["tick"] for each in noted(client, name)]


def run_ids(client: Redis) -> set[str]:
    """Of all runs that there are."""
    return {key.decode().split(":")[1].strip("{}") for key in client.scan_iter("mosaic:{*}:run")}


def check_one_run_a_tick(client: Redis, name: str, expected: list[int]) -> None:
    """Each of these ticks has one run, and nothing else has."""
    found = noted(client, name)
    assert [each["tick"] for each in found] == expected
    assert len({each["run"] for each in found}) == len(expected)
    assert run_ids(client) == {each["run"] for each in found}


def add(client: Redis, name: str, **schedule: Any) -> None:
    """A schedule of a workflow that answers with its inputs."""
    data = {
        "name": "echo",
        "inputs": {"text": {"type": "string", "default": ""}},
        "nodes": {"first": {"tool": "string:capwords", "with": {"s": "${inputs.text}"}}},
        "output": "first",
        "schedules": {name: schedule},
    }
    put_schedule(Schedules(client, Keys("mosaic")), name, Workflow.from_data(data))
