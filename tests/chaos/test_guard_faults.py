"""Processes are killed inside guarded calls, and the server too: no limit is exceeded, and nothing stays taken."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis

from mosaic_queues.connection import connect, server_ms
from mosaic_queues.keys import Keys
from mosaic_queues.server import EmbeddedServer
from mosaic_routing.guards import Guards, Lease, Need, Query, ServerBackend
from tests.chaos import guarded_calls as made
from tests.chaos.test_faults import server_process

pytestmark = [pytest.mark.chaos, pytest.mark.integration]
CALLS = int(os.environ.get("MOSAIC_TEST_GUARDED_CALLS", "1000"))
PROCESSES = 6
CALLS_PER_KILL = 100
ROOT = Path(__file__).resolve().parents[2]
ALL = Need(leases=(Lease("few", made.LIMIT, made.LIMIT),))
QUERY = Query(leases=("few", "backlog"), accounts=(("run", "total"),))


def start(redis_url: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "MOSAIC_REDIS_URL": redis_url,
    }
    command = [sys.executable, "-m", "tests.chaos.guarded_calls"]
    return subprocess.Popen(command, env=environment, cwd=ROOT)


@contextmanager
def processes(redis_url: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [start(redis_url) for _ in range(PROCESSES)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def kill(process: subprocess.Popen[bytes], client: Redis) -> None:
    """Ends it, and strikes off what it was inside of, which its lease outlives."""
    process.kill()
    process.wait()
    inside = cast("set[bytes]", client.smembers(made.INSIDE))
    if dead := [name for name in inside if name.startswith(b"%d/" % process.pid)]:
        client.srem(made.INSIDE, *dead)


def await_calls(client: Redis, count: int) -> None:
    for _ in range(count):
        if client.blpop([made.BEGUN], timeout=50) is None:
            pytest.fail("no call began for a minute")


def check_nothing_is_taken(guards: Guards) -> None:
    """Enters with all there is, which is possible once every lease of the dead has lapsed."""
    with guards.admit(ALL, wait_s=30):
        readings = guards.read(QUERY)
    assert readings.leases == ((1, made.LIMIT), (0, 0))
    ((_, reserved),) = readings.accounts
    assert reserved == 0


@pytest.mark.timeout(60 + CALLS // 10)
def test_who_is_killed_inside_exceeds_no_limit_and_leaves_nothing_taken(
    redis_client: Redis, redis_url: str
) -> None:
    began_ms, kills = server_ms(redis_client), 0
    with processes(redis_url) as started, connect(redis_url) as patient:
        for _ in range(CALLS // CALLS_PER_KILL):
            await_calls(patient, CALLS_PER_KILL)
            place = random.randrange(PROCESSES)
            kill(started[place], redis_client)
            started[place] = start(redis_url)
            kills += 1
        for process in started:
            kill(process, redis_client)
    begun = CALLS + cast("int", redis_client.llen(made.BEGUN))
    passed_ms = server_ms(redis_client) - began_ms
    with Guards(ServerBackend(redis_client, Keys("mosaic")), expiry_s=made.EXPIRY_S) as guards:
        check_nothing_is_taken(guards)
        ((spent, _),) = guards.read(QUERY).accounts
    ended = int(cast("Any", redis_client.get(made.ENDED)))
    assert 0 < int(cast("Any", redis_client.get(made.MOST))) <= made.LIMIT
    assert begun <= made.RATE.size + made.RATE.per_minute * passed_ms / 60_000
    assert ended * made.COST_MICROS <= spent <= begun * made.COST_MICROS
    assert begun - ended <= kills + PROCESSES


def test_a_server_that_is_killed_in_the_middle_costs_no_call_and_leaves_nothing_taken(tmp_path: Path) -> None:
    failed: list[BaseException] = []
    with (
        EmbeddedServer(tmp_path / "home") as server,
        connect(server.redis_url) as client,
        Guards(ServerBackend(client, Keys("mosaic")), expiry_s=made.EXPIRY_S) as guards,
    ):

        def calls(name: int) -> None:
            try:
                for number in range(50):
                    made.call(client, guards, f"{name}/{number}")
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=calls, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        await_calls(client, 40)
        server_process(server).kill()
        for thread in threads:
            thread.join()
        check_nothing_is_taken(guards)
        server.stop(wait_s=15)
    assert not failed
