"""Urgent runs pass those that give way, and their lost messages are found, on a real server."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis
from typer.testing import CliRunner

from mosaic_queues.broker import oldest_message
from mosaic_queues.errors import InputError
from mosaic_queues.run_recovery import Limits, RunRecovery
from mosaic_queues.topology import LEVELS
from mosaic_tasks import Flow, Run, Workflow, asubmit, get_run, install, submit
from mosaic_tasks.app import app
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.execution.bootsteps import Recovering
from mosaic_tasks.execution.process import process_for
from tests.integration import run_tools as tools
from tests.services import Pool, Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
URGENT, LAST = "mosaic.cpu", "mosaic.cpu\x06\x169"
"""The lists of kombu's priority steps 0 and 9."""
NO_GRACE = Limits(grace_s=0.0, max_run_s=3600.0, max_run_bytes=10_000_000, plans_s=3600.0)

LEAVES_RUNS = pytest.mark.leaves("keys", reason="without a worker nobody sweeps the index of runs")


@pytest.fixture
def echo() -> Workflow:
    flow = Flow("echo")
    flow.output(flow.tool(tools.echo, value=flow.input("x", int)))
    return flow.build()


def ended_ms(run: Run) -> int:
    record = run.wait(30)
    assert record.ended_ms is not None, record
    return record.ended_ms


def test_an_urgent_run_is_done_before_most_of_those_that_give_way(echo: Workflow, workers: Workers) -> None:
    giving_way = [submit(echo, {"x": number}, priority=9) for number in range(50)]
    urgent = submit(echo, {"x": 50})
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="solo").wait_ready()
    later = [run for run in giving_way if ended_ms(run) > ended_ms(urgent)]
    assert len(later) > 40
    assert urgent.result() == 50


@pytest.mark.parametrize(
    ("pool", "tool"), [("prefork", tools.write_down), ("async", tools.write_down_on_loop)]
)
def test_a_worker_takes_a_lower_level_first_always_and_within_a_level_the_oldest(
    pool: Pool, tool: Callable[..., Any], tmp_path: Path, workers: Workers
) -> None:
    flow = Flow("written")
    path = tmp_path / "order.txt"
    flow.output(flow.tool(tool, x=flow.input("x", str), path=str(path)))
    workflow = flow.build()
    levels = list(LEVELS) * 3
    random.Random(5).shuffle(levels)
    runs = [submit(workflow, {"x": f"{level} {at}"}, priority=level) for at, level in enumerate(levels)]
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool=pool).wait_ready()
    for run in runs:
        run.result(60)
    expected = sorted(enumerate(levels), key=lambda each: (each[1], each[0]))
    assert path.read_text().splitlines() == [f"{level} {at}" for at, level in expected]


def test_an_app_that_joined_with_fewer_levels_does_not_overlook_those_of_others(
    echo: Workflow, redis_client: Redis, workers: Workers
) -> None:
    runs = [submit(echo, {"x": level}, priority=level) for level in LEVELS]
    assert redis_client.llen("mosaic.cpu\x06\x165") == 1  # a list that the joined app itself knows nothing of
    workers.start("tests.integration.joined_app", ["mosaic.cpu"]).wait_ready()
    assert [run.result(30) for run in runs] == list(LEVELS)


def test_a_message_of_an_app_with_fewer_levels_is_not_taken_for_lost(
    echo: Workflow, redis_client: Redis, broker_url: str, workers: Workers
) -> None:
    joined = install(Celery("reports", broker=broker_url, set_as_current=False))
    run = submit(echo, {"x": 1}, priority=5, app=joined)
    coarse = "mosaic.cpu\x06\x163"
    assert redis_client.llen(coarse) == 1
    for level, is_there in ((5, True), (0, False), (6, False)):
        assert (oldest_message(joined, "mosaic.cpu", level) is not None) == is_there
    workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
    assert run.result(30) == 1


@LEAVES_RUNS
def test_a_name_of_the_topology_stands_for_its_level(echo: Workflow, tmp_path: Path) -> None:
    assert submit(echo, {"x": 1}, priority="batch").plan().priority == 9
    assert submit(echo, {"x": 1}, priority="default").plan() == submit(echo, {"x": 1}).plan()
    file = tmp_path / "echo.yaml"
    file.write_text(echo.to_yaml())
    words = ["run", str(file), "-i", "x=1", "--no-wait", "--priority", "background"]
    assert get_run(CliRunner().invoke(application, words).stdout.strip()).plan().priority == 5


def test_a_name_that_stands_for_none_is_told_with_those_that_do(echo: Workflow) -> None:
    with pytest.raises(InputError, match=r"'soon' is no priority; .* 'default' \(0\), 'background' \(5\)"):
        submit(echo, {"x": 1}, priority="soon")


@LEAVES_RUNS
def test_the_priority_lies_in_the_plan_and_on_the_message(echo: Workflow, redis_client: Redis) -> None:
    assert submit(echo, {"x": 1}, priority=9).plan().priority == 9
    assert submit(echo, {"x": 1}).plan().priority == 0
    assert (redis_client.llen(LAST), redis_client.llen(URGENT)) == (1, 1)


def test_a_lost_message_of_an_urgent_run_is_found_behind_old_ones_that_give_way(
    echo: Workflow, redis_client: Redis, workers: Workers
) -> None:
    giving_way = [submit(echo, {"x": number}, priority=9) for number in range(3)]
    urgent = submit(echo, {"x": 3})
    assert redis_client.delete(URGENT) == 1
    process = process_for(app)
    RunRecovery(process.ledger, host=Recovering(process), limits=NO_GRACE).sweep()
    [message] = redis_client.lrange(URGENT, 0, -1)  # type: ignore[misc]
    assert urgent.id in json.loads(message)["headers"]["argsrepr"]
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="solo").wait_ready()
    assert [run.result(30) for run in (urgent, *giving_way)] == [3, 0, 1, 2]


@pytest.mark.parametrize("priority", [-1, 10, 1.5, True])
def test_what_is_no_priority_is_refused(echo: Workflow, priority: int) -> None:
    with pytest.raises(InputError, match=f"{priority!r} is no priority; give a whole number from 0"):
        submit(echo, {"x": 1}, priority=priority)


@LEAVES_RUNS
def test_coroutines_and_the_command_give_it_too(echo: Workflow, tmp_path: Path) -> None:
    file = tmp_path / "echo.yaml"
    file.write_text(echo.to_yaml())
    assert asyncio.run(asubmit(echo, {"x": 1}, priority=6)).plan().priority == 6
    answer = CliRunner().invoke(application, ["run", str(file), "-i", "x=1", "--no-wait", "--priority", "3"])
    assert get_run(answer.stdout.strip()).plan().priority == 3
    answer = CliRunner().invoke(application, ["run", str(file), "-i", "x=1", "--no-wait", "--priority", "10"])
    assert answer.exit_code == ExitCode.USAGE
