"""What is left of a run when its retention is over: nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from mosaic_queues.errors import RunCancelled, RunFailed
from mosaic_queues.settings import settings
from mosaic_tasks import Flow, Run, submit
from tests.integration import run_tools as tools
from tests.services import Workers, key_events

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
RETENTION_S = 2
BRIEF = {
    "MOSAIC_RETENTION_S": str(RETENTION_S),
    "MOSAIC_REDIS_BYTES": str(3 << 20),
    "MOSAIC_SWEEP_S": "0.2",
}
INDEX, STORED = "mosaic:runs", "mosaic:stored"


@pytest.fixture(autouse=True)
def brief(mosaic_process: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process opens runs of a short retention."""
    for name, value in BRIEF.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()


def start(workers: Workers) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], env=BRIEF).wait_ready()


def fan_out() -> tuple[Flow, object]:
    """Values of 0 to 4 MB: beside the state, in the server, in the object store."""
    flow = Flow("large")
    sizes = flow.tool(tools.count, n=5)
    return flow, flow.tool(tools.large, for_each=sizes, megabytes="${item}", id="each")


def done() -> Run:
    flow, each = fan_out()
    flow.output(each)
    run = submit(flow.build())
    assert [len(value) >> 20 for value in run.result(timeout_s=30)] == [0, 1, 2, 3, 4]
    return run


def failed() -> Run:
    flow, each = fan_out()
    flow.output(flow.tool(tools.boom, after=[each]))
    run = submit(flow.build())
    with pytest.raises(RunFailed):
        run.result(timeout_s=30)
    return run


def cancelled() -> Run:
    flow, each = fan_out()
    flow.output(flow.tool(tools.hang, after=[each], id="hang"))
    run = submit(flow.build())
    last = str(len(run.plan().nodes) - 1)
    assert any(event.kind == "claimed" and last in event.calls for event in run.events(follow=True))
    assert run.cancel()
    with pytest.raises(RunCancelled):
        run.result(timeout_s=30)
    return run


def keys_of(runs: Iterable[Run], client: Redis) -> set[str]:
    ids = [run.id for run in runs]
    names = [name.decode() for name in client.scan_iter(count=1_000)]
    return {name for name in names if any(run_id in name for run_id in ids)}


def await_gone(keys: set[str], events: Iterator[tuple[str, str]]) -> None:
    """Listens until each of the keys expired or was deleted."""
    left = set(keys)
    while left:
        event, key = next(events)
        if event in ("expired", "del"):
            left.discard(key)


def test_nothing_of_a_run_outlives_its_retention(
    workers: Workers, redis_client: Redis, tmp_path: Path
) -> None:
    start(workers)
    with key_events(redis_client, "xg") as events:
        runs = [done(), failed(), cancelled()]
        kept = keys_of(runs, redis_client)
        lives_ms = {key: redis_client.pttl(key) for key in kept}
        assert {key: life for key, life in lives_ms.items() if life == -1 or life > RETENTION_S * 1000} == {}
        assert {key.rpartition(":")[2] for key in kept} == {"run", "out", "events", "blobs", "end"}
        await_gone(kept | {INDEX}, events)
        assert keys_of(runs, redis_client) == set()


def test_the_objects_of_a_run_go_with_the_next_upkeep(
    workers: Workers, redis_client: Redis, tmp_path: Path
) -> None:
    start(workers)
    objects = tmp_path / "home" / "objects"
    with key_events(redis_client, "xg") as events:
        run = done()
        assert (objects / run.id).is_dir()
        await_gone(keys_of([run], redis_client) | {INDEX}, events)
        workers.stop()
        start(workers)
        await_gone({STORED}, events)
        assert list(objects.iterdir()) == []
