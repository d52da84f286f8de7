"""Processes are killed, messages lost and doubled, the server restarted: runs end as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from mosaic_queues.connection import connect, urls_of
from mosaic_queues.errors import RunFailed, ServerUnavailable
from mosaic_queues.events import Event, follow_events
from mosaic_queues.keys import Keys
from mosaic_queues.server import EmbeddedServer
from mosaic_tasks import Flow, Run, Workflow, submit
from mosaic_tasks.definition.compiling import compile_workflow
from tests.integration import run_tools as tools
from tests.services import Worker, Workers

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
APP = "mosaic_tasks.app"
QUEUES = ["mosaic.cpu"]
LIVENESS_S = 2.0
QUICK = {"MOSAIC_LIVENESS_S": str(LIVENESS_S), "MOSAIC_OUTBOX_GRACE_S": "0.5", "MOSAIC_SWEEP_S": "0.2"}


def fan_out(items: int, directory: Path, pause_s: float = 0.05) -> Workflow:
    flow = Flow("fan")
    numbers = flow.tool(tools.count, n=items)
    each = flow.tool(
        tools.mark_and_pause,
        for_each=numbers,
        x="${item}",
        directory=str(directory),
        pause_s=pause_s,
        id="each",
    )
    flow.output(flow.tool(tools.total, values=each))
    return flow.build()


def chain(length: int) -> Workflow:
    flow = Flow("chain")
    node = flow.tool(tools.double, x=1)
    for _ in range(length):
        node = flow.tool(tools.echo, value=node)
    flow.output(node)
    return flow.build()


def one(function: Any, **arguments: Any) -> Workflow:
    flow = Flow("one")
    flow.output(flow.tool(function, **arguments))
    return flow.build()


def await_event(run: Run, kind: str, *, count: int = 1) -> None:
    find_event(run.events(follow=True), kind, count=count)


def find_event(events: Iterable[Event | None], kind: str, *, count: int = 1) -> None:
    """Reads on until so many calls met such an event."""
    for event in events:
        if event is not None and event.kind == kind:
            count -= max(1, len(event.calls))
            if count <= 0:
                return
    pytest.fail(f"the run ended without {count} more of {kind!r}")


def check_recorded_once(run: Run) -> None:
    """The invariant of every run that is over: each call was recorded once, and nothing of it lives."""
    recorded = Counter(
        call for event in run.events() if event.kind in ("done", "skipped") for call in event.calls
    )
    assert set(recorded.values()) <= {1}, recorded
    assert run.live_calls() == []


def two_workers(workers: Workers, **options: Any) -> tuple[Worker, Worker]:
    first = workers.start(APP, QUEUES, env=QUICK, **options)
    second = workers.start(APP, QUEUES, env=QUICK, **options)
    return first.wait_ready(), second.wait_ready()


def executed(directory: Path) -> Counter[int]:
    """How often each item ran."""
    return Counter(int(path.name.partition("-")[0]) for path in directory.glob("*-*"))


def test_a_worker_killed_in_the_middle_costs_what_it_ran_and_no_more(
    workers: Workers, tmp_path: Path
) -> None:
    first, _second = two_workers(workers)
    run = submit(fan_out(60, tmp_path))
    await_event(run, "done", count=8)
    first.kill()
    assert run.result(timeout_s=60) == sum(range(60))
    check_recorded_once(run)
    assert executed(tmp_path).total() <= 60 + 2


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_call_whose_process_died_runs_again(workers: Workers, tmp_path: Path, pool: Any) -> None:
    two_workers(workers, pool=pool)
    run = submit(one(tools.die_once, path=str(tmp_path / "died")))
    assert run.result(timeout_s=40) == "alive"
    assert [event.kind for event in run.events()].count("lost") == 1
    check_recorded_once(run)


def test_a_call_that_kills_every_process_fails_after_three(workers: Workers) -> None:
    workers.start(APP, QUEUES, env=QUICK, pool="prefork", concurrency=1).wait_ready()
    with pytest.raises(RunFailed, match=r"node 'die': CallLost: the process that ran it died 3 times"):
        submit(one(tools.die)).result(timeout_s=60)
    assert submit(one(tools.one)).result(timeout_s=40) == 1


@pytest.mark.parametrize(
    "place", ["after_claim", "before_record", "after_record", "before_publish_chord", "after_expand"]
)
def test_a_worker_may_die_at_any_step_of_a_fan_out(workers: Workers, tmp_path: Path, place: str) -> None:
    flag = tmp_path / "killed"
    plain = {**QUICK, "MOSAIC_CONTINUATION_CALLS": "0"}
    killing = {**plain, "KILL_AT": place, "KILL_FLAG": str(flag)}
    doomed = workers.start(APP, QUEUES, env=killing, args=["--include", "tests.chaos.killing"]).wait_ready()
    run = submit(fan_out(12, tmp_path))
    assert doomed.wait(timeout_s=20) == -signal.SIGKILL
    workers.start(APP, QUEUES, env=plain).wait_ready()
    assert run.result(timeout_s=40) == sum(range(12))
    check_recorded_once(run)


@pytest.mark.parametrize("place", ["after_claim", "before_record", "after_record", "before_publish"])
def test_a_worker_may_die_at_any_step_of_a_chain(workers: Workers, tmp_path: Path, place: str) -> None:
    flag = tmp_path / "killed"
    plain = {**QUICK, "MOSAIC_CONTINUATION_CALLS": "0"}
    killing = {**plain, "KILL_AT": place, "KILL_FLAG": str(flag)}
    doomed = workers.start(APP, QUEUES, env=killing, args=["--include", "tests.chaos.killing"]).wait_ready()
    run = submit(chain(5))
    assert doomed.wait(timeout_s=20) == -signal.SIGKILL
    workers.start(APP, QUEUES, env=plain).wait_ready()
    assert run.result(timeout_s=40) == 2
    check_recorded_once(run)


@pytest.mark.parametrize(
    ("place", "budget"),
    [
        ("lose_claim", "0"),
        ("lose_claim", "64"),
        ("lose_record", "0"),
        ("lose_record", "64"),
        ("lose_expand", "0"),
        ("lose_expand", "64"),
        ("lose_hand_back", "64"),
    ],
)
def test_an_answer_of_the_server_may_be_lost(
    workers: Workers, tmp_path: Path, place: str, budget: str
) -> None:
    losing = {**QUICK, "MOSAIC_CONTINUATION_CALLS": budget, "KILL_AT": place}
    losing["KILL_FLAG"] = str(tmp_path / "lost")
    for _ in range(2):
        workers.start(APP, QUEUES, env=losing, args=["--include", "tests.chaos.killing"]).wait_ready()
    run = submit(fan_out(30, tmp_path, pause_s=0.02))
    assert run.result(timeout_s=40) == sum(range(30))
    check_recorded_once(run)
    assert (tmp_path / "lost").exists()


@pytest.mark.parametrize("place", ["lose_claim", "lose_connection"])
def test_what_one_thread_lets_go_of_the_other_threads_keep(
    workers: Workers, tmp_path: Path, place: str
) -> None:
    """Claims are made by a part of a process: an answer lost in one thread costs no call of another.

    Where that thread's connection stays away, a later beat of the process hands back for it.
    """
    flow = Flow("threads")
    held = [flow.tool(tools.hold, x=x, directory=str(tmp_path)) for x in range(tools.HELD)]
    freed = flow.tool(tools.free, after=[flow.tool(tools.meet)], id="freed")
    flow.output(flow.tool(tools.total, values=held, after=[freed]))
    workflow = flow.build()
    call = [node.name for node in compile_workflow(workflow).nodes].index("freed")
    losing = {**QUICK, "KILL_AT": place, "KILL_CALL": str(call), "KILL_FLAG": str(tmp_path / "lost")}
    options: dict[str, Any] = {"env": losing, "args": ["--include", "tests.chaos.killing"]}
    workers.start(APP, QUEUES, pool="threads", concurrency=tools.HELD + 4, **options).wait_ready()
    run = submit(workflow)
    assert run.result(timeout_s=60) == sum(range(tools.HELD))
    assert (tmp_path / "lost").exists()
    assert executed(tmp_path) == dict.fromkeys(range(tools.HELD), 1)
    assert [event.kind for event in run.events()].count("lost") == 0
    check_recorded_once(run)


def test_a_client_that_dies_after_opening_a_run_is_finished_by_the_workers(
    workers: Workers, tmp_path: Path
) -> None:
    two_workers(workers)
    code = (
        "import tests.chaos.killing\nfrom mosaic_tasks import Flow, submit\n"
        "flow = Flow('left'); flow.output(flow.tool('tests.integration.run_tools:double', x=21))\n"
        "submit(flow.build(), key='left')\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "KILL_AT": "after_open",
        "KILL_FLAG": str(tmp_path / "killed"),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=Path.cwd())
    assert done.returncode == -signal.SIGKILL
    flow = Flow("left")
    flow.output(flow.tool(tools.double, x=21))
    assert submit(flow.build(), key="left").result(timeout_s=30) == 42


def test_a_lost_message_is_sent_again(workers: Workers, redis_client: Redis) -> None:
    run = submit(one(tools.one))
    assert redis_client.delete("mosaic.cpu") == 1
    two_workers(workers)
    assert run.result(timeout_s=30) == 1


def test_a_message_delivered_twice_counts_once(workers: Workers, redis_client: Redis, tmp_path: Path) -> None:
    run = submit(one(tools.mark_and_pause, x=3, directory=str(tmp_path), pause_s=0.2))
    (message,) = redis_client.lrange("mosaic.cpu", 0, -1)
    redis_client.lpush("mosaic.cpu", message, message)
    two_workers(workers)
    assert run.result(timeout_s=30) == 3
    assert submit(one(tools.one)).result(timeout_s=30) == 1
    assert len(list(tmp_path.glob("3-*"))) == 1
    check_recorded_once(run)


def stopped_and_other(workers: Sequence[Worker], marker: Path) -> tuple[Worker, Worker]:
    """The worker that `stop_once` stopped, and the other."""
    stopped = int(marker.read_text())
    first, second = workers
    return (first, second) if first.pid == stopped else (second, first)


def test_a_process_that_wakes_up_late_is_refused(workers: Workers, tmp_path: Path) -> None:
    """By its own watch, which sees that the claim is lost, or by the ledger: whoever wakes up first."""
    both = two_workers(workers)
    os.mkfifo(tmp_path / "end")
    flow = Flow("late")
    found = flow.tool(tools.stop_once, path=str(tmp_path / "stopped"), id="found")
    flow.output(flow.tool(tools.read, path=str(tmp_path / "end"), after=[found]))
    run = submit(flow.build())
    await_event(run, "lost")
    sleeper, other = stopped_and_other(both, tmp_path / "stopped")
    await_event(run, "done")
    for number in (signal.SIGTERM, signal.SIGCONT):
        sleeper.signal(number)
    assert sleeper.wait() == 0
    (tmp_path / "end").write_text("the end")
    assert run.result(timeout_s=30) == "the end"
    assert run.node_output("found") == other.pid
    check_recorded_once(run)
    assert [event.kind for event in run.events()].count("lost") == 1


def test_a_refused_value_is_read_by_nobody(workers: Workers, tmp_path: Path) -> None:
    """Not even in the process whose result was refused."""
    both = two_workers(workers)
    flow = Flow("fenced")
    found = flow.tool(tools.stop_once, path=str(tmp_path / "stopped"))
    each = flow.tool(
        tools.mark_and_pause,
        for_each=flow.tool(tools.count, n=40, after=[found]),
        x=found,
        directory=str(tmp_path),
        pause_s=0.02,
        id="each",
    )
    flow.output(each)
    run = submit(flow.build())
    await_event(run, "lost")
    sleeper, other = stopped_and_other(both, tmp_path / "stopped")
    await_event(run, "expanded")
    sleeper.signal(signal.SIGCONT)
    assert set(run.result(timeout_s=40)) == {other.pid}
    check_recorded_once(run)


def test_a_worker_told_to_stop_finishes_or_hands_back(workers: Workers, tmp_path: Path) -> None:
    first, _second = two_workers(workers)
    run = submit(fan_out(40, tmp_path))
    await_event(run, "done", count=4)
    first.signal(signal.SIGTERM)
    assert first.wait(timeout_s=20) == 0
    assert run.result(timeout_s=30) == sum(range(40))
    assert [event.kind for event in run.events()].count("lost") == 0
    assert len(list(tmp_path.glob("*-*"))) == 40


def test_a_tool_that_resists_its_timeout_costs_its_process(workers: Workers) -> None:
    worker = workers.start(APP, QUEUES, env=QUICK, pool="prefork", concurrency=1).wait_ready()
    before = worker.children
    flow = Flow("stuck")
    flow.output(flow.tool(tools.hang_for_good, timeout=0.3))
    with pytest.raises(RunFailed, match="CallTimeout"):
        submit(flow.build()).result(timeout_s=40)
    assert submit(one(tools.one)).result(timeout_s=40) == 1
    assert worker.children != before


def python_environment(**more: str) -> dict[str, str]:
    """The environment of a client in a process of its own."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path])), **more}


SUBMIT = (
    "from mosaic_tasks import Flow, submit\n"
    "flow = Flow('x'); flow.output(flow.tool('tests.integration.run_tools:double', x=1))\n"
    "submit(flow.build())\n"
)


@pytest.mark.parametrize(
    "arguments",
    [["-c", SUBMIT], ["-m", "celery", "-A", APP, "worker", "--pool", "solo"]],
    ids=["client", "worker"],
)
def test_a_server_that_is_not_there_ends_who_needs_it(tmp_path: Path, arguments: list[str]) -> None:
    environment = python_environment(MOSAIC_REDIS_URL=f"unix://{tmp_path}/nobody.sock")
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert ServerUnavailable.__name__ in done.stderr
    assert "nobody.sock?db=0' does not answer" in done.stderr
    assert "start it, correct MOSAIC_REDIS_URL" in done.stderr


CLIENT = """
import sys
from pathlib import Path
from mosaic_tasks import submit
from tests.chaos.test_faults import fan_out
run = submit(fan_out(60, Path(sys.argv[1])))
print(run.id, flush=True)
print(run.result(timeout_s=60))
"""


def test_a_server_killed_in_the_middle_comes_back_and_the_run_ends(tmp_path: Path) -> None:
    """The embedded server: restarted by its supervisor, its data in the append-only file. Nobody else ends."""
    with EmbeddedServer(tmp_path / "home") as server, connect(server.redis_url) as client:
        with Workers(urls_of(server.redis_url), tmp_path) as started:
            both = two_workers(started)
            environment = python_environment(**QUICK, MOSAIC_REDIS_URL=server.redis_url)
            command = [sys.executable, "-c", CLIENT, str(tmp_path)]
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as submitter:
                assert submitter.stdout is not None
                run_id = submitter.stdout.readline().strip()
                find_event(follow_events(client, Keys("mosaic"), run_id), "done", count=10)
                server_process(server).kill()
                answer, _ = submitter.communicate(timeout=70)
            assert (submitter.returncode, answer.strip()) == (0, str(sum(range(60))))
            assert [worker.returncode for worker in both] == [None, None]
            for worker in both:
                worker.signal(signal.SIGTERM)
            assert [worker.wait() for worker in both] == [0, 0]
        server.stop(wait_s=15)


def server_process(server: EmbeddedServer) -> psutil.Process:
    """The process of the embedded server, not its supervisor."""
    with connect(server.redis_url) as client:
        return psutil.Process(client.info("server")["process_id"])
