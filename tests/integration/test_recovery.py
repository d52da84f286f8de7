"""Who sweeps, and what the recovery of runs does on a real server."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from redis import Redis
from structlog.testing import capture_logs

from mosaic_queues import run_sizes
from mosaic_queues.connection import server_ms
from mosaic_queues.errors import PayloadError
from mosaic_queues.keys import Keys
from mosaic_queues.ledger import Ledger
from mosaic_queues.liveness import Liveness, join_liveness, live_processes
from mosaic_queues.openings import Opened
from mosaic_queues.queue_ages import QueueAges
from mosaic_queues.run_recovery import FORGET_AFTER_MS, OVERDUE_MS, Limits, RunRecovery
from mosaic_queues.run_sizes import RunSizes
from mosaic_queues.settings import Settings
from mosaic_queues.sweeper import Policy, Sweeper, Sweeping, start_sweeping
from mosaic_queues.transitions import Done, Group, LiveCall, RunStanding
from mosaic_tasks import Flow, submission
from mosaic_tasks.app import app
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.execution import bootsteps
from mosaic_tasks.execution import process as process_module
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.submission import open_run as submit_plan
from tests.integration import run_tools as tools
from tests.services import Workers

pytestmark = pytest.mark.integration
NIL = b"\x00\xc0"
QUEUE = "q"
WAIT_S = 10.0
DAY_S = 86_400.0
LIMITS = Limits(grace_s=0.05, max_run_s=DAY_S, max_run_bytes=10_000_000, plans_s=60.0)


@dataclass
class Host:
    """A process without a broker, that tells what it is asked for."""

    published: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    standings: list[RunStanding] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    ages: QueueAges = field(default_factory=QueueAges)
    swept: threading.Event = field(default_factory=threading.Event)

    def publish(self, run_id: str, groups: Sequence[Group]) -> None:
        self.published += [call for _, calls in groups for call in calls]
        self.swept.set()

    def priority(self, run_id: str) -> int:
        return 0

    def oldest_message(self, queue: str, priority: int) -> float | None:
        return None

    def early(self, delayed: Mapping[str, Sequence[LiveCall]]) -> Mapping[str, Sequence[str]]:
        return {}

    def is_stranded(self, run_id: str, call: LiveCall) -> bool:
        return False

    def deadline_s(self, run_id: str) -> float | None:
        return None

    def timeout_s(self, run_id: str, call: str) -> float | None:
        return 1.0 if call == "timed" else None

    def node_of(self, run_id: str, call: str) -> str:
        return f"node {call!r}"

    def run_ended(self, run_id: str, standing: RunStanding) -> None:
        self.standings.append(standing)

    def over(self, run_ids: Sequence[str]) -> None:
        self.ended += run_ids

    def calls_lost(self, run_id: str, calls: Sequence[LiveCall], now_ms: int) -> None:
        self.lost += [call.call for call in calls]

    def round_over(self, ages: QueueAges, mended: int) -> None:
        self.ages = ages

    def expire(self) -> None:
        pass


@pytest.fixture
def ledger(redis_client: Redis) -> Ledger:
    return Ledger(redis_client)


def recovery(ledger: Ledger, host: Host, **limits: Any) -> RunRecovery:
    return RunRecovery(ledger, host=host, limits=LIMITS._replace(**limits))


def open_run(ledger: Ledger, run_id: str, *calls: str) -> str:
    ledger.list_run(run_id, now_ms=server_ms(ledger.client), keep_s=60.0)
    ledger.open_run(
        run_id, plan="p", name="n", inputs=NIL, roots=[(QUEUE, calls)], retention_s=60.0, max_run_s=60.0
    )
    return run_id


def listed(ledger: Ledger) -> list[str]:
    return [run_id for run_id, _ in ledger.listed_runs()]


# -- who sweeps ----------------------------------------------------------------------------------------------


class Rounds:
    """A policy that tells of its rounds."""

    def __init__(self, client: Redis, lock: str = "mosaic:test:lock") -> None:
        self.client, self.lock = client, lock
        self.threads: set[threading.Thread] = set()
        self.swept = threading.Event()

    def sweep(self) -> None:
        self.threads.add(threading.current_thread())
        self.swept.set()


def sweep(policy: Policy) -> Sweeping:
    return start_sweeping(policy, namespace="mosaic", pause_s=0.01)


def test_a_process_sweeps_a_server_from_one_thread_until_the_last_policy_ends(redis_url: str) -> None:
    with Redis.from_url(redis_url) as one, Redis.from_url(redis_url) as another:
        first, second = Rounds(one, "mosaic:test:a"), Rounds(another, "mosaic:test:b")
        sweeping = [sweep(first), sweep(second)]
        assert first.swept.wait(WAIT_S)
        assert second.swept.wait(WAIT_S)
        assert first.threads == second.threads
        sweeping[0].stop()
        second.swept.clear()
        assert second.swept.wait(WAIT_S)
        sweeping[1].stop()
        (thread,) = first.threads
        assert not thread.is_alive()
        assert one.keys("mosaic:test:*") == []


def test_one_process_leads_until_it_stops(redis_client: Redis) -> None:
    """Two sweepers stand for two processes."""
    first, second, other = (
        Rounds(redis_client),
        Rounds(redis_client),
        Rounds(redis_client, "mosaic:test:other"),
    )
    leader, follower = Sweeper(pause_s=0.01), Sweeper(pause_s=0.01)
    leader.add(first)
    assert first.swept.wait(WAIT_S)
    follower.add(second)
    follower.add(other)
    assert other.swept.wait(WAIT_S)  # its turn is after that of the second policy
    assert not second.swept.is_set()
    leader.remove(first)
    assert second.swept.wait(WAIT_S)
    follower.remove(second)
    follower.remove(other)


def test_a_sweeper_goes_on_after_anything(ledger: Ledger) -> None:
    """An upkeep that fails must not end the thread that mends runs."""
    failed = threading.Event()

    class Failing(Host):
        def expire(self) -> None:
            self.swept.clear()
            failed.set()
            raise PayloadError("the object store does not answer")

    host = Failing()
    open_run(ledger, "run", "0")
    sweeping = sweep(recovery(ledger, host))
    try:
        assert failed.wait(WAIT_S)
        assert host.swept.wait(WAIT_S)
    finally:
        sweeping.stop()


def test_a_process_is_alive_once_until_the_last_of_its_parts_leaves(redis_client: Redis) -> None:
    keys, beats = Keys("mosaic"), threading.Event()
    owner = Liveness(redis_client, keys, expiry_s=0.6, queues=["q"], slots=2, on_beat=beats.set)
    owner.start()
    joined = join_liveness(redis_client, keys, expiry_s=0.6)
    assert joined.name == owner.name
    assert [process.name for process in live_processes(redis_client, keys)] == [owner.name]
    assert beats.wait(WAIT_S)
    owner.stop()
    assert [process.name for process in live_processes(redis_client, keys)] == [owner.name]
    joined.leave()
    assert live_processes(redis_client, keys) == []


def test_a_process_is_alive_when_only_its_chords_say_so(redis_client: Redis) -> None:
    keys = Keys("mosaic")
    first = join_liveness(redis_client, keys, expiry_s=5.0)
    first.leave()
    second = join_liveness(redis_client, keys, expiry_s=5.0)
    assert [process.name for process in live_processes(redis_client, keys)] == [second.name]
    assert first.name != second.name
    second.leave()


@pytest.mark.usefixtures("mosaic_process")
def test_a_worker_with_our_result_backend_is_one_process(workers: Workers, redis_client: Redis) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
    (process,) = live_processes(redis_client, Keys("mosaic"))
    assert process.queues == ("mosaic.cpu",)


# -- the index of runs ---------------------------------------------------------------------------------------


def test_a_run_is_listed_before_it_is_open_and_the_sweeper_waits_for_it(ledger: Ledger) -> None:
    host = Host()
    ledger.list_run("slow", now_ms=server_ms(ledger.client), keep_s=60.0)
    ledger.list_run("never", now_ms=server_ms(ledger.client) - FORGET_AFTER_MS - 1_000, keep_s=60.0)
    recovery(ledger, host).sweep()
    assert listed(ledger) == ["slow"]
    assert host.ended == ["never"]


def test_a_run_that_is_over_leaves_the_index(ledger: Ledger) -> None:
    host = Host()
    open_run(ledger, "over", "0")
    open_run(ledger, "running", "0")
    ledger.end_run("over", "cancelled", "")
    recovery(ledger, host).sweep()
    assert (listed(ledger), host.ended) == (["running"], ["over"])


def one_call() -> Any:
    flow = Flow("one")
    flow.output(flow.tool(tools.one))
    return compile_workflow(flow.build())


@pytest.fixture
def late_client(mosaic_process: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock is an hour behind the server's."""
    monkeypatch.setattr(process_module, "time", SimpleNamespace(time=lambda: time.time() - 3_600.0))


@pytest.mark.usefixtures("late_client")
def test_a_client_lists_its_run_by_the_server_s_clock(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = process_for(app)
    host = Host()

    def sweep_before(run_id: str, *, entered_ms: int, **options: Any) -> Opened:
        """Between the commands of its trip."""
        ledger.list_run(run_id, now_ms=entered_ms, keep_s=60)
        recovery(ledger, host).sweep()
        assert listed(ledger) == [run_id]
        return ledger.open_run(run_id, **options)

    monkeypatch.setattr(process.ledger, "open_run", sweep_before)
    run_id = submit_plan(process, one_call(), {}).run_id
    assert listed(ledger) == [run_id]


@pytest.mark.usefixtures("mosaic_process")
def test_a_run_whose_opening_took_too_long_is_listed_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = process_for(app)

    def open_slowly(run_id: str, *, entered_ms: int, **options: Any) -> Opened:
        """Another one's sweeper has taken it from the index before it was open."""
        del entered_ms
        return ledger.open_run(run_id, **options)

    monkeypatch.setattr(submission, "SLOW_S", 0.0)
    monkeypatch.setattr(process.ledger, "open_run", open_slowly)
    run_id = submit_plan(process, one_call(), {}).run_id
    assert listed(ledger) == [run_id]


def test_the_index_lives_while_there_are_runs(ledger: Ledger) -> None:
    open_run(ledger, "run", "0")
    recovery(ledger, Host(), plans_s=3_600.0).sweep()
    assert ledger.client.ttl(ledger.keys.runs) > 60


# -- deadlines -----------------------------------------------------------------------------------------------


def claimed_since(ledger: Ledger, run_id: str, call: str, *, ms: int) -> None:
    """Claims a call and has it claimed long ago."""
    assert ledger.advance(run_id, holder="alive", claim=[call]).claimed
    key = ledger.keys.run(run_id)[1]
    state = msgspec.msgpack.decode(ledger.client.hget(key, call))
    state[5] = server_ms(ledger.client) - ms
    ledger.client.hset(key, call, msgspec.msgpack.encode(state))


@pytest.fixture
def alive(redis_client: Redis) -> Iterator[None]:
    """A process that lives, but does not look after its calls."""
    redis_client.zadd("mosaic:holders", {"alive": 1})
    redis_client.set(
        "mosaic:holder:alive", '{"name": "alive", "host": "h", "pid": 1, "started_ms": 1}', ex=60
    )
    yield
    redis_client.delete("mosaic:holders", "mosaic:holder:alive")


@pytest.mark.usefixtures("alive")
def test_an_overdue_call_of_a_live_process_is_issued_again_and_its_late_result_refused(
    ledger: Ledger,
) -> None:
    host = Host()
    open_run(ledger, "run", "timed", "free")
    for call in ("timed", "free"):
        claimed_since(ledger, "run", call, ms=OVERDUE_MS + 5_000)
    assert recovery(ledger, host).sweep() == 1
    assert host.published == ["timed"]
    late = Done("timed", 1, NIL, "done", ())
    assert ledger.advance("run", holder="alive", done=[late]).stale == ["timed"]


def fan_out() -> Any:
    flow = Flow("fan")
    numbers = flow.tool(tools.count, n=2)
    flow.output(flow.tool(tools.echo, for_each=numbers, value="${item}", timeout=5, id="each"))
    return compile_workflow(flow.build())


@pytest.mark.usefixtures("mosaic_process")
def test_items_have_their_node_s_timeout_but_their_collection_has_none() -> None:
    process = process_for(app)
    run_id = submit_plan(process, fan_out(), {}).run_id
    host = bootsteps.Recovering(process)
    assert [host.timeout_s(run_id, call) for call in ("0", "1", "1.1", "1.c")] == [None, 5.0, 5.0, None]
    assert [host.node_of(run_id, call) for call in ("in", "1")] == ["the workflow", "node 'each'"]


def test_a_run_that_is_too_old_fails_and_says_why(ledger: Ledger) -> None:
    host = Host()
    open_run(ledger, "old", "0")
    open_run(ledger, "young", "0")
    started_ms = server_ms(ledger.client) - int(DAY_S * 1000) - 1_000
    ledger.client.hset(ledger.keys.run("old")[0], "created_ms", started_ms)
    swept = recovery(ledger, host)
    swept.sweep()
    assert ledger.run("old").status == "failed"
    assert ledger.run("old").error.startswith("not finished within MOSAIC_MAX_RUN_S=86400;")
    assert ledger.run("young").status == "running"
    swept.sweep()
    assert (listed(ledger), host.ended) == (["young"], ["old"])


class Orderly(Host):
    """Puts in order what runs leave behind, if it is not the run `bad`."""

    def over(self, run_ids: Sequence[str]) -> None:
        super().over([" ".join(run_ids)])
        if "bad" in run_ids:
            raise KeyError("what it left behind cannot be read")


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (["a", "c"], ["a c"]),
        (["a", "bad", "c"], ["a bad c", "a", "bad", "c"]),
        (["bad"], ["bad"]),
    ],
    ids=["together", "one by one", "one"],
)
def test_runs_that_ended_are_put_in_order_together_and_once(
    ledger: Ledger, ended: list[str], told: list[str]
) -> None:
    host = Orderly()
    for run_id in ended:
        open_run(ledger, run_id, "0")
        ledger.end_run(run_id, "failed", "of itself")
    open_run(ledger, "running", "0")
    with capture_logs() as logs:
        for _ in range(2):
            recovery(ledger, host).sweep()
    assert (listed(ledger), host.ended) == (["running"], told)
    assert [entry["run"] for entry in logs if "run" in entry] == [run for run in ended if run == "bad"]


def test_a_run_that_cannot_be_mended_does_not_keep_others_from_it(ledger: Ledger) -> None:
    class Choosy(Host):
        def publish(self, run_id: str, groups: Sequence[Group]) -> None:
            if run_id == "first":
                raise KeyError("its plan is gone")
            super().publish(run_id, groups)

    host = Choosy()
    open_run(ledger, "first", "0")
    open_run(ledger, "second", "1")
    for run_id, call in (("first", "0"), ("second", "1")):
        assert ledger.advance(run_id, holder="dead", claim=[call]).claimed
    recovery(ledger, host).sweep()
    assert host.published == ["1"]


def test_a_call_whose_message_nobody_takes_is_sent_elsewhere(ledger: Ledger) -> None:
    class Deserted(Host):
        def oldest_message(self, queue: str, priority: int) -> float | None:
            return 0.0  # its own, as far as can be told

        def is_stranded(self, run_id: str, call: LiveCall) -> bool:
            return call.call == "0"

    host = Deserted()
    open_run(ledger, "run", "0", "1")
    recovery(ledger, host, grace_s=0.0).sweep()
    assert host.published == ["0"]


# -- sizes ---------------------------------------------------------------------------------------------------


def put_out(ledger: Ledger, run_id: str, call: str, size: int) -> None:
    ledger.client.hset(ledger.keys.run(run_id)[2], call, b"\x00" + b"x" * size)


def test_a_run_that_takes_too_much_of_the_server_fails_and_names_the_largest_node(ledger: Ledger) -> None:
    open_run(ledger, "large", "0")
    open_run(ledger, "small", "0")
    for call, size in (("3.0", 30_000), ("3.1", 30_000), ("4", 40_000)):
        put_out(ledger, "large", call, size)
    recovery(ledger, Host(), max_run_bytes=100_000).sweep()
    error = ledger.run("large").error
    assert error.startswith("the run takes 10")
    assert "MOSAIC_MAX_RUN_BYTES=100000; node '3' put 60002 of it there; " in error
    assert ledger.run("small").status == "running"


def test_the_chunks_of_a_run_count(ledger: Ledger) -> None:
    open_run(ledger, "large", "0")
    ledger.client.hset(ledger.keys.run("large")[6], "s:3", 1)
    ledger.client.xadd(ledger.keys.stream("large", "3"), {"d": b"x" * 100_000})
    recovery(ledger, Host(), max_run_bytes=100_000).sweep()
    assert ledger.run("large").status == "failed"
    ledger.client.delete(ledger.keys.run("large")[6], ledger.keys.stream("large", "3"))


class Overestimated(RunSizes):
    """The server estimates ten times too much, as when it samples the few large values among many small ones."""

    counted = 0

    def _measure(self, run_ids: Sequence[str], samples: int) -> Counter[str]:
        self.counted += len(run_ids) * (samples == 0)
        factor = 10 if samples else 1
        return Counter({run: factor * size for run, size in super()._measure(run_ids, samples).items()})


def test_a_run_is_counted_before_it_fails_for_an_estimate_and_again_when_it_grows(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_sizes, "MEASURE_EVERY_S", 0.0)
    sizes = Overestimated(ledger, max_bytes=100_000)
    open_run(ledger, "run", "0")
    put_out(ledger, "run", "1", 50_000)
    assert [sizes.beyond(["run"]), sizes.beyond(["run"])] == [{}, {}]
    assert sizes.counted == 1
    put_out(ledger, "run", "2", 60_000)
    assert list(sizes.beyond(["run"])) == ["run"]
    assert sizes.counted == 2


def test_a_server_that_tells_no_sizes_is_asked_once(
    ledger: Ledger, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_sizes, "MEASURE_EVERY_S", 0.0)
    open_run(ledger, "large", "0")
    put_out(ledger, "large", "1", 200_000)
    rights = {"keys": ["*"], "categories": ["+@all"], "commands": ["-memory"]}
    ledger.client.acl_setuser("nosy", enabled=True, nopass=True, **rights)
    try:
        with Redis.from_url(redis_url, username="nosy", password="any") as client, capture_logs() as logs:
            swept = recovery(Ledger(client), Host(), max_run_bytes=100_000)
            swept.sweep()
            swept.sweep()
    finally:
        ledger.client.acl_deluser("nosy")
    assert [entry["event"] for entry in logs] == ["sweeper.unmeasured"]
    assert ledger.run("large").status == "running"


def test_a_run_whose_opening_was_broken_off_is_ended_and_keeps_no_other_from_recovery(
    ledger: Ledger, redis_client: Redis
) -> None:
    """As by a server that refuses one of the commands of the opening's script."""
    key = ledger.keys.run("torn")[0]
    redis_client.hset(
        key, mapping={"status": "running", "plan": "p", "name": "n", "retention_ms": 1000, "error": ""}
    )
    redis_client.pexpire(key, 60_000)
    ledger.list_run("torn", now_ms=server_ms(redis_client), keep_s=60)
    recovery(ledger, Host()).sweep()
    assert ledger.statuses(["torn"]) == ["failed"]
    assert redis_client.pttl(key) > 0
