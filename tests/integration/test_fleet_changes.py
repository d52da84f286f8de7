"""Providers whom nobody asks any more, pools that change while routed calls wait, classes that may not answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from redis import Redis

from mosaic_queues.documents import dump
from mosaic_queues.transitions import Claim
from mosaic_routing.guards import Query
from mosaic_routing.inventory import EngineReport, publish
from mosaic_routing.machines import REPORTS, MachineReport
from mosaic_routing.queues import direct_queue, hosting_queues
from mosaic_routing.router import Policy, route
from mosaic_routing.targets import Ask, Decision
from mosaic_tasks import Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.bootsteps import Recovering
from mosaic_tasks.execution.driver import drive
from mosaic_tasks.execution.placing.asking import Asking
from mosaic_tasks.execution.placing.dispatching import Dispatcher
from mosaic_tasks.execution.placing.fleets import Fleets
from mosaic_tasks.execution.process import Process, process_for
from mosaic_tasks.execution.sent import Sent
from tests.integration.test_routing import models, workflow

__all__ = ["models"]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("threads", reason="one watches the drives of a process, one publishes for them"),
]


@pytest.fixture
def process(models: Path) -> Process:
    """This process, as a worker that asks the provider."""
    process = process_for(app)
    process.start_liveness(queues=["mosaic.api.replay"], slots=4)
    return process


def test_a_call_at_a_provider_whom_nobody_asks_any_more_is_stranded(process: Process) -> None:
    run = submit(workflow(), {})
    (call,) = process.ledger.live_calls(run.id)
    recovering = Recovering(process)
    assert not recovering.is_stranded(run.id, call)
    assert recovering.is_stranded(run.id, call._replace(queue="mosaic.api.gone"))
    assert recovering.is_stranded(run.id, call._replace(queue="mosaic.direct.gone@here"))


def test_a_call_whose_agent_names_its_engine_waits_for_a_worker(process: Process) -> None:
    named = Workflow.from_yaml(
        "name: named\nnodes:\n  answer: {agent: {prompt: A question., model: 'openai:any'}}\noutput: answer\n"
    )
    run = submit(named, {})
    (call,) = process.ledger.live_calls(run.id)
    assert call.queue == "mosaic.api.openai"
    assert not Recovering(process).is_stranded(run.id, call)


def test_a_call_whose_model_left_the_pool_waits_and_says_so(process: Process, models: Path) -> None:
    asks = Workflow.from_yaml(
        "name: asks\nnodes:\n  answer: {agent: {prompt: A question., model: 'pool:sage'}}\noutput: answer\n"
    )
    before = models.read_text()
    models.write_text(before.replace("sage:", "wise:"))
    run = submit(asks, {})
    (told,) = run.explain()
    assert "the router has no place for it: the model pool has no model 'sage'" in str(told)
    models.write_text(before)
    process.places = Dispatcher(process)  # which reads the fleet at once
    (waits,) = run.live_calls()
    process.ledger.wake(run.id, ["0"], now_ms=waits.at_ms)
    process.publish(run.id, process.plan_of(run.id), [("mosaic.routed", ["0"])])
    drive(process, run.id, ["0"])
    assert run.result(5) == "Forty-two."


def hosted(client: Redis, gpu_class: str) -> None:
    """A worker of this class reports that it hosts `sage`."""
    queues = (*hosting_queues(gpu_class, "sage"), direct_queue(f"{gpu_class}@here"))
    facts = {"fingerprint": "f", "gpu_class": gpu_class, "at_ms": 0, "slots": 4}
    publish(client, EngineReport(holder=f"{gpu_class}/1/a", queues=queues, model="sage", **facts))


@pytest.mark.parametrize(
    ("requires", "queue"),
    [("model: sage", "mosaic.direct.h100@here"), ("model: sage, architecture: hopper", "mosaic.h100.sage")],
)
def test_what_only_some_classes_may_answer_waits_where_no_other_takes_it(
    models: Path, redis_client: Redis, requires: str, queue: str
) -> None:
    speeds = {"h100": 1_000, "l4": 10}
    classes = {
        name: {"speed": {"prefill_tokens_s": 1_000, "decode_tokens_s": speed}}
        for name, speed in speeds.items()
    }
    sage = {"context_tokens": 4096, "hosting": {"spec": {"model": "any"}, "classes": classes}}
    models.write_text(dump({"models": {"sage": sage}}))
    for name in classes:
        hosted(redis_client, name)
    asks = Workflow.from_yaml(
        f"name: asks\nnodes:\n  answer: {{agent: {{prompt: A question., requires: {{{requires}}}}}}}\noutput: answer\n"
    )
    (call,) = submit(asks, {}).live_calls()
    assert call.queue == queue


def test_a_call_that_was_taken_from_another_class_is_a_load_of_this_one_and_keeps_its_limits(
    models: Path,
) -> None:
    cost = {"h100": 4.0, "l4": 1.0}
    classes = {name: {"price": {"input": usd, "output": 2 * usd}} for name, usd in cost.items()}
    sage = {
        "context_tokens": 4096,
        "capabilities": {"wisdom": 0.9},
        "hosting": {"spec": {"model": "any"}, "classes": classes},
    }
    limits = {"deployments": {"l4/sage": {"concurrency": 3}, "h100/sage": {"requests_per_minute": 5}}}
    models.write_text(dump({"models": {"sage": sage}, "limits": limits}))
    process = process_for(app)
    process.start_liveness()
    process.facts = replace(process.facts, hostname="me@here", queues=tuple(hosting_queues("l4", "sage")))
    run = submit(workflow(), {})
    asking = Asking(process, run.id, process.plan_of(run.id), epoch=0)
    sent = Sent(Decision(target="h100/sage@there"), deployment="h100/sage", input_tokens=1e6, input_price=4.0)
    taken = asking.take_over(Claim("0", 1, 0, 0), sent)
    assert (taken.decision.target, taken.machine) == ("l4/sage@me@here", "here")
    need = asking._need(taken)
    assert (need.breaker, need.takes, [lease.of for lease in need.leases]) == (
        "l4/sage",
        (),
        ["deployment:l4/sage"],
    )
    assert taken.cost(1e6, 1e6) == pytest.approx(3.0)
    assert process.guards.read(Query(leases=("target:l4/sage@me@here",))).leases == ((1, 0),)
    asking.release(Claim("0", 1, 0, 0))


def test_a_target_is_as_far_as_its_machine_reports(models: Path, redis_client: Redis) -> None:
    sage = {"context_tokens": 4096, "hosting": {"spec": {"model": "any"}, "classes": {"h100": {}}}}
    models.write_text(dump({"models": {"sage": sage}}))
    process = process_for(app)
    hosted(redis_client, "h100")
    report = MachineReport(host="here", worker="h100@here", holder="h100/1/a", round_trip_s=0.25)
    REPORTS.publish(redis_client, report)
    (target,) = Fleets(redis_client, process.ledger.keys, process.guards).now().targets
    assert target.round_trip_s == 0.25


def test_what_was_sent_for_one_capability_counts_for_the_others(models: Path, redis_client: Redis) -> None:
    qualities = {"math": 0.9, "code": 0.8, "prose": 0.7}
    hosting = {"spec": {"model": "any"}, "classes": {"h100": {}}}
    models.write_text(
        dump({"models": {"sage": {"context_tokens": 4096, "capabilities": qualities, "hosting": hosting}}})
    )
    process = process_for(app)
    hosted(redis_client, "h100")
    fleet = Fleets(redis_client, process.ledger.keys, process.guards).now()
    ask = Ask(call="run/0", output_tokens=10.0)
    before = fleet.snapshot("math"), fleet.snapshot("code")
    fleet.sent(route(ask, before[0], policy=Policy()))
    for snapshot in (*before, fleet.snapshot("prose")):
        (row,) = snapshot.group(()).rows
        assert row.active == 1
