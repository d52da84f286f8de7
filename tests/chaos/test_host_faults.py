"""Workers that host calls are killed, and lose their server, their broker and its answers: nothing is lost or recorded
twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from mosaic_queues.connection import connect, urls_of
from mosaic_queues.events import follow_events
from mosaic_queues.keys import Keys
from mosaic_queues.server import EmbeddedServer
from tests.chaos.test_faults import (
    APP,
    QUEUES,
    QUICK,
    await_event,
    check_recorded_once,
    find_event,
    python_environment,
    server_process,
)
from tests.integration import stream_tools as tools
from tests.integration.hosts import WAIT_S, Hosts, fan_out, hosted
from tests.services import Workers

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]


@pytest.fixture
def hosts(workers: Workers, redis_client: Redis, mosaic_process: Any) -> Iterator[Hosts]:
    yield from hosted(workers, redis_client)


def killing(place: str, directory: Path, **more: str) -> dict[str, str]:
    """The environment of a worker to which something happens, once."""
    return {**QUICK, "KILL_AT": place, "KILL_FLAG": str(directory / "happened"), **more}


KILLING = "tests.chaos.killing"


@pytest.mark.parametrize(
    ("place", "budget"),
    [
        ("after_claim", "0"),
        ("before_record", "64"),
        ("after_record", "0"),
        ("before_publish_chord", "64"),
        ("after_expand", "64"),
        ("before_ack", "0"),
    ],
)
def test_a_host_may_die_at_any_step(hosts: Hosts, tmp_path: Path, place: str, budget: str) -> None:
    environment = killing(place, tmp_path, MOSAIC_CONTINUATION_CALLS=budget)
    doomed = hosts.start(concurrency=10, include=KILLING, **environment).wait_ready()
    started = fan_out("later", 30, pause_s=0.01)
    assert doomed.wait(WAIT_S) == -signal.SIGKILL
    hosts.start(**QUICK).wait_ready()
    assert started.result(2 * WAIT_S) == list(range(30))
    check_recorded_once(started)


@pytest.mark.parametrize(
    ("place", "budget"),
    [("lose_claim", "0"), ("lose_record", "64"), ("lose_expand", "64"), ("lose_connection", "0")],
)
def test_a_host_may_lose_an_answer(hosts: Hosts, tmp_path: Path, place: str, budget: str) -> None:
    """Also where the server then stays away: what the answer had claimed is handed back when it is there."""
    environment = killing(place, tmp_path, MOSAIC_CONTINUATION_CALLS=budget)
    hosts.start(concurrency=8, include=KILLING, **environment).wait_ready()
    started = fan_out("told", 40, name="ran")
    assert started.result(2 * WAIT_S) == list(range(40))
    assert (tmp_path / "happened").exists()
    check_recorded_once(started)
    assert set(tools.happened(hosts.client, "ran")) == {str(x) for x in range(40)}


def test_a_killed_host_costs_what_ran_and_no_more(hosts: Hosts, redis_client: Redis) -> None:
    first = hosts.start(concurrency=20, **QUICK).wait_ready()
    started = fan_out("gated", 60, name="gated")
    tools.await_told(redis_client, "gated", 20)
    tools.open_gate(redis_client, "gated", 10)
    await_event(started, "done", count=1 + 10)
    tools.await_told(redis_client, "gated", 30)
    first.kill()
    hosts.start(**QUICK).wait_ready()
    tools.open_gate(redis_client, "gated", 60)
    assert started.result(2 * WAIT_S) == list(range(60))
    check_recorded_once(started)
    assert len(tools.happened(redis_client, "gated")) <= 60 + 20


def client_ids(client: Redis) -> set[str]:
    """The connections that the server has."""
    return {found["id"] for found in client.client_list()}


def test_a_lost_connection_to_the_broker_costs_nothing(hosts: Hosts, redis_client: Redis) -> None:
    """Messages of calls that run come again meanwhile."""
    others = client_ids(redis_client)
    worker = hosts.start(concurrency=30, args=("--task-events",), **QUICK).wait_ready()
    connections = client_ids(redis_client) - others
    started = fan_out("tells_and_goes_on", 50, name="began", pause_s=1.0)
    tools.await_told(redis_client, "began", 30)
    for connection in connections:
        redis_client.client_kill_filter(_id=connection)
    assert started.result(2 * WAIT_S) == list(range(50))
    check_recorded_once(started)
    assert len(tools.happened(redis_client, "began")) == 50
    assert worker.returncode is None
    assert fan_out("nothing", 30).result(WAIT_S) == list(range(30))


CLIENT = """
import sys
from tests.integration.hosts import fan_out
run = fan_out("later", 300, pause_s=0.2)
print(run.id, flush=True)
print(sum(run.result(60)))
"""


def test_a_server_that_comes_back_is_told_what_has_run(tmp_path: Path) -> None:
    """The embedded server is killed and restarted while calls run: they are recorded then, and not run again."""
    with EmbeddedServer(tmp_path / "home") as server, connect(server.redis_url) as client:
        with Workers(urls_of(server.redis_url), tmp_path) as started:
            worker = started.start(
                APP, QUEUES, pool="async", concurrency=20, env=QUICK, args=["--task-events"]
            ).wait_ready()
            environment = python_environment(**QUICK, MOSAIC_REDIS_URL=server.redis_url)
            command = [sys.executable, "-c", CLIENT]
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as submitter:
                assert submitter.stdout is not None
                run_id = submitter.stdout.readline().strip()
                find_event(follow_events(client, Keys("mosaic"), run_id), "done", count=40)
                server_process(server).kill()
                answer, _ = submitter.communicate(timeout=70)
            assert (submitter.returncode, answer.strip()) == (0, str(sum(range(300))))
            assert worker.returncode is None
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
            assert "host.failed" not in worker.log
        server.stop(wait_s=15)
