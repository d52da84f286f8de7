"""What a process tells Celery's event stream, and how much of it at once."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from mosaic_queues.transitions import RunRecord
from mosaic_tasks.app import app
from mosaic_tasks.execution.reporting import Reporter
from mosaic_tasks.execution.watch import hasten

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

DONE = RunRecord("019e0000-0000-7000-8000-000000000001", "done", "plan", "named", 1_000, 3_500, "")

WAIT_S = 5.0


@pytest.fixture(scope="module", autouse=True)
def _watch() -> None:
    """Its thread lives as long as the process, so no test is to start it."""
    hasten()


@pytest.fixture
def reporter() -> Iterator[Reporter]:
    reporter = Reporter(app, hostname="w@test", enabled=True)
    yield reporter
    reporter.close()


@pytest.fixture
def messages(redis_client: Redis) -> Iterator[Iterator[list[dict[str, Any]]]]:
    """The events of each message, as they come."""
    with redis_client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.psubscribe("*celeryev*")
        listener.get_message(timeout=WAIT_S)
        redis_client.config_resetstat()
        came = iter(lambda: listener.get_message(timeout=WAIT_S), None)
        yield (json.loads(b64decode(json.loads(each["data"])["body"])) for each in came)


def test_runs_that_ended_are_told_in_one_message(
    reporter: Reporter, messages: Iterator[list[dict[str, Any]]], redis_client: Redis
) -> None:
    failed = DONE._replace(run_id=DONE.run_id[:-1] + "2", status="failed", error="of itself")
    cancelled = DONE._replace(run_id=DONE.run_id[:-1] + "3", status="cancelled", error="by somebody")
    reporter.runs_ended([DONE, failed, cancelled])
    told = [(event["type"], event["uuid"]) for event in next(messages)]
    assert told == [
        ("task-received", DONE.run_id),
        ("task-succeeded", DONE.run_id),
        ("task-received", failed.run_id),
        ("task-failed", failed.run_id),
        ("task-received", cancelled.run_id),
        ("task-revoked", cancelled.run_id),
    ]
    assert redis_client.info("commandstats")["cmdstat_publish"]["calls"] == 1


def test_all_is_sent_by_one_client(
    reporter: Reporter, messages: Iterator[list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter.runs_ended([DONE])
    monkeypatch.setattr(Redis, "__init__", None)  # no other can be made
    reporter.runs_ended([DONE])
    monkeypatch.undo()
    assert len(next(messages)) == len(next(messages)) == 2


def test_a_worker_without_task_events_tells_nothing(redis_client: Redis) -> None:
    redis_client.config_resetstat()
    Reporter(app, hostname="w@test", enabled=False).runs_ended([DONE])
    assert "cmdstat_publish" not in redis_client.info("commandstats")
