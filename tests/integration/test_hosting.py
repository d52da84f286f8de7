"""Runs on workers that host the calls of many messages on one event loop."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from mosaic_queues.errors import RunCancelled, RunFailed
from mosaic_queues.ledger import Ledger
from mosaic_tasks import Run
from mosaic_tasks.app import app
from mosaic_tasks.execution.hosting import REFUSED_EXIT
from tests.integration import stream_tools as tools
from tests.integration.hosts import WAIT_S, Hosts, call, fan_out, hosted
from tests.integration.stream_runs import agent, recorded, run, tool
from tests.integration.test_runs import (  # noqa: F401  they run here on a host
    test_a_false_condition_skips_the_node_and_what_needs_it,
    test_every_kind_of_callable_is_a_tool,
)
from tests.integration.test_streaming import (  # noqa: F401
    test_a_failed_batch_is_tried_again_from_the_last_commit,
    test_a_field_starts_its_readers_while_the_answer_is_written,
    test_a_node_and_what_depends_on_it_run_again_and_the_rest_is_kept,
    test_an_agent_reads_a_stream_batch_by_batch,
    test_streams_chain_through_folds_and_fan_outs,
)
from tests.services import Worker, Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]


@pytest.fixture
def hosts(workers: Workers, redis_client: Redis, mosaic_process: Any) -> Iterator[Hosts]:
    yield from hosted(workers, redis_client)


@pytest.fixture
def worker(hosts: Hosts) -> Worker:
    """One with many slots; also what the tests of other modules run on."""
    return hosts.start().wait_ready()


def others(hosts: Hosts, *, concurrency: int = 300, **env: str) -> tuple[Worker, Worker]:
    first, second = hosts.start(concurrency, **env), hosts.start(concurrency, **env)
    return first.wait_ready(), second.wait_ready()


def kinds(started: Run) -> Counter[str]:
    """How often each kind of event happened to a call."""
    counts: Counter[str] = Counter()
    for event in started.events():
        counts[event.kind] += max(1, len(event.calls))
    return counts


# -- what runs ---------------------------------------------------------------------------------------------------------


def test_two_hundred_slow_calls_are_in_flight_at_once(worker: Worker) -> None:
    assert fan_out("meets", 200, n=200).result(WAIT_S) == list(range(200))


def test_calls_of_many_runs_share_the_loop(worker: Worker) -> None:
    runs = [fan_out("meets", 10, n=100) for _ in range(10)]
    assert [each.result(WAIT_S) for each in runs] == [list(range(10))] * 10


def test_agents_answer_side_by_side(hosts: Hosts, worker: Worker, tmp_path: Path) -> None:
    model = recorded(tmp_path / "answer.jsonl", (0.3, '{"revenue": 1}'))
    nodes = {
        "numbers": call("count", with_={"n": 100}),
        "asked": agent(model, for_each="${numbers}"),
    }
    assert run(nodes, "asked").result(WAIT_S) == [{"revenue": 1}] * 100
    assert hosts.counted("streams") == 0


def test_a_chain_goes_on_without_the_broker(worker: Worker, redis_client: Redis) -> None:
    nodes = {"0": call("nothing", with_={"x": 7})}
    nodes |= {str(place): call("nothing", with_={"x": f"${{{place - 1}}}"}) for place in range(1, 40)}
    redis_client.config_resetstat()
    assert run({f"n{name}": _renamed(node) for name, node in nodes.items()}, "n39").result(WAIT_S) == 7
    assert redis_client.info("commandstats").get("cmdstat_lpush", {"calls": 0})["calls"] < 5


def _renamed(node: dict[str, Any]) -> dict[str, Any]:
    given = node["with"]["x"]
    return {**node, "with": {"x": given.replace("${", "${n") if isinstance(given, str) else given}}


@pytest.mark.parametrize(
    "fold", ["tests.integration.host_tools:summed", "tests.integration.stream_tools:total"]
)
def test_folds_of_coroutines_read_growing_streams(worker: Worker, fold: str) -> None:
    nodes = {
        "numbers": tool("async_numbers", with_={"n": 500}),
        "same": call("nothing", for_each="${numbers}", with_={"x": "${item}"}),
        "sum": {"tool": fold, "with": {"values": "${same}"}, "edges": {"same": "stream"}},
        "both": tool("both", with_={"a": "${same}", "b": "${sum}"}),
    }
    same, _sum = run(nodes, "both").result(WAIT_S)
    assert same == list(range(500))


def test_plain_functions_run_in_threads_beside_coroutines(worker: Worker, redis_client: Redis) -> None:
    held = fan_out("gated", 20, name="held")
    tools.await_told(redis_client, "held", 20)
    found = fan_out("thread", 30).result(WAIT_S)
    assert [number for number, _name in found] == list(range(30))
    assert {name for _number, name in found} == {"mosaic-blocking"}
    assert set(fan_out("loop_thread", 30).result(WAIT_S)) == {"mosaic-pool-loop"}
    tools.open_gate(redis_client, "held", 20)
    assert held.result(WAIT_S) == list(range(20))


def test_a_coroutine_after_a_plain_function_runs_on_the_loop(worker: Worker) -> None:
    nodes = {
        "plain": tool("one", module="tests.integration.run_tools"),
        "coroutine": call("loop_thread", with_={"x": "${plain}"}),
    }
    assert run(nodes, "coroutine").result(WAIT_S) == "mosaic-pool-loop"


def test_calls_travel_one_by_one_where_nothing_is_kept(hosts: Hosts) -> None:
    hosts.start(MOSAIC_CONTINUATION_CALLS="0", MOSAIC_BATCH_CALLS="1").wait_ready()
    assert fan_out("later", 150, pause_s=0.01).result(WAIT_S) == list(range(150))


def test_more_calls_than_slots_run_in_turn(hosts: Hosts) -> None:
    hosts.start(concurrency=3).wait_ready()
    assert fan_out("later", 100, pause_s=0.01).result(WAIT_S) == list(range(100))


# -- failures ----------------------------------------------------------------------------------------------------------


def test_failed_calls_are_tried_again(worker: Worker) -> None:
    options = {"retry": {"attempts": 3, "delay": 0.05}}
    started = fan_out("fails_at_first", 40, options=options)
    assert started.result(WAIT_S) == list(range(40))
    assert kinds(started)["retry"] == 40


@pytest.mark.parametrize(("rule", "value"), [("skip", None), ({"default": 5}, 5)])
def test_a_failed_call_may_be_harmless(worker: Worker, rule: Any, value: Any) -> None:
    assert fan_out("fails", 40, options={"on_failure": rule}).result(WAIT_S) == [value] * 40


def test_a_coroutine_ends_by_its_timeout(worker: Worker) -> None:
    nodes = {"never": tool("never", module="tests.integration.run_tools", timeout=0.2)}
    with pytest.raises(RunFailed, match=r"node 'never': CallTimeout: .* timeout of 0.2 s"):
        run(nodes, "never").result(WAIT_S)


def test_a_coroutine_that_cancels_itself_has_failed(worker: Worker) -> None:
    with pytest.raises(RunFailed, match=r"node 'own': ToolError: CancelledError: by itself"):
        run({"own": call("cancels_itself")}, "own").result(WAIT_S)


def test_a_coroutine_that_will_not_end_is_left_behind(hosts: Hosts) -> None:
    worker = hosts.start(GRACE_S="0.3").wait_ready()
    nodes = {"stubborn": tool("stubborn", module="tests.integration.run_tools", timeout=0.2)}
    with pytest.raises(RunFailed, match="CallTimeout"):
        run(nodes, "stubborn").result(WAIT_S)
    hosts.await_free(worker)
    endless = run({"stubborn": tool("stubborn", module="tests.integration.run_tools")}, "stubborn")
    await_claimed(endless, 1)
    endless.cancel()
    worker.wait_said("is over, or somebody else's")
    hosts.await_free(worker)
    worker.kill()  # it would wait for them as it ends


def test_a_call_that_blocks_the_loop_costs_its_process(hosts: Hosts) -> None:
    worker = hosts.start(BLOCKED_S="0.5", MOSAIC_LIVENESS_S="2").wait_ready()
    started = run({"blocks": call("blocks", with_={"seconds": 60})}, "blocks")
    assert worker.wait(WAIT_S) == 75
    worker.wait_said("a call blocks the event loop")
    hosts.start(MOSAIC_LIVENESS_S="2").wait_ready()
    assert started.result(WAIT_S) == "went on"


def await_claimed(started: Run, count: int) -> None:
    """Waits until so many calls were claimed."""
    for event in started.events(follow=True):
        count -= len(event.calls) if event is not None and event.kind == "claimed" else 0
        if count <= 0:
            return
    pytest.fail("the run has ended")


# -- cancelled, taken back, revoked ------------------------------------------------------------------------------------


def test_a_cancelled_run_frees_its_slots(hosts: Hosts) -> None:
    worker = hosts.start(concurrency=64).wait_ready()
    started = fan_out("opened", 500, name="open")
    tools.await_told(hosts.client, "open", 64)
    started.cancel()
    with pytest.raises(RunCancelled):
        started.result(WAIT_S)
    hosts.await_free(worker, within_s=5)
    assert hosts.counted("open") == 0
    assert hosts.counted("begun:open") == 64
    assert fan_out("nothing", 64).result(WAIT_S) == list(range(64))


def test_the_streams_of_a_cancelled_run_are_closed(hosts: Hosts, tmp_path: Path) -> None:
    worker = hosts.start(concurrency=50).wait_ready()
    model = recorded(tmp_path / "answer.jsonl", (0.0, '{"revenue": '), (60.0, "1}"))
    nodes = {"numbers": call("count", with_={"n": 200}), "asked": agent(model, for_each="${numbers}")}
    started = run(nodes, "asked")
    await_claimed(started, 1 + 50)
    started.cancel()
    hosts.await_free(worker, within_s=5)
    assert hosts.counted("streams") == 0


def test_a_claim_that_was_taken_back_is_not_run_on(hosts: Hosts, redis_client: Redis) -> None:
    worker = hosts.start().wait_ready()
    started = run({"held": call("tells_attempt", with_={"x": 1, "name": "held"})}, "held")
    tools.await_told(redis_client, "held", 1)
    (claimed,) = started.live_calls()
    Ledger(redis_client).take_back(started.id, [(claimed.call, claimed.fence)], holder=claimed.holder)
    hosts.await_free(worker, within_s=5)
    assert started.result(WAIT_S) == 1  # the sweeper publishes it again
    assert kinds(started)["done"] == 1


def test_a_revoked_call_fails_and_is_not_tried_again(hosts: Hosts, redis_client: Redis) -> None:
    worker = hosts.start().wait_ready()
    nodes = {"open": call("opened", with_={"x": 1, "name": "open"}, retry={"attempts": 5, "delay": 0.01})}
    other, started = fan_out("gated", 5, name="other"), run(nodes, "open")
    tools.await_told(redis_client, "open", 1)
    app.control.revoke(f"{started.id}:0", terminate=True)
    with pytest.raises(RunFailed, match=r"node 'open': CallRevoked: it was revoked"):
        started.result(WAIT_S)
    assert kinds(started)["retry"] == 0
    tools.open_gate(redis_client, "other", 5)
    assert other.result(WAIT_S) == list(range(5))
    hosts.await_free(worker)
    assert hosts.counted("open") == 0


def test_what_was_revoked_may_run_again(hosts: Hosts, redis_client: Redis) -> None:
    hosts.start().wait_ready()
    started = run({"held": call("tells_attempt", with_={"x": 1, "name": "held"})}, "held")
    tools.await_told(redis_client, "held", 1)
    app.control.revoke(f"{started.id}:0", terminate=True)
    with pytest.raises(RunFailed, match="CallRevoked"):
        started.result(WAIT_S)
    started.rerun("held")
    assert started.result(WAIT_S) == 1


# -- several workers ---------------------------------------------------------------------------------------------------


def test_two_workers_share_a_fan_out(hosts: Hosts) -> None:
    both = others(hosts, concurrency=20)
    pids = Counter(fan_out("pid", 200, pause_s=0.05).result(WAIT_S))
    assert set(pids) == {worker.pid for worker in both}
    assert min(pids.values()) > 20


@pytest.mark.parametrize("before", [0, 100])
def test_calls_that_wait_for_a_slot_are_handed_to_another_worker(
    hosts: Hosts, redis_client: Redis, before: int
) -> None:
    """Also those that it has at hand because the calls before were short."""
    first = hosts.start(concurrency=2).wait_ready()
    assert len(fan_out("nothing", before).result(WAIT_S)) == before
    started = fan_out("gated", 20, name="gated")
    tools.await_told(redis_client, "gated", 2)
    second = hosts.start(concurrency=40).wait_ready()
    places = Counter(int(line.split()[1]) for line in tools.await_told(redis_client, "gated", 20))
    assert places == {first.pid: 2, second.pid: 18}
    tools.open_gate(redis_client, "gated", 20)
    assert started.result(WAIT_S) == list(range(20))


def test_short_calls_are_at_hand_before_a_slot_is_free(hosts: Hosts) -> None:
    hosts.start(concurrency=4, MOSAIC_BATCH_CALLS="1").wait_ready()
    assert max(fan_out("at_hand", 100).result(WAIT_S)) > 4


def test_blocking_calls_that_wait_for_a_thread_are_handed_to_another_worker(
    hosts: Hosts, redis_client: Redis
) -> None:
    first = hosts.start(BLOCKING_PATIENCE_S="0.2", MOSAIC_LIVENESS_S="2").wait_ready()
    nodes = {
        "numbers": call("count", with_={"n": 12}),
        "each": call("held_in_thread", for_each="${numbers}", with_={"x": "${item}"}),
    }
    started = run(nodes, "each")
    tools.await_told(redis_client, "thread", 4)
    second = hosts.start(MOSAIC_LIVENESS_S="2").wait_ready()
    places = Counter(int(line.split()[1]) for line in tools.await_told(redis_client, "thread", 8))
    assert places == {first.pid: 4, second.pid: 4}
    tools.open_gate(redis_client, "thread", 12)
    assert started.result(WAIT_S) == list(range(12))


# -- what others see ---------------------------------------------------------------------------------------------------


def test_flower_sees_each_call_as_a_task(hosts: Hosts) -> None:
    hosts.start(args=("--task-events",)).wait_ready()
    seen: dict[str, list[str]] = {}
    with app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": lambda event: _note(seen, event)})
        capture = receiver.itercapture(limit=None, timeout=WAIT_S, wakeup=False)
        next(capture)
        started = fan_out("later", 5, pause_s=0.5)  # too few to be sent for their number
        ids = {f"{started.id}:1.{item}" for item in range(5)}
        while sum("task-succeeded" in seen.get(task, ()) for task in ids) < len(ids):
            next(capture)
    assert {tuple(seen[task]) for task in ids} == {("task-received", "task-started", "task-succeeded")}
    assert started.result(WAIT_S) == list(range(5))


def _note(seen: dict[str, list[str]], event: dict[str, Any]) -> None:
    if "uuid" in event:
        seen.setdefault(event["uuid"], []).append(event["type"])


# -- shutdowns ---------------------------------------------------------------------------------------------------------


def test_a_warm_shutdown_records_what_runs_and_hands_back_the_rest(hosts: Hosts, redis_client: Redis) -> None:
    first = hosts.start(concurrency=5).wait_ready()
    started = fan_out("gated", 20, name="gated")
    tools.await_told(redis_client, "gated", 5)
    first.signal(signal.SIGTERM)
    first.wait_said("host.drains")
    tools.open_gate(redis_client, "gated", 5)
    assert first.wait() == 0
    assert kinds(started)["done"] == 1 + 5
    assert redis_client.hlen("unacked") == 0
    hosts.start().wait_ready()
    tools.open_gate(redis_client, "gated", 15)
    assert started.result(WAIT_S) == list(range(20))
    assert kinds(started)["lost"] == 0


def test_a_cold_shutdown_hands_back_at_once(hosts: Hosts, redis_client: Redis) -> None:
    first = hosts.start().wait_ready()
    started = fan_out("tells_attempt", 20, name="held")
    tools.await_told(redis_client, "held", 20)
    first.signal(signal.SIGQUIT)
    first.wait()
    assert {call.state for call in started.live_calls()} == {"ready"}
    assert redis_client.hlen("unacked") == 0
    hosts.start().wait_ready()
    assert started.result(WAIT_S) == list(range(20))
    assert kinds(started)["lost"] == 0


def test_a_plain_function_does_not_keep_a_cold_shutdown_waiting(hosts: Hosts, redis_client: Redis) -> None:
    worker = hosts.start(MOSAIC_LIVENESS_S="2").wait_ready()
    started = run({"held": call("held_in_thread", with_={"x": 1})}, "held")
    tools.await_told(redis_client, "thread", 1)
    worker.signal(signal.SIGQUIT)
    worker.wait()
    hosts.start().wait_ready()
    tools.open_gate(redis_client, "thread", 2)
    assert started.result(WAIT_S) == 1


# -- a server that refuses --------------------------------------------------------------------------------------------


@pytest.fixture
def guest_url(redis_client: Redis, redis_url: str) -> Iterator[str]:
    """The server, as one of its users, `guest`."""
    redis_client.execute_command("ACL", "SETUSER", "guest", "on", ">secret", "~*", "&*", "+@all")
    yield redis_url.replace("://", "://guest:secret@", 1)
    redis_client.execute_command("ACL", "DELUSER", "guest")


def test_a_worker_that_is_denied_a_right_ends_and_its_calls_run_elsewhere(
    hosts: Hosts, redis_client: Redis, guest_url: str
) -> None:
    denied = hosts.start(MOSAIC_REDIS_URL=guest_url).wait_ready()
    started = [fan_out("gated", 3, name="gated") for _ in range(2)]
    tools.await_told(redis_client, "gated", 6)
    redis_client.execute_command("ACL", "SETUSER", "guest", "-hmget")
    tools.open_gate(redis_client, "gated", 6)
    assert denied.wait() == REFUSED_EXIT
    assert denied.log.count("worker.given_up") == 1
    assert "forbids what is needed" in denied.log
    tools.open_gate(redis_client, "gated", 6)
    hosts.start().wait_ready()
    assert [each.result(WAIT_S) for each in started] == [[0, 1, 2]] * 2


def test_a_run_whose_transition_can_never_pass_fails_and_the_others_go_on(
    workers: Workers, redis_client: Redis
) -> None:
    Hosts(workers, redis_client).start().wait_ready()
    broken, sound = (fan_out("gated", 2, name=name) for name in ("broken", "sound"))
    for name in ("broken", "sound"):
        tools.await_told(redis_client, name, 2)
    redis_client.set(f"mosaic:{{{broken.id}}}:out", "no hash")
    tools.open_gate(redis_client, "broken", 2)
    with pytest.raises(RunFailed, match="WRONGTYPE"):
        broken.result(WAIT_S)
    tools.open_gate(redis_client, "sound", 2)
    assert sound.result(WAIT_S) == [0, 1]


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_message_that_comes_again_while_its_calls_run_or_wait_counts_once(
    hosts: Hosts, redis_client: Redis
) -> None:
    started = fan_out("gated", 6, name="gated")
    worker = hosts.start(concurrency=3, MOSAIC_CONTINUATION_CALLS="0").wait_ready()
    tools.await_told(redis_client, "gated", 3)
    with app.producer_pool.acquire() as producer:
        for _ in range(3):
            app.send_task(
                "mosaic.call",
                (started.id, [f"1.{item}" for item in range(6)]),
                queue="mosaic.cpu",
                producer=producer,
            )
    tools.open_gate(redis_client, "gated", 6)
    assert started.result(WAIT_S) == list(range(6))
    assert len(tools.happened(redis_client, "gated")) == 6
    assert kinds(started)["done"] == 1 + 6 + 1
    hosts.await_free(worker)


@pytest.mark.parametrize("calls", [[], ["0", "0"], ["99"], ["nonsense", "0"], ["0.7"]])
def test_a_strange_message_costs_no_slot(hosts: Hosts, calls: list[str]) -> None:
    worker = hosts.start(concurrency=3).wait_ready()
    started = run({"later": call("later", with_={"x": 1, "pause_s": 0.2})}, "later")
    for run_id in (started.id, "nobody"):
        app.send_task("mosaic.call", (run_id, calls), queue="mosaic.cpu")
    assert started.result(WAIT_S) == 1
    hosts.await_free(worker)
    hosts.await_acknowledged()
