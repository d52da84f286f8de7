"""What the real Flower shows of runs."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mosaic_queues.errors import RunCancelled, RunFailed
from mosaic_queues.settings import Settings
from mosaic_tasks import Flow, Workflow, submit
from tests.integration import run_tools as tools
from tests.integration.flowers import Flower
from tests.integration.mixture_runs import ask, experts, number, says
from tests.services import Pool, ServerForTests, Workers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
APP, QUEUES = "mosaic_tasks.app", ["mosaic.cpu", "mosaic.api.replay"]
POOLS: list[Pool] = ["prefork", "threads", "async"]


@pytest.fixture
def flower(redis_server: ServerForTests, tmp_path: Path) -> Iterator[Flower]:
    with Flower(redis_server.urls, tmp_path) as started:
        yield started


@pytest.fixture(autouse=True)
def _client(mosaic_process: Settings) -> None:
    """This process submits."""


def workflow(tmp_path: Path) -> Workflow:
    """Fans out, retries, skips, and goes on in spite of a failure."""
    flow = Flow("shop-report")
    each = flow.tool(
        tools.double, id="doubled", for_each=flow.tool(tools.count, id="orders", n=2), x="${item}"
    )
    again = flow.tool(
        tools.boom_until,
        id="again",
        path=str(tmp_path / "tries"),
        attempts=2,
        retry={"attempts": 3, "delay": 0.01},
    )
    never = flow.tool(tools.one, id="never", when="false")
    broken = flow.tool(tools.boom, id="broken", on_failure={"default": None})
    long = flow.tool(tools.echo, id="long", value="a-part-of-the-payload " * 20)
    flow.output(flow.tool(tools.total, id="sum", values=each, after=[again, never, broken, long]))
    return flow.build()


@pytest.mark.parametrize("pool", POOLS)
def test_each_call_is_a_task_that_says_what_it_is(
    flower: Flower, workers: Workers, tmp_path: Path, pool: Pool
) -> None:
    worker = workers.start(APP, QUEUES, pool=pool, concurrency=4, args=["-E"]).wait_ready()
    run = submit(workflow(tmp_path))
    assert run.result(timeout_s=30) == 2
    whole = flower.await_state(run.id, "SUCCESS")
    assert (whole["name"], whole["result"]) == ("shop-report", "done")
    assert whole["runtime"] > 0
    names = [node.name for node in run.plan().nodes]
    shown = flower.await_state(f"{run.id}:{names.index('doubled')}.1", "SUCCESS")
    assert shown["name"] == "shop-report.doubled"
    assert shown["args"] == f"('doubled', '{names.index('doubled')}.1')"
    assert ast.literal_eval(shown["kwargs"]) == {
        "run": run.id, "workflow": "shop-report", "node": "doubled", "attempt": 1,
        "call": f"{names.index('doubled')}.1",
    }  # fmt: skip
    assert (shown["result"], shown["worker"]) == ("2", worker.name)
    assert {"received", "started", "succeeded"} <= {name for name, value in shown.items() if value}
    assert shown["runtime"] >= 0
    assert (shown["parent_id"], shown["root_id"]) == (run.id, run.id)
    again = flower.await_state(f"{run.id}:{names.index('again')}", "SUCCESS")
    assert (again["retries"], bool(again["retried"])) == (1, True)
    skipped = flower.await_state(f"{run.id}:{names.index('never')}", "SUCCESS")
    assert skipped["result"] == "skipped: its condition 'false' is false"
    broken = flower.await_state(f"{run.id}:{names.index('broken')}", "FAILURE")
    assert "ToolError" in broken["exception"]
    long = flower.await_state(f"{run.id}:{names.index('long')}", "SUCCESS")
    assert "payload" not in f"{long['args']} {long['kwargs']}"
    assert len(long["result"]) < 150


def test_a_run_is_found_by_its_id_its_workflow_and_its_nodes(
    flower: Flower, workers: Workers, tmp_path: Path
) -> None:
    workers.start(APP, QUEUES, pool="threads", args=["-E"]).wait_ready()
    first, second = submit(workflow(tmp_path)), submit(workflow(tmp_path))
    for run in (first, second):
        run.wait(timeout_s=30)
        flower.await_state(run.id, "SUCCESS")
    by_id = flower.tasks(search=first.id)
    assert {task_id.partition(":")[0] for task_id in by_id} == {first.id}
    assert flower.tasks(search=f"kwargs:run={first.id}").keys() == by_id.keys()
    assert set(flower.task(first.id)["children"]) == by_id.keys() - {first.id}
    nodes = flower.tasks(search=f"kwargs:node=doubled kwargs:run={second.id}")
    assert {task["name"] for task in nodes.values()} == {"shop-report.doubled"}
    assert len(nodes) == 4  # it opens, two items, it closes
    assert flower.tasks(search="name:shop-report.sum").keys() == {
        task_id for task_id, task in flower.tasks().items() if task["name"] == "shop-report.sum"
    }
    assert {task["name"] for task in flower.tasks(search="state:FAILURE").values()} == {"shop-report.broken"}
    assert "shop-report.sum" in flower.ask("/api/task/types").json()["task-types"]


def test_an_expert_that_is_cut_is_revoked(flower: Flower, workers: Workers, tmp_path: Path) -> None:
    workers.start(APP, QUEUES, pool="async", concurrency=8, args=["-E"]).wait_ready()
    slowly = says(tmp_path, "slow", number(4), tokens_per_s=0.2)
    asked = [*experts(tmp_path, number(4), number(4)), {"name": "slow", "model": slowly}]
    run = ask(asked, waves=[3], gate={"kind": "quorum", "quorum": 2})
    run.result(timeout_s=30)
    cut = "name:mixes.answer.slow state:REVOKED"
    found = flower.await_that(lambda: flower.tasks(search=cut), bool, "the slow one is revoked")
    assert [task["root_id"] for task in found.values()] == [run.id]
    whole = flower.await_state(run.id, "SUCCESS")
    assert whole["name"] == "mixes"


@pytest.mark.parametrize("pool", POOLS)
def test_revoking_a_call_ends_it(flower: Flower, workers: Workers, tmp_path: Path, pool: Pool) -> None:
    worker = workers.start(APP, QUEUES, pool=pool, concurrency=2, args=["-E"]).wait_ready()
    flow = Flow("holds")
    flow.output(flow.tool(tools.spin, id="long", retry=3))
    run = submit(flow.build())
    flower.await_state(f"{run.id}:0", "STARTED")
    assert flower.post(f"/api/task/revoke/{run.id}:0", terminate="true").status == 200
    with pytest.raises(RunFailed, match="CallRevoked: it was revoked"):
        run.result(timeout_s=30)
    shown = flower.await_state(f"{run.id}:0", "REVOKED")
    assert shown["exception"]
    flower.await_state(run.id, "FAILURE")
    flow = Flow("next")
    flow.output(flow.tool(tools.double, x=2))
    assert submit(flow.build()).result(timeout_s=30) == 4  # whoever ran it is free again
    assert worker.returncode is None


def test_revoking_a_call_keeps_to_the_rule_of_its_node(flower: Flower, workers: Workers) -> None:
    workers.start(APP, QUEUES, pool="threads", concurrency=2, args=["-E"]).wait_ready()
    flow = Flow("rules")
    long = flow.tool(tools.spin, id="long", on_failure={"default": 20})
    flow.output(flow.tool(tools.double, x=long))
    run = submit(flow.build())
    flower.await_state(f"{run.id}:0", "STARTED")
    flower.post(f"/api/task/revoke/{run.id}:0")
    assert run.result(timeout_s=30) == 40


@pytest.mark.parametrize("pool", POOLS)
def test_revoking_a_run_cancels_it(flower: Flower, workers: Workers, pool: Pool) -> None:
    workers.start(APP, QUEUES, pool=pool, concurrency=2, args=["-E"]).wait_ready()
    flow = Flow("holds")
    flow.output(flow.tool(tools.spin, id="long"))
    run = submit(flow.build())
    flower.await_state(f"{run.id}:0", "STARTED")
    flower.post(f"/api/task/revoke/{run.id}", terminate="true")
    with pytest.raises(RunCancelled, match="revoked, by Celery's `revoke` or in Flower"):
        run.result(timeout_s=30)
    flower.await_state(run.id, "REVOKED")
    flower.await_state(f"{run.id}:0", "REVOKED")


def test_what_it_saw_is_there_after_a_restart(
    redis_server: ServerForTests, workers: Workers, tmp_path: Path
) -> None:
    workers.start(APP, QUEUES, pool="threads", args=["-E"]).wait_ready()
    kept = (f"--db={tmp_path / 'flower'}", "--persistent=true")
    flow = Flow("kept")
    flow.output(flow.tool(tools.double, x=2))
    with Flower(redis_server.urls, tmp_path, *kept) as first:
        first.await_ears()
        run = submit(flow.build())
        run.wait(timeout_s=30)
        first.await_state(run.id, "SUCCESS")
        first.await_state(f"{run.id}:0", "SUCCESS")
    with Flower(redis_server.urls, tmp_path, *kept) as second:
        assert second.task(f"{run.id}:0")["name"] == "kept.double"
        assert second.tasks(search=run.id).keys() == {run.id, f"{run.id}:0"}
        second.await_ears("somebody whom the first has not heard")
        again = submit(flow.build())
        again.wait(timeout_s=30)
        second.await_state(again.id, "SUCCESS")


def test_a_flower_that_comes_late_sees_what_goes_on(
    redis_server: ServerForTests, workers: Workers, tmp_path: Path
) -> None:
    worker = workers.start(APP, QUEUES, pool="threads", concurrency=2, args=["-E"]).wait_ready()
    flow = Flow("late")
    os.mkfifo(tmp_path / "pipe")
    held = flow.tool(tools.read, path=str(tmp_path / "pipe"))
    flow.output(flow.tool(tools.echo, id="after", value=held))
    run = submit(flow.build())
    for event in run.events(follow=True):
        if event.kind == "claimed":
            break
    with Flower(redis_server.urls, tmp_path) as flower:
        flower.await_workers([worker.name])
        (tmp_path / "pipe").write_text("here")
        run.wait(timeout_s=30)
        whole = flower.await_state(run.id, "SUCCESS")
        assert whole["name"] == "late"
        assert flower.await_state(f"{run.id}:1", "SUCCESS")["name"] == "late.after"
