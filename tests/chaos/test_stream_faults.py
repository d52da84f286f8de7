"""Processes that stream are killed, and the server is restarted: what comes out is as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from mosaic_queues.connection import connect, urls_of
from mosaic_queues.keys import Keys
from mosaic_queues.server import EmbeddedServer
from mosaic_tasks import Run, Workflow, submit
from tests.chaos.test_faults import (
    APP,
    QUEUES,
    QUICK,
    await_event,
    python_environment,
    server_process,
    two_workers,
)
from tests.integration import stream_tools as tools
from tests.services import READY_S, Workers

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
SIZE = 300
PLACES = [
    "before_chunks",
    "after_chunks",
    "before_commit",
    "after_commit",
    "after_emission",
    "before_grow",
    "after_grow",
    "before_seal",
    "after_seal",
    "after_claim",
    "before_record",
    "after_record",
]


def chain(producer: str, **arguments: Any) -> Workflow:
    """Producer, fold, growing fan-out, and a fold over that."""

    def tool(name: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        return {"tool": f"tests.integration.stream_tools:{name}", "with": arguments, **options}

    nodes = {
        "numbers": tool(producer, arguments),
        "totals": tool("totals", {"values": "${numbers}"}, edges={"numbers": "stream"}),
        "doubled": tool("double", {"x": "${item}"}, for_each="${totals}"),
        "total": tool("total", {"values": "${doubled}"}, edges={"doubled": "stream"}),
        "both": tool("both", {"a": "${doubled}", "b": "${total}"}),
    }
    defaults = {
        "retry": {"attempts": 20, "delay": 0.1, "factor": 1}
    }  # the tools tell the server what they do
    return Workflow.from_data({"name": "chain", "nodes": nodes, "output": "both", "defaults": defaults})


def expected(numbers: list[int]) -> list[Any]:
    """The output of a run in which nothing overlaps and nobody dies."""
    doubled = [2 * sum(numbers[: place + 1]) for place in range(len(numbers))]
    return [doubled, sum(doubled)]


def check_closed_once(run: Run) -> None:
    """Items may be undone and done again; what closes a node happens once, and nothing lives on."""
    ended = Counter(call for event in run.events() if event.kind == "done" for call in event.calls)
    nodes = {
        call: times
        for call, times in ended.items()
        if not call.rpartition(".")[2].isdigit() or "." not in call
    }
    assert nodes == dict.fromkeys(["0", "1.m", "2.c", "3.m", "4"], 1)
    assert run.live_calls() == []


@pytest.mark.parametrize("producer", ["numbers", "shifted"])
@pytest.mark.parametrize("place", PLACES)
def test_a_worker_may_die_at_any_step_of_a_stream(
    workers: Workers, tmp_path: Path, place: str, producer: str
) -> None:
    """And the producer that runs again may say something else."""
    killing = {**QUICK, "KILL_AT": place, "KILL_FLAG": str(tmp_path / "killed")}
    options: dict[str, Any] = {"pool": "threads", "concurrency": 4}
    doomed = workers.start(APP, QUEUES, env=killing, args=["--include", "tests.chaos.killing"], **options)
    doomed.wait_ready()
    # What is left when a call ends goes with its record, and not as chunks of its own.
    run = submit(chain(f"slow_{producer}" if place.endswith("_chunks") else producer, n=SIZE))
    assert doomed.wait(timeout_s=20) == -signal.SIGKILL
    workers.start(APP, QUEUES, env=QUICK, **options).wait_ready()
    assert run.result(timeout_s=40) == expected(run.node_output("numbers"))
    check_closed_once(run)


def test_a_producer_that_wakes_up_late_is_refused(workers: Workers, redis_client: Redis) -> None:
    """And costs nobody anything, though it goes on to publish."""
    both = two_workers(workers, pool="threads", concurrency=4)
    run = submit(chain("stops_once", n=SIZE))
    await_event(run, "lost")
    (stopped,) = (worker for worker in both if str(worker.pid) in tools.happened(redis_client, "stopped"))
    stopped.signal(signal.SIGCONT)
    assert run.result(timeout_s=40) == expected(list(range(SIZE)))
    check_closed_once(run)


CLIENT = """
import sys
from mosaic_tasks import submit
from tests.chaos.test_stream_faults import chain
run = submit(chain("paced", n=300, pause_s=0.01))
print(run.id, flush=True)
print(run.result(timeout_s=60))
"""


def await_chunk(client: Redis, run_id: str) -> None:
    """Waits until the fold has put something out."""
    assert client.xread({Keys("mosaic").stream(run_id, "1"): "0"}, block=int(READY_S * 1000))


def test_a_server_killed_in_the_middle_of_streams_costs_nothing(tmp_path: Path) -> None:
    """Workers and client live on."""
    with EmbeddedServer(tmp_path / "home") as server, connect(server.redis_url) as client:
        with Workers(urls_of(server.redis_url), tmp_path) as started:
            both = two_workers(started)
            environment = python_environment(**QUICK, MOSAIC_REDIS_URL=server.redis_url)
            command = [sys.executable, "-c", CLIENT]
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as submitter:
                assert submitter.stdout is not None
                await_chunk(client, submitter.stdout.readline().strip())
                server_process(server).kill()
                answer, _ = submitter.communicate(timeout=70)
            assert (submitter.returncode, answer.strip()) == (0, str(expected(list(range(300)))))
            assert [worker.returncode for worker in both] == [None, None]
        server.stop(wait_s=15)
