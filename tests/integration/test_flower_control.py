"""What the buttons of the real Flower do to workers of each pool: they work, or say why not, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mosaic_queues.settings import Settings
from mosaic_tasks import Flow, Workflow, submit
from tests.integration import run_tools as tools
from tests.integration.flowers import Answer, Flower
from tests.services import Pool, ServerForTests, Workers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
APP, QUEUES = "mosaic_tasks.app", ["mosaic.cpu"]
POOLS: list[Pool] = ["prefork", "threads", "async"]


@pytest.fixture
def flower(redis_server: ServerForTests, tmp_path: Path) -> Iterator[Flower]:
    with Flower(redis_server.urls, tmp_path) as started:
        yield started


@pytest.fixture(autouse=True)
def _client(mosaic_process: Settings) -> None:
    """This process submits."""


def fan(n: int = 6, *, queue: str = "mosaic.cpu") -> Workflow:
    flow = Flow("fans", defaults={"queue": queue})
    flow.output(flow.tool(tools.double, for_each=flow.tool(tools.count, n=n), x="${item}"))
    return flow.build()


def runs(n: int = 6, *, queue: str = "mosaic.cpu") -> bool:
    found: list[int] = submit(fan(n, queue=queue)).result(timeout_s=30)
    return found == [2 * number for number in range(n)]


def told(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.text


@pytest.mark.parametrize("pool", POOLS)
def test_its_buttons_work_or_say_why_not(flower: Flower, workers: Workers, pool: Pool) -> None:
    worker = workers.start(APP, QUEUES, pool=pool, concurrency=2, args=["-E"]).wait_ready()

    def slots() -> int:
        stats = flower.await_workers([worker.name])[worker.name]["stats"]["pool"]
        return len(stats["processes"]) if pool == "prefork" else int(stats["max-concurrency"])

    assert slots() == 2
    for verb, size in (("grow", 4), ("shrink", 3)):
        status, text = told(
            flower.post(f"/api/worker/pool/{verb}/{worker.name}", n=2 if verb == "grow" else 1)
        )
        if pool == "threads":
            assert (status, f"no attribute '{verb}'" in text) == (403, True)  # Celery's own cannot
            continue
        assert status == 200, text
        flower.await_that(slots, lambda found, size=size: found == size, f"it has {size} slots")  # type: ignore[misc]
        assert runs()
    for path, why in (
        (f"/api/worker/pool/autoscale/{worker.name}?min=1&max=5", "Autoscale not enabled"),
        (f"/api/worker/pool/restart/{worker.name}", "Pool restarts not enabled"),
        (f"/api/task/timeout/mosaic.call?workername={worker.name}&hard=1", "give the node a `timeout`"),
        (
            f"/api/task/rate-limit/mosaic.call?workername={worker.name}&ratelimit=1/m",
            "carries any number of calls",
        ),
    ):
        status, text = told(flower.post(path))
        assert (status, why in text) == (403, True), text
    assert runs()
    assert worker.returncode is None


@pytest.mark.parametrize("pool", POOLS)
def test_it_adds_and_cancels_queues(flower: Flower, workers: Workers, pool: Pool) -> None:
    worker = workers.start(APP, QUEUES, pool=pool, concurrency=2, args=["-E"]).wait_ready()
    flower.await_workers([worker.name])
    assert flower.post(f"/api/worker/queue/add-consumer/{worker.name}", queue="more").status == 200
    assert runs(queue="more")
    assert flower.post(f"/api/worker/queue/cancel-consumer/{worker.name}", queue="mosaic.cpu").status == 200

    def serves() -> set[str]:
        found = flower.await_workers([worker.name])[worker.name]
        return {queue["name"] for queue in found["active_queues"]}

    flower.await_that(serves, lambda found: found == {"more"}, "it serves only the new queue")
    waiting = submit(fan())
    assert runs(queue="more")
    assert waiting.record().status == "running"
    assert flower.post(f"/api/worker/queue/add-consumer/{worker.name}", queue="mosaic.cpu").status == 200
    assert waiting.result(timeout_s=30) == [2 * number for number in range(6)]


def test_a_worker_takes_no_queue_of_a_model_that_it_does_not_host(flower: Flower, workers: Workers) -> None:
    worker = workers.start(APP, QUEUES, pool="async", concurrency=2, args=["-E"]).wait_ready()
    flower.await_workers([worker.name])
    flower.post(f"/api/worker/queue/add-consumer/{worker.name}", queue="mosaic.gpu.llama")
    worker.wait_said("control.refused")
    assert runs()


@pytest.mark.parametrize("pool", POOLS)
def test_shutting_a_worker_down_loses_nothing(flower: Flower, workers: Workers, pool: Pool) -> None:
    first = workers.start(APP, QUEUES, pool=pool, concurrency=2, args=["-E"]).wait_ready()
    flower.await_workers([first.name])
    flow = Flow("lasts")
    each = flow.tool(tools.pause, for_each=flow.tool(tools.count, n=8), x="${item}", pause_s=0.1)
    flow.output(each)
    run = submit(flow.build())
    for event in run.events(follow=True):
        if event.kind == "done":
            break
    assert flower.post(f"/api/worker/shutdown/{first.name}").status == 200
    assert first.wait(30) == 0
    workers.start(APP, QUEUES, pool=pool, concurrency=2, args=["-E"]).wait_ready()
    assert run.result(timeout_s=30) == list(range(8))


def test_the_broker_page_counts_messages_of_all_priorities(flower: Flower, workers: Workers) -> None:
    worker = workers.start(APP, ["mosaic.cpu"], pool="threads", args=["-E"]).wait_ready()
    flower.await_workers([worker.name])
    flower.post(f"/api/worker/queue/cancel-consumer/{worker.name}", queue="mosaic.cpu")
    flower.post(f"/api/worker/queue/add-consumer/{worker.name}", queue="other")

    def queues() -> set[str]:
        return {queue["name"] for queue in flower.await_workers([worker.name])[worker.name]["active_queues"]}

    flower.await_that(queues, lambda found: found == {"other"}, "it takes nothing more")
    waiting = [submit(fan(), priority=level) for level in (0, 4, 9)]
    flower.post(f"/api/worker/queue/add-consumer/{worker.name}", queue="mosaic.cpu")
    for run in waiting:
        run.wait(timeout_s=30)
    flower.await_that(queues, lambda found: found == {"other", "mosaic.cpu"}, "it takes from both")
    page = flower.ask("/broker")
    assert page.status == 200
    assert "mosaic.cpu" in page.text
    lengths = flower.ask("/api/queues/length").json()["active_queues"]
    assert {each["name"]: each["messages"] for each in lengths} == {"mosaic.cpu": 0, "other": 0}


def test_it_asks_who_you_are(redis_server: ServerForTests, tmp_path: Path) -> None:
    with Flower(redis_server.urls, tmp_path, credentials="ann:s3cret") as flower:
        for path in ("/workers", "/tasks", "/broker", "/api/workers", "/api/tasks"):
            assert flower.ask(path, login=False).status == 401, path
        assert flower.ask("/tasks").status == 200
        assert flower.ask("/api/tasks").status == 200
        for path in ("/healthcheck", "/metrics"):
            assert flower.ask(path, login=False).status == 200, path
    assert "s3cret" not in "".join(flower.log)


def test_without_credentials_its_api_is_closed(redis_server: ServerForTests, tmp_path: Path) -> None:
    with Flower(redis_server.urls, tmp_path, "--url-prefix=flower", opened=False) as flower:
        assert flower.ask("/api/tasks").status == 401
        assert flower.ask("/tasks").status == 200
