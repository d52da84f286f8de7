"""Coroutine tasks on real workers with the async pool mean what Celery's tasks mean."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group, states
from celery.exceptions import Reject, SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded
from celery.result import AsyncResult
from redis import Redis

from tests.integration.pool_app import GATE, KEEP_S, QUICK_RESTORE, client_of
from tests.services import ServerForTests, Worker, Workers, key_events

pytestmark = pytest.mark.integration

WAIT_S = 6.0
Event = dict[str, Any]


class Site:
    """The server, the app as a client, and the workers with the pool."""

    def __init__(self, workers: Workers, app: Celery, client: Redis, environment: Mapping[str, str]) -> None:
        self.app, self.client = app, client
        self._workers, self._environment = workers, environment

    def start(
        self, concurrency: int = 300, *, env: Mapping[str, str] | None = None, **options: Any
    ) -> Worker:
        environment = {**self._environment, **(env or {})}
        app = "tests.integration.pool_app"
        return self._workers.start(
            app, ["pool"], pool="async", concurrency=concurrency, env=environment, **options
        )

    def task(self, name: str, *args: Any) -> Any:
        return self.app.signature(name, args)

    def send(self, name: str, *args: Any, **options: Any) -> AsyncResult:
        return self.task(name, *args).apply_async(**options)

    def next(self, what: str) -> str:
        """The next thing of a kind that happens, or happened."""
        found = self.client.blpop([f"test:{what}"], timeout=WAIT_S)
        assert found is not None, f"nothing more in test:{what}"
        return str(found[1].decode())

    def open_gate(self, times: int = 1) -> None:
        self.client.rpush(GATE, *["go"] * times)
        self.client.expire(GATE, KEEP_S)

    def unacked(self) -> int:
        return int(self.client.hlen("unacked"))

    def await_unacked(self, count: int) -> None:
        """Waits until so many messages are unacknowledged."""
        with key_events(self.client, "hg") as events:
            while self.unacked() != count:
                assert next(events, None), f"{self.unacked()} unacknowledged, not {count}"

    def queued(self) -> int:
        return int(self.client.llen("pool"))

    def control(self, command: str, **arguments: Any) -> Any:
        """The only worker's answer, once it listens."""
        assert any(self.app.control.ping(timeout=1.0, limit=1) for _ in range(10))
        (answer,) = self.app.control.broadcast(command, arguments, reply=True, limit=1, timeout=WAIT_S)
        ((_worker, said),) = answer.items()
        return said


@pytest.fixture
def site(workers: Workers, redis_server: ServerForTests) -> Iterator[Site]:
    """On Celery's own Redis backend."""
    urls = redis_server.urls
    with client_of(urls.broker_url, urls.broker_url) as app:
        environment = {"POOL_BROKER": urls.broker_url, "POOL_BACKEND": urls.broker_url}
        yield Site(workers, app, redis_server.client, environment)


def value(result: AsyncResult) -> Any:
    return result.get(timeout=WAIT_S)


def error(result: AsyncResult) -> BaseException:
    found = result.get(timeout=WAIT_S, propagate=False)
    assert isinstance(found, BaseException), found
    return found


# -- what a task is ----------------------------------------------------------------------------------------------------


def test_three_hundred_coroutines_are_in_flight_at_once(site: Site) -> None:
    site.start(concurrency=300).wait_ready()
    results = [site.send("wait", i) for i in range(300)]
    assert sorted(int(site.next("waiting")) for _ in results) == list(range(300))
    assert site.unacked() == 300
    site.open_gate(300)
    assert [value(result) for result in results] == list(range(300))
    site.await_unacked(0)


def test_interleaved_coroutines_see_their_own_request(site: Site) -> None:
    site.start().wait_ready()
    results = group(site.task("who", 20) for _ in range(50)).apply_async()
    assert value(results) == [[result.id] for result in results.results]


def test_a_request_names_its_worker(site: Site) -> None:
    worker = site.start().wait_ready()
    assert value(site.send("where")) == worker.name


def test_a_sync_task_runs_in_a_thread_beside_a_hundred_coroutines(site: Site) -> None:
    site.start().wait_ready()
    waiting = [site.send("wait", i) for i in range(100)]
    for _ in waiting:
        site.next("waiting")
    sync = site.send("plain", 7)
    assert value(sync) == [7, False, sync.id]
    site.open_gate(100)
    assert [value(result) for result in waiting] == list(range(100))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("succeed", ["on_success succeed", "after_return SUCCESS", "postrun SUCCESS"]),
        ("fail", ["on_failure ValueError", "after_return FAILURE", "postrun FAILURE"]),
        (
            "retry",
            ["on_retry KeyError", "postrun RETRY", "prerun True", "before_start True"],
        ),
    ],
)
def test_hooks_and_signals_come_in_celerys_order(site: Site, how: str, expected: list[str]) -> None:
    site.start().wait_ready()
    site.send("hooked", how).get(timeout=WAIT_S, propagate=False)
    expected = ["prerun True", "before_start True", *expected]
    if how == "retry":
        expected += ["on_success retry", "after_return SUCCESS", "postrun SUCCESS"]
    happened = [site.next("hooks") for _ in expected]
    # The second run may begin before the first one has said that it is over.
    assert sorted(happened) == sorted(expected) if how == "retry" else happened == expected


def test_autoretry_retries_coroutines(site: Site) -> None:
    site.start().wait_ready()
    assert value(site.send("auto")) == 2


def test_chains_and_links_go_on_with_the_value(site: Site) -> None:
    site.start().wait_ready()
    assert (
        value(chain(site.task("add", 1, 2), site.task("add", 10), site.task("add", 100)).apply_async()) == 113
    )
    linked = site.task("told").clone()
    site.send("add", 1, 1, link=[linked, group(site.task("told"), site.task("told"))])
    assert [site.next("told") for _ in range(3)] == ["2", "2", "2"]


def test_a_task_may_replace_itself(site: Site) -> None:
    site.start().wait_ready()
    assert value(site.send("replaced")) == 42


def test_errbacks_are_called(site: Site) -> None:
    site.start().wait_ready()
    result = site.send("end", "fail", link_error=site.task("tell_error"))
    assert isinstance(error(result), ValueError)
    assert site.next("errors") == "ValueError"


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("reject", Reject, "no"),
        ("exit", Exception, "it may not end its process"),
        ("cancel", Exception, "was cancelled by its own code"),
    ],
)
def test_other_endings_are_failures(site: Site, how: str, kind: type[Exception], said: str) -> None:
    site.start().wait_ready()
    found = error(site.send("end", how))
    assert isinstance(found, kind)
    assert said in str(found)
    site.await_unacked(0)


def test_an_ignored_task_is_acknowledged_and_has_no_result(site: Site) -> None:
    worker = site.start().wait_ready()
    ignored = site.send("end", "ignore")
    assert value(site.send("add", 1)) == 1
    site.await_unacked(0)
    assert ignored.state == states.PENDING
    assert "ignored" in worker.log


def test_async_generators_are_refused(site: Site) -> None:
    site.start().wait_ready()
    assert "'generate' is an async generator" in str(error(site.send("generate")))


def test_a_started_task_says_so(site: Site) -> None:
    site.start().wait_ready()
    result = site.send("tracked")
    assert site.next("waiting") == "tracked"
    assert result.state == states.STARTED
    site.open_gate()
    assert value(result) == "done"


@pytest.mark.parametrize("scheme", ["", "mosaic+"])
def test_a_chord_of_coroutines_joins(workers: Workers, redis_server: ServerForTests, scheme: str) -> None:
    broker = redis_server.urls.broker_url
    with client_of(broker, scheme + broker) as app:
        environment = {"POOL_BROKER": broker, "POOL_BACKEND": scheme + broker}
        site = Site(workers, app, redis_server.client, environment)
        site.start().wait_ready()
        body = chord([site.task("add", i, 1) for i in range(100)], site.task("total"))()
        assert value(body) == sum(range(101))
        failing = chord([site.task("add", 1), site.task("end", "fail")], site.task("total"))()
        assert "failed" in str(error(failing))


# -- slots and acknowledgements ----------------------------------------------------------------------------------------


def test_a_worker_without_free_slots_takes_nothing(site: Site) -> None:
    site.start(concurrency=5).wait_ready()
    results = [site.send("wait", i) for i in range(12)]
    for _ in range(5):
        site.next("waiting")
    assert (site.unacked(), site.queued()) == (5, 7)
    site.open_gate(12)
    assert sorted(value(result) for result in results) == list(range(12))


def test_slots_grow_and_shrink(site: Site) -> None:
    site.start(concurrency=2).wait_ready()
    results = [site.send("wait", i) for i in range(8)]
    for _ in range(2):
        site.next("waiting")
    assert "ok" in site.control("pool_grow", n=2)
    for _ in range(2):
        site.next("waiting")
    assert "ok" in site.control("pool_shrink", n=3)
    assert site.control("stats")["pool"]["max-concurrency"] == 1
    site.open_gate(4)
    site.next("waiting")
    site.await_unacked(1)
    assert site.queued() == 3
    site.open_gate(4)
    assert sorted(value(result) for result in results) == list(range(8))


def test_a_rate_limited_task_waits_for_its_tokens(site: Site) -> None:
    site.start().wait_ready()
    assert "ok" in site.control("rate_limit", task_name="add", rate_limit="1000/s")
    results = [site.send("add", i) for i in range(20)]
    assert [value(result) for result in results] == list(range(20))


def test_a_task_with_a_countdown_runs_though_no_slot_was_free(site: Site) -> None:
    site.start(concurrency=1).wait_ready()
    delayed = site.send("add", 1, countdown=0.3)
    site.await_unacked(1)
    busy = site.send("wait")
    site.next("waiting")
    site.open_gate()
    assert (value(busy), value(delayed)) == (0, 1)


def test_after_a_kill_only_what_was_not_over_runs_again(site: Site) -> None:
    quick = {"POOL_QUICK_RESTORE": "1"}
    worker = site.start(env=quick).wait_ready()
    over = [site.send("told", i) for i in range(50)]
    assert sorted(int(site.next("told")) for _ in over) == list(range(50))
    unfinished = [site.send("wait", i) for i in range(30)]
    for _ in unfinished:
        site.next("waiting")
    site.await_unacked(30)
    worker.kill()
    site.start(env=quick).wait_ready()
    assert sorted(int(site.next("waiting")) for _ in unfinished) == list(range(30))
    site.open_gate(30)
    assert [value(result) for result in unfinished] == list(range(30))
    assert site.client.llen("test:told") == 0


def test_what_was_taken_together_survives_a_kill_before_it_was_delivered(site: Site) -> None:
    """The worker dies when it hands on the third message, and has taken all by then."""
    results = [site.send("told", i) for i in range(40)]
    quick = {"POOL_QUICK_RESTORE": "1"}
    worker = site.start(env={**quick, "POOL_DIE": "received:3"})
    assert worker.wait(WAIT_S) == -signal.SIGKILL
    assert (site.unacked(), site.queued()) == (40, 0)
    site.start(env=quick).wait_ready()
    told: set[int] = set()
    while len(told) < len(results):
        told.add(int(site.next("told")))


def test_tasks_in_flight_outlive_a_loss_of_the_broker(site: Site) -> None:
    worker = site.start().wait_ready()
    results = [site.send("wait", i) for i in range(20)]
    for _ in results:
        site.next("waiting")
    taking = [int(client["id"]) for client in site.client.client_list() if client["cmd"] == "brpop"]
    site.client.client_kill_filter(_id=str(max(taking)))  # the worker's is the newest
    worker.wait_said("Connection to broker lost")
    site.open_gate(40)  # the broker gives them out again, as it does whatever the pool
    assert sorted(map(value, results)) == list(range(20))
    assert value(site.send("add", 5)) == 5
    site.await_unacked(0)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_other_brokers_work(workers: Workers, redis_server: ServerForTests, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    backend = redis_server.urls.broker_url
    environment = {
        "POOL_BROKER": "filesystem://",
        "POOL_BACKEND": backend,
        "POOL_FOLDER": f"{tmp_path}/folder",
    }
    with client_of("filesystem://", backend, folder=environment["POOL_FOLDER"]) as app:
        site = Site(workers, app, redis_server.client, environment)
        worker = site.start().wait_ready()
        assert value(chain(site.task("add", 1, 2), site.task("add", 10)).apply_async()) == 13
        running, sync = site.send("wait", 1), site.send("plain", 2)
        assert site.next("waiting") == "1"
        assert value(sync) == [2, False, sync.id]
        worker.signal(signal.SIGTERM)
        worker.wait_said("worker: Warm shutdown")
        site.open_gate()
        assert worker.wait() == 0
        assert value(running) == 1


def test_priorities_and_a_key_prefix_are_kept(site: Site, redis_server: ServerForTests) -> None:
    prefixed = {"global_keyprefix": "prefix:"}
    site.app.conf.broker_transport_options = {**QUICK_RESTORE, **prefixed}
    for i in range(10):
        site.send("told", i, priority=9 if i < 5 else 0)
    site.start(concurrency=1, env={"POOL_PREFIX": "prefix:"}).wait_ready()
    assert [site.next("told") for _ in range(10)] == [str(i) for i in (5, 6, 7, 8, 9, 0, 1, 2, 3, 4)]
    assert not site.client.exists("pool", "unacked")


def test_a_task_costs_less_than_two_trips_to_the_broker(site: Site) -> None:
    results = [site.send("quiet", i) for i in range(1000)]
    site.client.config_resetstat()
    site.start(concurrency=64)
    with key_events(site.client, "hg") as events:
        while site.client.llen("pool") or site.unacked():
            next(events, None)
    counts = {name: facts["calls"] for name, facts in site.client.info("commandstats").items()}
    trips = sum(counts.get(f"cmdstat_{name}", 0) for name in ("brpop", "evalsha", "eval", "exec"))
    assert trips < 2 * len(results)


# -- limits and revoking -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["raise", "return"])
def test_a_coroutine_sees_its_soft_limit(site: Site, how: str) -> None:
    worker = site.start().wait_ready()
    result = site.send("limited", how)
    assert site.next("seen") == "cancelled"
    if how == "return":
        assert value(result) == "cleaned up"
    else:
        assert isinstance(error(result), SoftTimeLimitExceeded)
    assert "Soft time limit (0.2s) exceeded" in worker.log


@pytest.mark.parametrize("resists", [False, True])
def test_a_hard_limit_fails_the_task_and_frees_its_slot(site: Site, resists: bool) -> None:
    worker = site.start(concurrency=1).wait_ready()
    assert isinstance(error(site.send("hard", resists)), TimeLimitExceeded)
    assert site.next("seen") == "cancelled"
    assert value(site.send("add", 1)) == 1
    assert ("pool.forgotten" in worker.log) is resists


def test_time_limits_may_be_changed(site: Site) -> None:
    site.start().wait_ready()
    assert "ok" in site.control("time_limit", task_name="wait", hard=0.1)
    assert isinstance(error(site.send("wait")), TimeLimitExceeded)


def test_a_revoked_task_is_cancelled(site: Site) -> None:
    site.start(concurrency=1, args=("-E",)).wait_ready()
    running, waiting = site.send("wait", 1), site.send("add", 1)
    assert site.next("waiting") == "1"
    assert "ok" in site.control("revoke", task_id=waiting.id)
    assert "ok" in site.control("revoke", task_id=running.id, terminate=True)
    for revoked in (running, waiting):
        assert isinstance(error(revoked), TaskRevokedError)
    assert value(site.send("add", 2)) == 2
    site.await_unacked(0)


def test_inspect_knows_what_runs(site: Site) -> None:
    site.start(concurrency=2).wait_ready()
    results = [site.send("wait", i) for i in range(2)]
    for _ in results:
        site.next("waiting")
    assert {task["id"] for task in site.control("active")} == {result.id for result in results}
    assert site.control("reserved") == []
    assert "add" in site.control("registered")
    pool = site.control("stats")["pool"]
    assert (pool["implementation"], pool["max-concurrency"]) == ("mosaic_tasks.pool.taskpool:TaskPool", 2)
    assert (pool["running"], pool["free"]) == (2, 0)
    site.open_gate(2)
    assert sorted(map(value, results)) == [0, 1]


def test_flower_sees_the_events_of_a_task(site: Site) -> None:
    site.start(args=("-E",)).wait_ready()
    seen: dict[str, list[str]] = {}
    with site.app.connection() as connection:
        receiver = site.app.events.Receiver(connection, handlers={"*": lambda event: note(seen, event)})
        consumer = receiver.itercapture(limit=None, timeout=WAIT_S, wakeup=False)
        next(consumer)
        good, bad = site.send("add", 1), site.send("end", "fail")
        while not (ended(seen, good.id) and ended(seen, bad.id)):
            next(consumer)
    assert seen[good.id] == ["task-received", "task-started", "task-succeeded"]
    assert seen[bad.id] == ["task-received", "task-started", "task-failed"]


def note(seen: dict[str, list[str]], event: Event) -> None:
    if "uuid" in event:
        seen.setdefault(event["uuid"], []).append(event["type"])


def ended(seen: Mapping[str, list[str]], task_id: str) -> bool:
    return any(kind in ("task-succeeded", "task-failed") for kind in seen.get(task_id, []))


# -- shutdowns ---------------------------------------------------------------------------------------------------------


def test_a_warm_shutdown_drains(site: Site) -> None:
    worker = site.start().wait_ready()
    results = [site.send("wait", i) for i in range(20)]
    for _ in results:
        site.next("waiting")
    worker.signal(signal.SIGTERM)
    worker.wait_said("worker: Warm shutdown")
    site.open_gate(10)
    site.await_unacked(10)
    late = site.send("add", 1)
    assert worker.returncode is None
    site.open_gate(10)
    assert worker.wait() == 0
    assert sorted(map(value, results)) == list(range(20))
    assert (site.unacked(), site.queued(), late.state) == (0, 1, states.PENDING)


def test_a_cold_shutdown_hands_back(site: Site) -> None:
    worker = site.start().wait_ready()
    for i in range(20):
        site.send("wait", i)
    for _ in range(20):
        site.next("waiting")
    worker.signal(signal.SIGQUIT)
    worker.wait()
    assert (site.unacked(), site.queued()) == (0, 20)
    assert Counter(task_ids(site)) == Counter(set(task_ids(site)))


def test_a_warm_shutdown_may_become_a_cold_one(site: Site) -> None:
    worker = site.start().wait_ready()
    result = site.send("wait", 1)
    site.next("waiting")
    worker.signal(signal.SIGTERM)
    worker.wait_said("worker: Warm shutdown")
    worker.signal(signal.SIGQUIT)
    worker.wait()
    assert (site.unacked(), site.queued(), result.state) == (0, 1, states.PENDING)


def test_a_soft_shutdown_ends_what_it_can(site: Site) -> None:
    worker = site.start(env={"POOL_SOFT_S": "3"}).wait_ready()
    results = [site.send("wait", i) for i in range(6)]
    for _ in results:
        site.next("waiting")
    worker.signal(signal.SIGQUIT)
    worker.wait_said("pool.soft_shutdown")
    site.open_gate(4)
    worker.wait()
    assert sum(result.state == states.SUCCESS for result in results) == 4
    assert (site.unacked(), site.queued()) == (0, 2)


def task_ids(site: Site) -> list[str]:
    return [
        raw.decode().partition('"correlation_id": "')[2][:36] for raw in site.client.lrange("pool", 0, -1)
    ]
