"""The webhook of a single run: told by a worker at least once, whoever is killed, and not for ever."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import time_machine
from receiver import Receiver, receiving
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from mosaic_queues.errors import InputError
from mosaic_queues.settings import Settings
from mosaic_tasks import Run, Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.webhooks import telling
from mosaic_tasks.webhooks.pending import PendingWebhooks
from mosaic_tasks.webhooks.telling import Telling
from tests.services import Workers

pytestmark = pytest.mark.integration
TOLD_S = 30
LEAVES_RUNS = pytest.mark.leaves("keys", reason="without a worker nobody sweeps the index of runs")
WORKFLOW = Workflow.model_validate(
    {
        "name": "told",
        "inputs": {"x": {"type": "integer"}},
        "nodes": {
            "value": {"tool": "tests.integration.run_tools:boom_on", "with": {"x": "${inputs.x}", "bad": 2}}
        },
        "output": "value",
    }
)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("MOSAIC_WEBHOOK_SECRET", f"whsec_{base64.b64encode(bytes(32)).decode()}")
    monkeypatch.setenv("MOSAIC_WEBHOOK_ALLOW", "127.0.0.1")
    with receiving() as started:
        yield started


@pytest.fixture
def came(receiver: Receiver) -> threading.Event:
    """Is set when something comes."""
    event = threading.Event()
    receiver.before = event.set
    return event


def told(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in receiver.came]


def webhook_keys(client: Redis) -> list[bytes]:
    return list(client.scan_iter(match="mosaic:webhook*"))


def drained(client: Redis) -> bool:
    """Whether nothing is left to tell, now or once the attempt that goes on is noted."""
    for thread in threading.enumerate():
        if thread.name == "mosaic-webhook":
            thread.join(TOLD_S)
    return webhook_keys(client) == []


# -- by workers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("x", "status"), [(1, "done"), (2, "failed")])
def test_the_end_of_a_run_is_told(
    x: int, status: str, receiver: Receiver, came: threading.Event, mosaic_process: Settings, workers: Workers
) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
    run = submit(WORKFLOW, {"x": x}, webhook=receiver.url)
    assert came.wait(TOLD_S)
    [body] = told(receiver)
    assert (body["type"], body["data"]["run"], body["data"]["workflow"]) == (f"run.{status}", run.id, "told")
    assert receiver.ids() == [f"msg_{run.id}"]
    assert ("2 is bad" in body["data"]["error"]) == (status == "failed")


def test_it_is_told_also_where_the_worker_that_closed_the_run_is_killed_at_once(
    receiver: Receiver, came: threading.Event, mosaic_process: Settings, workers: Workers
) -> None:
    first = workers.start("mosaic_tasks.app", ["mosaic.cpu"], env={"MOSAIC_SWEEP_S": "3600"})
    first.wait_ready()
    run = submit(WORKFLOW, {"x": 1}, webhook=receiver.url)
    run.wait(TOLD_S)
    first.kill()
    assert receiver.came == []
    workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
    assert came.wait(TOLD_S)
    assert receiver.ids() == [f"msg_{run.id}"]


# -- round by round ------------------------------------------------------------------------------------------


@pytest.fixture
def ended(receiver: Receiver, mosaic_process: Settings, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that is over, whose webhook no worker tells."""
    run = submit(WORKFLOW, {"x": 1}, webhook=receiver.url)
    run.cancel()
    monkeypatch.setattr(telling, "PAUSES_S", (0.0, 0.0))
    return run


def sweeper() -> Telling:
    process = process_for(app)
    return Telling(process.webhooks, process.ledger.run)


@LEAVES_RUNS
def test_a_receiver_that_is_away_is_told_later_with_the_same_id(
    ended: Run, receiver: Receiver, redis_client: Redis
) -> None:
    receiver.statuses = [(503, {})]
    sweeper().sweep()
    assert not drained(redis_client)
    sweeper().sweep()
    assert drained(redis_client)
    assert receiver.ids() == [f"msg_{ended.id}"] * 2
    assert receiver.came[0][1] == receiver.came[1][1]


@LEAVES_RUNS
def test_who_dies_while_it_tells_has_another_tell_it_again(
    ended: Run, receiver: Receiver, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(pending: telling.Pending) -> None:
        assert attempt(pending) is None
        raise RedisConnectionError("it is gone")

    attempt = telling._attempt
    monkeypatch.setattr(telling, "LEASE_S", 0.0)
    monkeypatch.setattr(telling, "_attempt", dies)
    sweeper().sweep()
    assert not drained(redis_client)
    monkeypatch.setattr(telling, "_attempt", attempt)
    sweeper().sweep()
    assert drained(redis_client)
    assert receiver.ids() == [f"msg_{ended.id}"] * 2


@LEAVES_RUNS
def test_while_it_is_told_nobody_else_tells_it(ended: Run, receiver: Receiver, redis_client: Redis) -> None:
    asked, answer = threading.Event(), threading.Event()
    receiver.before = lambda: (asked.set(), answer.wait(TOLD_S))
    first = sweeper()
    first.sweep()
    assert asked.wait(TOLD_S)
    first.sweep()
    sweeper().sweep()
    answer.set()
    assert drained(redis_client)
    assert len(receiver.came) == 1


@LEAVES_RUNS
def test_after_some_attempts_it_is_given_up_with_a_line_in_the_log(
    ended: Run, receiver: Receiver, redis_client: Redis
) -> None:
    receiver.statuses = [(500, {})] * 9
    with capture_logs() as logs:
        for _ in range(3):
            sweeper().sweep()
            drained(redis_client)
    [line] = [line for line in logs if line["event"] == "webhook.given_up"]
    assert (line["run"], line["tries"]) == (ended.id, 3)
    assert receiver.url not in str(logs)
    assert (len(receiver.came), webhook_keys(redis_client)) == (3, [])


@LEAVES_RUNS
def test_a_receiver_that_refuses_is_not_asked_again(
    ended: Run, receiver: Receiver, redis_client: Redis
) -> None:
    receiver.statuses = [(410, {})]
    sweeper().sweep()
    assert drained(redis_client)


@LEAVES_RUNS
def test_a_worker_without_a_secret_leaves_it_for_later(
    ended: Run, receiver: Receiver, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.delenv("MOSAIC_WEBHOOK_SECRET")
        sweeper().sweep()
        assert not drained(redis_client)
    sweeper().sweep()
    assert drained(redis_client)
    assert len(receiver.came) == 1


@LEAVES_RUNS
def test_a_receiver_that_is_slow_holds_up_nobody_else(
    ended: Run, receiver: Receiver, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "AT_ONCE_TO_ONE", 1)
    monkeypatch.setattr(telling, "AT_ONCE", 2)
    answer, begun, came = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        answer.wait(TOLD_S)

    receiver.before = hold
    for _ in range(2):
        submit(WORKFLOW, {"x": 1}, webhook=receiver.url).cancel()
    with receiving() as other:
        other.before = came.set
        last = submit(WORKFLOW, {"x": 1}, webhook=other.url)
        last.cancel()
        sweeper().sweep()
        try:
            assert came.wait(TOLD_S)
            assert begun.wait(TOLD_S)
            assert len(receiver.came) == 1
        finally:
            answer.set()
            drained(redis_client)
        assert other.ids() == [f"msg_{last.id}"]


@LEAVES_RUNS
def test_many_runs_that_go_on_hold_up_none_that_ended(
    receiver: Receiver, came: threading.Event, mosaic_process: Settings, redis_client: Redis
) -> None:
    for _ in range(40):
        submit(WORKFLOW, {"x": 1}, webhook=receiver.url)
    last = submit(WORKFLOW, {"x": 1}, webhook=receiver.url)
    last.cancel()
    sweeper().sweep()
    assert came.wait(TOLD_S)
    drained(redis_client)
    assert receiver.ids() == [f"msg_{last.id}"]


# -- what it costs, and what is refused ------------------------------------------------------------------------


@LEAVES_RUNS
def test_a_run_that_is_not_over_is_come_back_to(
    receiver: Receiver, mosaic_process: Settings, redis_client: Redis
) -> None:
    run = submit(WORKFLOW, {"x": 1}, webhook=receiver.url)
    sweeper().sweep()
    assert redis_client.zscore("mosaic:webhooks", run.id) > process_for(app).now_ms()  # type: ignore[operator]
    assert receiver.came == []


@LEAVES_RUNS
def test_a_run_without_a_webhook_leaves_nothing_to_look_at(
    mosaic_process: Settings, redis_client: Redis
) -> None:
    submit(WORKFLOW, {"x": 1})
    assert webhook_keys(redis_client) == []


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "https://127.0.0.1/", "https://2130706433/", "ftp://x/"])
def test_a_url_that_may_not_be_told_opens_no_run(
    url: str, mosaic_process: Settings, redis_client: Redis
) -> None:
    with pytest.raises(InputError, match="webhook"):
        submit(WORKFLOW, {"x": 1}, webhook=url)
    assert list(redis_client.scan_iter(match="mosaic:*")) == []


def test_who_dies_before_the_run_is_open_leaves_nothing_for_ever(
    mosaic_process: Settings, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    PendingWebhooks(redis_client, namespace="mosaic", keep_s=60).register(
        "never-opened", "https://example.org/"
    )
    sweeper().sweep()
    assert len(webhook_keys(redis_client)) == 2
    redis_client.zadd("mosaic:webhooks", {"never-opened": 0})
    monkeypatch.setattr(telling, "UNOPENED_S", -1.0)
    sweeper().sweep()
    assert webhook_keys(redis_client) == []


def test_a_clock_of_the_worker_that_is_ahead_loses_no_webhook(
    mosaic_process: Settings, redis_client: Redis
) -> None:
    """The run of it is about to open."""
    pending = process_for(app).webhooks
    with time_machine.travel(time.time() + 3600, tick=True):
        pending.register("to-be-opened", "https://example.org/")
        sweeper().sweep()
    assert len(webhook_keys(redis_client)) == 2
    pending.drop("to-be-opened")


def test_the_same_run_is_noted_once(mosaic_process: Settings, redis_client: Redis) -> None:
    pending = PendingWebhooks(redis_client, namespace="mosaic", keep_s=60)
    pending.register("r", "https://example.org/")
    pending.put_off("r", pause_s=60, tries=3)
    pending.register("r", "https://example.org/other")
    found = pending.read("r")
    assert found is not None
    assert (found.url, found.tries, pending.due(most=9)) == ("https://example.org/other", 3, [])
    redis_client.delete("mosaic:webhook:r")
    redis_client.zadd("mosaic:webhooks", {"r": 0})
    sweeper().sweep()
    assert webhook_keys(redis_client) == []
