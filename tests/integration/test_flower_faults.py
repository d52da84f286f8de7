"""What Flower shows where a worker dies, and where the server is gone for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from mosaic_queues.settings import Settings
from mosaic_tasks import Flow, submit
from tests.integration import run_tools as tools
from tests.integration.flowers import Flower
from tests.own_server import OwnServer
from tests.services import ServerForTests, Workers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
APP, QUEUES = "mosaic_tasks.app", ["mosaic.cpu"]
WAIT_S = 30.0


@pytest.fixture
def redis_server(own_server: OwnServer) -> Iterator[ServerForTests]:
    """In the place of the one that all tests share."""
    url = own_server.urls.redis_url
    with Redis.from_url(url, retry=Retry(ConstantBackoff(0.01), 500)) as client:
        yield ServerForTests(own_server.urls, client)


@pytest.fixture
def flower(redis_server: ServerForTests, tmp_path: Path, mosaic_process: Settings) -> Iterator[Flower]:
    with Flower(redis_server.urls, tmp_path) as started:
        started.await_ears()
        yield started


def test_a_call_whose_worker_died_is_shown_with_the_one_that_went_on(
    flower: Flower, workers: Workers, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    flow = Flow("died")
    flow.output(flow.tool(tools.read, path=str(tmp_path / "pipe")))
    started = [workers.start(APP, QUEUES, args=["-E"], env={"MOSAIC_LIVENESS_S": "1"}) for _ in range(2)]
    for worker in started:
        worker.wait_ready()
    run = submit(flow.build())
    held = flower.await_state(f"{run.id}:0", "STARTED")
    dying, other = sorted(started, key=lambda worker: worker.name != held["worker"])
    dying.kill()
    next(event for event in run.events(follow=True) if event.kind == "lost")
    (tmp_path / "pipe").write_text("here")
    assert run.result(WAIT_S) == "here"
    call = flower.await_state(f"{run.id}:0", "SUCCESS")
    assert (call["worker"], call["retries"]) == (other.name, 1)
    assert flower.await_state(run.id, "SUCCESS")["name"] == "died"


@pytest.mark.leaves("processes", reason="the server that is started again ends after the look for leaks")
def test_it_sees_runs_again_once_the_server_is_back(
    flower: Flower, workers: Workers, own_server: OwnServer
) -> None:
    workers.start(APP, QUEUES, args=["-E"]).wait_ready()
    own_server.kill()
    assert flower.ask("/api/workers").status == 200
    own_server.start()
    flower.await_ears("somebody else")
    flow = Flow("back")
    flow.output(flow.tool(tools.double, x=2))
    run = submit(flow.build())
    assert run.result(WAIT_S) == 4
    assert flower.await_state(f"{run.id}:0", "SUCCESS")["name"] == "back.double"
    assert flower.await_state(run.id, "SUCCESS")["name"] == "back"
