"""Processes that learn at once that calls which they run do not count any more. They do not look by themselves here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from mosaic_queues import recalls
from mosaic_queues.following import close_hub
from mosaic_queues.keys import Keys
from mosaic_queues.ledger import Ledger
from mosaic_queues.recalls import Recalled, RecallListener, Recalls
from mosaic_tasks import Run
from tests.integration.hosts import WAIT_S, call, fan_out
from tests.integration.stream_runs import agent, recorded, run
from tests.integration.stream_tools import await_told, happened, open_gate
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

NEVER_LOOKS = {"CLAIMS_EVERY_S": "3600"}


def start(workers: Workers, pool: str) -> None:
    args = ("--include", "tests.integration.host_limits")
    concurrency = 8 if pool == "async" else 1
    workers.start(
        "mosaic_tasks.app", ["mosaic.cpu"], pool=pool, concurrency=concurrency, env=NEVER_LOOKS, args=args
    ).wait_ready()


@pytest.fixture(params=["async", "prefork", "solo"])
def worker(workers: Workers, request: pytest.FixtureRequest) -> None:
    """A worker with each pool."""
    start(workers, request.param)


@pytest.fixture
def host(workers: Workers) -> None:
    """A worker whose calls share a loop."""
    start(workers, "async")


def take_back(client: Redis, started: Run, name: str, *, calls: int = 1) -> None:
    """The first `calls` calls are taken from who runs them, who is told."""
    ledger = Ledger(client)
    live = [each for each in started.live_calls() if each.state == "claimed"][:calls]
    assert len(live) == calls, f"{name}: {live}"
    for each in live:
        ledger.take_back(started.id, [(each.call, each.fence)], holder=each.holder)
    ledger.recalls.send([Recalled(each.claimant, started.id, [each.call]) for each in live])


@pytest.mark.parametrize("kind", ["ends_once", "ends_once_in_thread"])
def test_a_call_that_was_taken_back_ends_at_once(worker: None, redis_client: Redis, kind: str) -> None:
    started = run({"held": call(kind, with_={"x": 7, "name": "held"})}, "held")
    await_told(redis_client, "held", 1)
    take_back(redis_client, started, "held")
    assert await_told(redis_client, "end of held", 1) == ["7"]
    assert started.result(WAIT_S) == 7  # the sweeper publishes it again
    assert len([event for event in started.events() if event.kind in ("retry", "failed")]) == 0


def test_calls_beside_it_go_on(worker: None, redis_client: Redis) -> None:
    started = fan_out("ends_once", 3, name="beside")
    await_told(redis_client, "beside", 3)
    take_back(redis_client, started, "beside")
    (ended,) = await_told(redis_client, "end of beside", 1)
    claimed = [each.call for each in started.live_calls() if each.state == "claimed"]
    assert {call.rpartition(".")[2] for call in claimed} >= {"0", "1", "2"} - {ended}
    assert happened(redis_client, "end of beside") == [ended]
    started.cancel()


def test_word_that_is_wrong_ends_nothing(host: None, redis_client: Redis) -> None:
    kept = run({"held": call("gated", with_={"x": 1, "name": "kept"})}, "held")
    await_told(redis_client, "kept", 1)
    (live,) = kept.live_calls()
    Recalls(redis_client, Keys("mosaic")).send([Recalled(live.holder, kept.id, [live.call])])
    lost = run({"held": call("ends_once", with_={"x": 2, "name": "lost"})}, "held")
    await_told(redis_client, "lost", 1)
    take_back(redis_client, lost, "lost")
    await_told(redis_client, "end of lost", 1)  # word comes in order
    open_gate(redis_client, "kept")
    assert kept.result(WAIT_S) == 1
    assert len(happened(redis_client, "kept")) == 1


@pytest.mark.parametrize("kind", ["ends_once", "ends_once_in_thread"])
def test_the_calls_of_a_cancelled_run_end_at_once(worker: None, redis_client: Redis, kind: str) -> None:
    started = run({"held": call(kind, with_={"x": 7, "name": "held"})}, "held")
    await_told(redis_client, "held", 1)
    started.cancel()
    assert await_told(redis_client, "end of held", 1) == ["7"]


def test_the_calls_of_a_failed_run_end_at_once(host: None, redis_client: Redis) -> None:
    nodes = {
        "held": call("ends_once", with_={"x": 7, "name": "held"}),
        "fails": call("fails_when_told", with_={"name": "fail"}),
        "both": call("nothing", with_={"x": ["${held}", "${fails}"]}),
    }
    run(nodes, "both")
    await_told(redis_client, "held", 1)
    open_gate(redis_client, "fail")
    assert await_told(redis_client, "end of held", 1) == ["7"]


def test_the_engine_of_a_call_stops_generating(worker: None, redis_client: Redis, tmp_path: Path) -> None:
    model = recorded(tmp_path / "answer.jsonl", (0.0, '{"revenue": '), (600.0, "1}"))
    started = run({"asked": agent(model)}, "asked")
    await_told(redis_client, "engine asked", 1)
    started.cancel()
    await_told(redis_client, "engine left", 1)
    assert happened(redis_client, "engine left") == ["1"]


# -- the two sides, without workers ------------------------------------------------------------------------------------


@pytest.fixture
def listener(redis_client: Redis) -> Iterator[RecallListener]:
    made = RecallListener(redis_client, Keys("mosaic"))
    yield made
    made.close()


def test_what_was_sent_before_somebody_listens_is_heard(
    redis_client: Redis, listener: RecallListener
) -> None:
    told: list[Any] = []
    Recalls(redis_client, Keys("mosaic")).send(
        [Recalled("me#3", "run", ["1", "2"]), Recalled("you", "run", ["3"])]
    )
    listener.add(lambda *word: told.append(word))
    listener.listen("me")
    assert told == [("run", ["1", "2"])]


def test_it_listens_again_where_the_server_was_away(
    redis_client: Redis, listener: RecallListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recalls, "AGAIN_S", 0.0)
    keys, told = Keys("mosaic"), list[Any]()
    listener.add(lambda run_id, _calls: told.append(run_id))
    listener.listen("me")
    close_hub(redis_client, keys)  # as when the server did not come back
    Recalls(redis_client, keys).send([Recalled("me", "later", ["1"])])
    assert told == []
    listener.listen("me")
    assert told == ["later"]


def test_a_sender_whose_server_is_away_goes_on() -> None:
    nobody = Redis(port=1, retry=Retry(NoBackoff(), 0))
    Recalls(nobody, Keys("mosaic")).send([Recalled("me", "run", ["1"])])
    nobody.close()
