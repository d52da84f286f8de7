"""The queue of one worker alone: what waits in it outlives the worker, and it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis

from mosaic_queues.settings import settings
from mosaic_routing.inventory import engines
from mosaic_routing.queues import direct_queue
from mosaic_tasks import Run
from mosaic_tasks.app import app
from mosaic_tasks.execution.placing.direct import delete_deserted
from mosaic_tasks.execution.process import close_all, process_for
from tests.integration.test_simulated_worker import FAST, SLOW, WAIT_S, SimulatedGpus, asked, gpus
from tests.services import Worker, key_events

__all__ = ["gpus"]
pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
HANGS = {"slots": 1, "faults": {"hangs_after": 1, "hang_s": 600.0}}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deaths are noticed soon."""
    limits = {"MOSAIC_LIVENESS_S": "1", "MOSAIC_SWEEP_S": "0.2", "MOSAIC_OUTBOX_GRACE_S": "0.5"}
    for name, value in limits.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()


def direct_keys(client: Redis, worker: Worker) -> list[bytes]:
    """What there is in the server under the name of a worker's queue: its lists, and its binding."""
    return [key for key in client.scan_iter("*mosaic.direct*") if worker.name.encode() in key]


def asked_of(worker: Worker, client: Redis, count: int) -> list[Run]:
    """Runs whose calls were all sent to the one worker that there is."""
    queue = direct_queue(worker.name)
    with key_events(client, "l") as events:
        runs = [asked() for _ in range(count)]
        sent = (key for event, key in events if event == "lpush" and key == queue)
        for _ in range(count):
            assert next(sent, None), f"nothing more was sent to {queue}"
    return runs


def indexed(client: Redis) -> set[bytes]:
    return set(client.smembers("mosaic:direct"))  # type: ignore[arg-type]


def test_a_worker_tells_that_it_takes_from_a_queue_of_its_own(
    gpus: SimulatedGpus, tmp_path: Path, redis_client: Redis
) -> None:
    worker = gpus.host(FAST, tmp_path).wait_ready()
    [report] = engines(redis_client)
    assert report.queues == ("mosaic.gpu.teller", f"mosaic.{FAST}.teller", direct_queue(worker.name))
    assert asked().result(WAIT_S) == "It flows."


def test_what_waits_for_a_worker_that_is_killed_is_answered_by_another(
    gpus: SimulatedGpus, tmp_path: Path, redis_client: Redis
) -> None:
    dying = gpus.host(SLOW, tmp_path, **HANGS).wait_ready()
    runs = asked_of(dying, redis_client, 6)
    assert redis_client.llen(direct_queue(dying.name)) >= 4
    dying.kill()
    other = gpus.host(FAST, tmp_path).wait_ready()
    assert [run.result(WAIT_S) for run in runs] == ["It flows."] * len(runs)
    close_all()  # what this process knew of the dead one
    process = process_for(app)
    process.start_liveness()
    delete_deserted(process)
    assert direct_keys(redis_client, dying) == []
    assert indexed(redis_client) == {direct_queue(other.name).encode()}


def test_a_worker_that_ends_leaves_no_queue_behind_and_what_waited_in_it_is_answered_by_another(
    gpus: SimulatedGpus, tmp_path: Path, redis_client: Redis
) -> None:
    ending = gpus.host(SLOW, tmp_path, slots=1, decode_tokens_s=1.0).wait_ready()
    runs = asked_of(ending, redis_client, 4)
    other = gpus.host(FAST, tmp_path).wait_ready()
    ending.stop()
    assert ending.returncode == 0, ending.log
    assert direct_keys(redis_client, ending) == []
    assert [run.result(WAIT_S) for run in runs] == ["It flows."] * len(runs)
    other.stop()
    assert direct_keys(redis_client, other) == []
    delete_deserted(process_for(app))  # what may have been sent meanwhile goes with the next upkeep
    assert indexed(redis_client) == set()
