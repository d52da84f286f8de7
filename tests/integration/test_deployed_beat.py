"""The beat of the compose file on a real server: what is due opens a run, once, whoever dies."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis

from mosaic_queues.settings import settings
from mosaic_tasks import get_run
from tests.services import READY_S, ServerForTests, Worker, Workers, key_events

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs" / "deployment.md").read_text("utf-8")
BEAT: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text("utf-8"))["services"][
    "beat"
]
LOCK, ENTRY, QUEUE = "mosaic:beat::lock", "mosaic:beat:weekly-report", "mosaic.cpu"
ENTRY_ENDS = "RedBeatSchedulerEntry.from_key"
"""So begins in the guide what removes the entry."""

WEEKLY = """
name: weekly
inputs: {team: {type: string}}
nodes:
  first: {tool: "tests.integration.run_tools:count", with: {n: 3}}
output: first
"""
LAST_WEEK = """
from datetime import UTC, datetime, timedelta
RedBeatSchedulerEntry.from_key("mosaic:beat:weekly-report", app=app).reschedule(datetime.now(UTC) - timedelta(days=8))
"""
EACH_SECOND = """
from celery.schedules import schedule
from redbeat import RedBeatSchedulerEntry
from mosaic_tasks.app import app
told = {"workflow": "reports/weekly.yaml", "inputs": {"team": "search"}}
RedBeatSchedulerEntry("weekly-report", "mosaic.submit", schedule(1), kwargs=told, app=app).save()
"""


def block(name: str) -> str:
    """A piece of Python of the guide."""
    (found,) = re.findall(rf"^```py {name}\n(.+?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    return str(found)


class Beats(Workers):
    """Starts what the compose file calls `beat`, in a folder that nothing else is in."""

    folder: Path

    def beat(self, app: str = "mosaic_tasks.app") -> Worker:
        """Starts one."""
        program, *words = [*BEAT["entrypoint"], *BEAT["command"]]
        words[words.index("mosaic_tasks.app")] = app
        command = [sys.executable, "-m", program, *words]
        worker = Worker("beat", command, environment=self._environment({}), cwd=self.folder)
        self._started.append(worker)
        return worker

    def python(self, *words: str) -> int:
        """Runs Python as in a container of it; its exit code."""
        command = [sys.executable, *words]
        return subprocess.run(
            command, env=self._environment({}), cwd=self.folder, check=False, stderr=subprocess.PIPE
        ).returncode

    def is_well(self) -> bool:
        """What its health check says."""
        _cmd, _python, *check = BEAT["healthcheck"]["test"]
        return self.python(*check) == 0


@pytest.fixture
def beats(redis_server: ServerForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beats]:
    """Those whose lock lapses after three seconds, and a workflow for them in the workers' folder."""
    monkeypatch.setenv("MOSAIC_LIVENESS_S", "3")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "weekly.yaml").write_text(WEEKLY)
    with Beats(redis_server.urls, tmp_path) as started:
        started.folder = tmp_path / "beat"
        started.folder.mkdir()
        yield started


@contextmanager
def commands(redis_url: str) -> Iterator[Iterator[list[str]]]:
    """What the server is told from now on, in words."""
    with Redis.from_url(redis_url, socket_timeout=READY_S) as client, client.monitor() as heard:
        yield (each["command"].split() for each in heard.listen())


def asked(heard: Iterator[list[str]]) -> str:
    """The token of the beat that asks for the lock next."""
    return next(words[2] for words in heard if words[:2] == ["SET", LOCK])


def sent(heard: Iterator[list[str]]) -> list[str]:
    """The next message."""
    return next(words for words in heard if words[:2] == ["LPUSH", QUEUE])


def run_ids(client: Redis) -> set[str]:
    """Of all runs that there are."""
    return {key.decode().split(":")[1].strip("{}") for key in client.scan_iter("mosaic:{*}:run")}


def test_an_entry_of_the_guide_that_is_due_opens_a_run(
    beats: Beats, workers: Workers, redis_client: Redis
) -> None:
    assert beats.python("-c", block("entry") + LAST_WEEK) == 0
    workers.start("mosaic_tasks.app", [QUEUE])
    assert not beats.is_well()
    with key_events(redis_client, "t") as events:
        beat = beats.beat()
        next(key for _, key in events if key.endswith(":end"))
    assert beats.is_well()
    (run_id,) = run_ids(redis_client)
    assert get_run(run_id).record().name == "weekly"
    assert get_run(run_id).result(10) == [0, 1, 2]
    beat.stop()
    assert beat.returncode == 0
    assert not redis_client.exists(LOCK)
    assert list(beats.folder.iterdir()) == []

    (removal,) = re.findall(rf"`({re.escape(ENTRY_ENDS)}.+?)`", GUIDE)
    imports = block("entry").partition("weekly =")[0]
    assert beats.python("-c", imports + removal) == 0
    assert list(redis_client.scan_iter("mosaic:beat:*")) == []


@pytest.mark.leaves("keys", reason="an entry stays until somebody removes it")
def test_of_two_beats_one_sends_each_tick_and_the_other_goes_on_when_it_is_killed(
    beats: Beats, workers: Workers, redis_client: Redis, redis_url: str
) -> None:
    assert beats.python("-c", EACH_SECOND) == 0
    with commands(redis_url) as heard:
        first = beats.beat()
        tokens = [asked(heard)]
        beats.beat()
        tokens.append(asked(heard))
        sent(heard)
        assert redis_client.get(LOCK) == tokens[0].encode()
        first.kill()
        while redis_client.get(LOCK) != tokens[1].encode():
            sent(heard)
        sent(heard)  # that before may be the one that the killed one had sent and not noted
        beats.stop()
    ticks = json.loads(redis_client.hget(ENTRY, "meta") or "")["total_run_count"]
    assert ticks > 1
    ids = {json.loads(raw)["headers"]["id"] for raw in redis_client.lrange(QUEUE, 0, -1)}
    assert len(ids) == ticks, "what the killed one had sent and not noted was sent again with its id"

    with key_events(redis_client, "t") as events:
        worker = workers.start("mosaic_tasks.app", [QUEUE])
        ended: set[str] = set()
        while len(ended) < ticks:
            ended.add(next(key for _, key in events if key.endswith(":end")))
        worker.stop()
    assert len(run_ids(redis_client)) == ticks


@pytest.mark.leaves("keys", reason="an entry stays until a beat starts without it")
def test_a_module_s_schedule_counts_and_who_loses_the_lock_ends(
    beats: Beats, redis_client: Redis, redis_url: str
) -> None:
    (beats.folder / "schedules.py").write_text(block("module"))
    with commands(redis_url) as heard:
        beat = beats.beat("schedules")
        asked(heard)
        next(words for words in heard if words[0] == "EVALSHA")  # it ticks
    assert json.loads(redis_client.hget(ENTRY, "definition") or "")["task"] == "mosaic.submit"
    redis_client.delete(LOCK)
    assert beat.wait() == 1
    assert "no longer owned" in beat.log


def test_another_namespace_has_schedules_and_a_lock_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_NAMESPACE", "left")
    settings.cache_clear()
    made = runpy.run_path(str(ROOT / "mosaic_tasks" / "celeryconfig.py"))
    assert (made["redbeat_key_prefix"], made["redbeat_lock_key"]) == ("left:beat:", "left:beat::lock")
