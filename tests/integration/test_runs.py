"""Whole runs: a client here, real workers there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from mosaic_queues.connection import connect, urls_of
from mosaic_queues.errors import InputError, NoWorker, RunCancelled, RunFailed, WaitTimeout
from mosaic_tasks import Flow, Run, Workflow, asubmit, get_run, list_runs, submit
from tests.integration import run_tools as tools
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
APP = "mosaic_tasks.app"
QUEUES = ["mosaic.cpu"]


@pytest.fixture
def worker(workers: Workers) -> Workers:
    workers.start(APP, QUEUES).wait_ready()
    return workers


def finish(flow: Flow, output: Any, inputs: dict[str, Any] | None = None) -> Any:
    flow.output(output)
    return submit(flow.build(), inputs).result(timeout_s=30)


def one_tool(function: Any, **arguments: Any) -> Workflow:
    flow = Flow("one")
    flow.output(flow.tool(function, **arguments))
    return flow.build()


def test_values_travel_along_the_edges(worker: Workers) -> None:
    flow = Flow("diamond")
    start = flow.input("start", int, default=3)
    left = flow.tool(tools.double, x=start)
    right = flow.tool(tools.add, a=left, b=start)
    assert finish(flow, flow.tool(tools.add, a=left, b=right)) == 15
    flow_again = Flow("diamond")
    start = flow_again.input("start", int, default=3)
    assert finish(flow_again, flow_again.tool(tools.double, x=start), {"start": 5}) == 10


@pytest.mark.parametrize("size", [0, 1, 7, 300])
def test_a_fan_out_keeps_the_order_of_its_items(worker: Workers, size: int) -> None:
    flow = Flow("fan")
    each = flow.tool(tools.double, for_each=flow.tool(tools.count, n=size), x="${item}", id="each")
    assert finish(flow, each) == [2 * number for number in range(size)]


def test_every_kind_of_callable_is_a_tool(worker: Workers) -> None:
    flow = Flow("kinds")
    made = [
        flow.tool(tools.letters, n=3, id="generator"),
        flow.tool(tools.later, x=1, id="coroutine"),
        flow.tool(tools.drops, n=3, id="async_generator"),
    ]
    assert finish(flow, flow.tool(tools.echo, value=made)) == [["a", "b", "c"], 2, [0, 1, 2]]


def test_coroutines_of_one_node_run_side_by_side(worker: Workers) -> None:
    flow = Flow("together")
    each = flow.tool(tools.later, for_each=flow.tool(tools.count, n=16), x="${item}", pause_s=0.4, id="each")
    flow.output(each)
    run = submit(flow.build())
    assert run.result(timeout_s=30) == list(range(1, 17))
    record = run.record()
    assert record.ended_ms is not None
    assert record.ended_ms - record.created_ms < 16 * 400 / 2


def test_tools_take_and_give_models(worker: Workers) -> None:
    flow = Flow("models")
    found = flow.tool(tools.cheapest, orders=[{"city": "Oslo", "total": 120}, {"city": "Rome", "total": 80}])
    assert finish(flow, flow.tool(tools.city_of, order=found)) == "Rome"


def test_a_value_that_does_not_fit_its_model_is_named(worker: Workers) -> None:
    flow = Flow("models")
    given = flow.tool(tools.echo, value={"town": "Rome"})
    with pytest.raises(RunFailed, match=r"(?s)node 'city_of': BindingError: argument 'order' .*city"):
        finish(flow, flow.tool(tools.city_of, order=given))


def test_a_tool_cannot_change_what_another_reads(worker: Workers) -> None:
    flow = Flow("isolated")
    source = flow.tool(tools.count, n=2, id="source")
    changed = flow.tool(tools.change, value=source, id="changed")
    after = flow.tool(tools.echo, value=source, after=[changed], id="after")
    assert finish(flow, flow.tool(tools.echo, value=[changed, after], id="both")) == [
        [0, 1, "changed"],
        [0, 1],
    ]


def test_a_false_condition_skips_the_node_and_what_needs_it(worker: Workers) -> None:
    flow = Flow("conditions")
    wanted = flow.input("wanted", bool, default=False)
    maybe = flow.tool(tools.one, when="inputs.wanted", x=wanted, id="maybe")
    needs = flow.tool(tools.echo, value=maybe, id="needs")
    last = flow.tool(tools.one, after=[needs], id="last")
    flow.output(last)
    workflow = flow.build()
    run = submit(workflow, {"wanted": False})
    assert run.result(timeout_s=30) == 1
    states = {node.name: node.state for node in run.view().nodes}
    assert states == {"maybe": "skipped", "needs": "skipped", "last": "done"}
    chosen = submit(workflow, {"wanted": True})
    assert chosen.result(timeout_s=30) == 1
    assert chosen.node_output("needs") == 1


def test_a_failing_tool_fails_the_run_and_says_where(worker: Workers) -> None:
    with pytest.raises(
        RunFailed, match=r"node 'boom': ToolError: ValueError: cannot do 7 \(in boom, line \d+"
    ):
        submit(one_tool(tools.boom, x=7)).result(timeout_s=30)


def test_retries_come_after_their_pause_and_are_counted(worker: Workers, tmp_path: Path) -> None:
    flow = Flow("retry")
    node = flow.tool(
        tools.boom_until,
        path=str(tmp_path / "tried"),
        attempts=3,
        retry={"attempts": 3, "delay": 0.05},
    )
    flow.output(node)
    run = submit(flow.build())
    assert run.result(timeout_s=30) == 3
    assert [event.kind for event in run.events()].count("retry") == 2


@pytest.mark.parametrize(("rule", "expected"), [("skip", None), ({"default": 5}, 5)], ids=["skip", "default"])
def test_a_failure_may_be_declared_harmless(worker: Workers, rule: Any, expected: Any) -> None:
    flow = Flow("harmless")
    assert finish(flow, flow.tool(tools.boom, on_failure=rule)) == expected


def test_items_that_fail_harmlessly_are_null_in_the_list(worker: Workers) -> None:
    flow = Flow("items")
    each = flow.tool(
        tools.boom_on,
        for_each=flow.tool(tools.count, n=4),
        x="${item}",
        bad=2,
        on_failure="skip",
        id="each",
    )
    assert finish(flow, each) == [0, 1, None, 3]


def test_an_agent_writes_with_the_built_in_engine_and_its_use_is_recorded(worker: Workers) -> None:
    from mosaic_tasks import agent

    flow = Flow("agent")
    facts = flow.input("facts", str, default="The parser was rewritten. It is twice as fast.")
    writer = agent(prompt="Sum up.\n\nFACTS:\n{{ facts }}")
    flow.output(flow.agent(writer, facts=facts))
    run = submit(flow.build())
    assert "The parser was rewritten." in run.result(timeout_s=30)
    (usage,) = [event for event in run.events() if event.kind == "usage"]
    assert usage.detail == "extractive"
    assert usage.tokens[1] > 0


def test_a_celery_task_of_the_worker_s_app_is_a_node(workers: Workers) -> None:
    workers.start("tests.integration.joined_app", ["celery"]).wait_ready()
    flow = Flow("tasks")
    flow.output(flow.task("reports.add", a=1, b=2, queue="celery"))
    assert submit(flow.build()).result(timeout_s=30) == 3


def test_plain_celery_can_submit_by_name(worker: Workers, redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(
        "name: by-name\ninputs: {x: integer}\nnodes:\n  a:\n"
        "    tool: tests.integration.run_tools:double\n    with: {x: '${inputs.x}'}\noutput: a\n"
    )
    urls = urls_of(redis_url)
    plain = Celery("plain", broker=urls.broker_url, backend=urls.broker_url, set_as_current=False)
    with plain:
        sent = plain.send_task("mosaic.submit", args=[str(file), {"x": 4}], queue="mosaic.cpu")
        run_id = sent.get(timeout=30)
        plain.backend.result_consumer.stop()
        plain.backend.client.close()
    assert get_run(run_id).result(timeout_s=30) == 8


def test_the_same_key_gives_the_same_run(worker: Workers) -> None:
    workflow = one_tool(tools.one)
    key = uuid.uuid4().hex
    first, second = submit(workflow, key=key), submit(workflow, key=key)
    assert first.id == second.id
    assert first.result(timeout_s=30) == second.result(timeout_s=30) == 1


def test_a_key_that_stands_for_something_else_is_refused_with_both_names(worker: Workers) -> None:
    def doubled(name: str, **options: Any) -> Workflow:
        node = {"tool": "tests.integration.run_tools:double", "with": {"x": "${inputs.x.b[0]}"}, **options}
        return Workflow.from_data({"name": name, "inputs": {"x": "any"}, "nodes": {"n": node}, "output": "n"})

    key, inputs = uuid.uuid4().hex, {"x": {"a": 1, "b": [2]}}
    first = submit(doubled("one"), inputs, key=key)
    assert submit(doubled("one"), {"x": {"b": [2], "a": 1}}, key=key, priority=7).id == first.id
    with pytest.raises(InputError, match=f"key '{key}' stands for run {first.id} of workflow 'one'.*'two'"):
        submit(doubled("two"), inputs, key=key)
    with pytest.raises(
        InputError, match=f"{first.id} of workflow 'one', and not for workflow 'one' as it is now"
    ):
        submit(doubled("one", retry=2), inputs, key=key)
    with pytest.raises(InputError, match=f"{first.id} of workflow 'one' with other inputs than these"):
        submit(doubled("one"), {"x": {"a": 1, "b": [3]}}, key=key)
    assert first.result(timeout_s=30) == 4


def test_the_async_twins_do_not_block_their_loop(worker: Workers) -> None:
    async def both() -> list[int]:
        runs = await asyncio.gather(*(asubmit(one_tool(tools.double, x=x)) for x in (1, 2)))
        return [await run.aresult(timeout_s=30) for run in runs]

    assert asyncio.run(both()) == [2, 4]


def test_cancelling_is_durable_and_ends_what_runs(worker: Workers) -> None:
    run = submit(one_tool(tools.hang))
    for event in run.events(follow=True):
        if event.kind == "claimed":
            break
    assert run.cancel("no longer needed")
    with pytest.raises(RunCancelled, match="no longer needed"):
        run.result(timeout_s=30)
    assert submit(one_tool(tools.one)).result(timeout_s=30) == 1


def test_a_run_can_be_cancelled_while_no_worker_lives(workers: Workers) -> None:
    run = submit(one_tool(tools.boom))
    assert run.cancel()
    workers.start(APP, QUEUES).wait_ready()
    assert submit(one_tool(tools.one)).result(timeout_s=30) == 1
    assert run.record().status == "cancelled"


def test_a_queue_without_worker_is_named_within_seconds(worker: Workers) -> None:
    flow = Flow("nobody")
    flow.output(flow.tool(tools.one, queue="nobody.here"))
    run = submit(flow.build())
    with pytest.raises(NoWorker, match=r"'nobody\.here'.*mosaic worker --queues nobody\.here"):
        run.wait(no_worker_s=1.0)
    assert run.record().status == "running"
    assert run.id in [record.run_id for record in list_runs()]
    run.cancel()


def test_the_command_that_helps_is_for_the_queues_of_later_nodes_too(worker: Workers) -> None:
    flow = Flow("nobody-later")
    first = flow.tool(tools.one, queue="nobody.here", id="first")
    served = flow.tool(tools.one, after=[first], id="served")
    flow.output(flow.tool(tools.one, queue="nobody.there", after=[served], id="later"))
    run = submit(flow.build())
    with pytest.raises(NoWorker, match=r"the queue 'nobody\.here', .*--queues nobody\.here,nobody\.there$"):
        run.wait(no_worker_s=0.05)
    run.cancel()


def test_waiting_may_end_before_the_run(worker: Workers) -> None:
    run = submit(one_tool(tools.pause, x=1, pause_s=0.5))
    with pytest.raises(WaitTimeout):
        run.wait(timeout_s=0.05)
    assert run.result(timeout_s=30) == 1


def memory_of_all_keys(client: Redis) -> int:
    return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(count=1_000))


@pytest.mark.parametrize("in_server", [False, True], ids=["object", "blob"])
def test_a_100_mb_value_is_in_no_message_and_at_most_once_in_the_server(
    workers: Workers, redis_url: str, redis_client: Redis, in_server: bool
) -> None:
    env = {"MOSAIC_REDIS_BYTES": str(1 << (30 if in_server else 20)), "MOSAIC_CONTINUATION_CALLS": "0"}
    making = workers.start(APP, QUEUES, env=env, args=["--task-events"]).wait_ready()
    flow = Flow("large")
    data = flow.tool(tools.large, megabytes=100)
    flow.output(flow.tool(tools.digest, data=data, queue="later"))
    run = submit(flow.build())
    with connect(redis_url) as patient:
        message = patient.blmove("later", "later", 30)
    assert message is not None
    assert run.id.encode() in message
    assert len(message) < 4096
    reading = workers.start(APP, ["later"], env=env, args=["--task-events"]).wait_ready()
    assert run.result(timeout_s=60) == tools.digest(tools.large(100))
    once = 100 << 20 if in_server else 0
    assert once <= memory_of_all_keys(redis_client) < 1.25 * once + (1 << 20)
    workers.stop()
    for worker in (making, reading):
        assert len(worker.log) < 1 << 16


def test_a_value_without_a_form_is_named_with_its_place(worker: Workers) -> None:
    with pytest.raises(RunFailed, match=r"node 'unserializable': NotSerializable: .*items\[1\]\.lock"):
        submit(one_tool(tools.unserializable)).result(timeout_s=30)


def test_a_tool_that_exits_fails_its_call_only(worker: Workers) -> None:
    with pytest.raises(RunFailed, match=r"it called sys\.exit\(3\)"):
        submit(one_tool(tools.leave, code=3)).result(timeout_s=30)
    assert submit(one_tool(tools.one)).result(timeout_s=30) == 1


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_a_tool_that_never_returns_is_interrupted(workers: Workers, pool: Any) -> None:
    workers.start(APP, QUEUES, pool=pool, concurrency=2).wait_ready()
    flow = Flow("hang")
    hanging = tools.hang if pool != "threads" else "tests.integration.run_tools:spin"
    flow.output(flow.tool(hanging, timeout=0.5, id="hang"))
    with pytest.raises(
        RunFailed, match=r"node 'hang': CallTimeout: it ran longer than its timeout of 0\.5 s"
    ):
        submit(flow.build()).result(timeout_s=30)
    assert submit(one_tool(tools.one)).result(timeout_s=30) == 1


@pytest.mark.parametrize("name", ["never", "blocks", "stubborn"])
def test_a_coroutine_that_never_returns_is_ended(worker: Workers, name: str) -> None:
    flow = Flow("coroutines")
    flow.output(flow.tool(getattr(tools, name), timeout=0.3, id="waits"))
    with pytest.raises(
        RunFailed, match=r"node 'waits': CallTimeout: it ran longer than its timeout of 0\.3 s"
    ):
        submit(flow.build()).result(timeout_s=30)
    assert submit(one_tool(tools.later, x=1)).result(timeout_s=30) == 2


def test_cancelling_ends_a_coroutine(worker: Workers) -> None:
    run = submit(one_tool(tools.never))
    for event in run.events(follow=True):
        if event.kind == "claimed":
            break
    assert run.cancel()
    assert submit(one_tool(tools.later, x=1)).result(timeout_s=30) == 2


def test_a_fan_out_beyond_the_limit_is_refused(workers: Workers) -> None:
    workers.start(APP, QUEUES, env={"MOSAIC_MAX_ITEMS": "10"}).wait_ready()
    flow = Flow("wide")
    flow.output(flow.tool(tools.double, for_each=flow.tool(tools.count, n=11), x="${item}", id="each"))
    with pytest.raises(RunFailed, match=r"node 'each': ToolError: for_each over 11 items, at most 10"):
        submit(flow.build()).result(timeout_s=30)


@pytest.mark.parametrize("pool", ["solo", "threads"])
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (tools.raises, "own"),
        (tools.raises, "keyboard"),
        (tools.raises, "generator"),
        (tools.raises_async, "own"),
        (tools.raises_async, "cancelled"),
        (tools.raises, "redis"),
        (tools.raises_async, "redis"),
        (tools.raises_async, "timeout"),
    ],
)
def test_whatever_a_tool_raises_fails_its_call_alone(
    workers: Workers, pool: Any, function: Any, name: str
) -> None:
    workers.start(APP, QUEUES, pool=pool).wait_ready()
    for _ in range(2):
        with pytest.raises(RunFailed, match=r"node 'raises(_async)?': ToolError: \w+"):
            submit(one_tool(function, name=name)).result(timeout_s=30)
    assert submit(one_tool(tools.one)).result(timeout_s=30) == 1


def test_literals_that_look_like_references_are_literals(worker: Workers) -> None:
    schema = {"$ref": "#/definitions/x", "other": [{"$ref": "y"}, {"$ref": [0, []]}, {"$literal": 1}]}
    assert submit(one_tool(tools.echo, value=schema)).result(timeout_s=30) == schema
    assert submit(one_tool(tools.echo, value={"$ref": "x"})).result(timeout_s=30) == {"$ref": "x"}


def test_a_message_with_unknown_calls_harms_no_run(worker: Workers) -> None:
    from mosaic_tasks.app import app

    run = submit(one_tool(tools.pause, x=1, pause_s=0.3))
    for calls in (["99"], ["0.x"], [""], ["-1"], ["0.c.1"], []):
        app.send_task("mosaic.call", args=[run.id, calls], queue="mosaic.cpu")
    app.send_task("mosaic.call", args=["no run"], queue="mosaic.cpu")
    assert run.result(timeout_s=30) == 1
    assert submit(one_tool(tools.one)).result(timeout_s=30) == 1


def test_a_short_chain_costs_few_messages(worker: Workers) -> None:
    flow = Flow("chain")
    node = flow.tool(tools.double, x=1)
    for _ in range(30):
        node = flow.tool(tools.echo, value=node)
    flow.output(node)
    run = submit(flow.build())
    assert run.result(timeout_s=30) == 2
    assert [event.kind for event in run.events()].count("ready") <= 3


def test_flower_would_see_every_call_as_a_task(workers: Workers, broker_url: str) -> None:
    workers.start(APP, QUEUES, args=["--task-events"]).wait_ready()
    seen: dict[str, list[str]] = {}
    app = Celery("watch", broker=broker_url, set_as_current=False)
    flow = Flow("seen")
    each = flow.tool(tools.double, for_each=flow.tool(tools.count, n=5), x="${item}", id="each")
    flow.output(each)
    workflow = flow.build()
    with app, app.connection_for_read() as connection:
        receiver = app.events.Receiver(
            connection,
            handlers={"*": lambda event: seen.setdefault(event.get("uuid", ""), []).append(event["type"])},
        )
        with receiver.consumer_context() as _:
            run = submit(workflow)
            run.result(timeout_s=30)
            wanted = {f"{run.id}:{call}" for call in ("0", "1", "1.0", "1.1", "1.2", "1.3", "1.4", "1.c")}
            for _event in receiver.consume(limit=None, timeout=10):
                if all("task-succeeded" in seen.get(task, []) for task in wanted):
                    break
    for task in wanted:
        assert seen[task] == ["task-received", "task-started", "task-succeeded"]


def test_submitting_does_not_need_the_tools_of_the_workers(worker: Workers, tmp_path: Path) -> None:
    """A run opened by another process is found by its id here."""
    code = (
        "from mosaic_tasks import Flow, submit\n"
        "flow = Flow('other'); flow.output(flow.tool('tests.integration.run_tools:double', x=21))\n"
        "print(submit(flow.build()).id)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert get_run(done.stdout.strip()).result(timeout_s=30) == 42


def test_a_run_shows_its_state_while_it_runs(worker: Workers) -> None:
    run: Run = submit(one_tool(tools.pause, x=1, pause_s=0.3))
    for event in run.events(follow=True):
        if event.kind == "claimed":
            break
    (node,) = run.view().nodes
    assert node.state == "running"
    run.result(timeout_s=30)
    (node,) = run.view().nodes
    assert node.state == "done"
