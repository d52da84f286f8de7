"""Calls that the router places, step by step in one process: what is counted, who waits, and what survives a fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from redis import Redis

from mosaic_queues.errors import BindingError, CallTimeout, NoWorker, ServerUnavailable
from mosaic_queues.keys import Keys
from mosaic_queues.liveness import Liveness
from mosaic_queues.run_recovery import Limits, RunRecovery
from mosaic_queues.transitions import Claim
from mosaic_routing.guards import Query
from mosaic_routing.targets import Decision
from mosaic_tasks import Run, Workflow, get_run, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.bootsteps import Recovering, run_recovery
from mosaic_tasks.execution.driver import drive
from mosaic_tasks.execution.placing.asking import Asking, Heard
from mosaic_tasks.execution.placing.direct import delete_deserted
from mosaic_tasks.execution.placing.dispatching import Dispatcher
from mosaic_tasks.execution.placing.fleets import count_at
from mosaic_tasks.execution.process import Process, close_all, process_for
from mosaic_tasks.execution.sent import Sent
from tests.integration.test_routing import models, workflow

__all__ = ["models"]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("threads", reason="one watches the drives of a process, one publishes for them"),
]
NIL = b"\x00\xc0"
FAN_OUT = Workflow.from_yaml(
    "name: asks\ninputs: {numbers: array}\nnodes:\n"
    "  answers: {for_each: '${inputs.numbers}', agent: {prompt: 'question {{ item }}', model: 'pool:sage'}}\n"
    "output: answers\n"
)


@pytest.fixture
def process(models: Path) -> Process:
    """This process, as a worker that asks the provider."""
    return serving("mosaic.api.replay")


def serving(*queues: str) -> Process:
    process = process_for(app)
    process.start_liveness(queues=queues, slots=4)
    return process


def calls_at(process: Process, target: str = "api.replay/sage") -> int:
    """How many calls were sent to a target and have not ended."""
    return process.guards.read(Query(leases=(f"target:{target}",))).leases[0][0]


def routed(run: Run) -> list[str]:
    """Where the calls of a run were sent, one after the other."""
    return [event.target for event in run.events() if event.kind == "routed" for _ in event.calls]


def test_what_asks_nobody_is_no_load(process: Process) -> None:
    run = submit(FAN_OUT, {"numbers": [1, 2, 3]})
    assert calls_at(process) == 0  # the opening asks nobody
    drive(process, run.id, ["0"])
    assert calls_at(process) == 3
    drive(process, run.id, ["0.0", "0.1", "0.2"])
    assert calls_at(process) == 0  # nor does the close
    drive(process, run.id, ["0.c"])
    assert run.result(5) == ["Forty-two."] * 3
    assert routed(run) == ["api.replay/sage"] * 5


def test_a_call_that_ends_without_asking_is_no_load_any_more(process: Process) -> None:
    asks = Workflow.from_yaml(
        "name: asks\ninputs: {go: boolean}\nnodes:\n"
        "  answer: {agent: {prompt: A question., model: 'pool:sage'}, when: inputs.go}\noutput: answer\n"
    )
    run = submit(asks, {"go": False})
    assert calls_at(process) == 1
    drive(process, run.id, ["0"])
    assert run.result(5) is None
    assert calls_at(process) == 0


def test_a_message_of_a_call_that_was_moved_and_has_ended_changes_nothing(process: Process) -> None:
    run = submit(workflow(), {})
    process.publish(run.id, process.plan_of(run.id), [("mosaic.routed", ["0"])])  # as the sweeper does
    drive(process, run.id, ["0"])
    assert run.result(5) == "Forty-two."
    drive(process, run.id, ["0"])
    assert calls_at(process) == 0
    assert [event.kind for event in run.events()].count("done") == 1


def test_the_deadline_of_a_run_that_runs_again_counts_from_then(
    process: Process, redis_client: Redis
) -> None:
    run = submit(workflow("deadline: 10m\n"), {})
    drive(process, run.id, ["0"])
    run.result(5)
    an_hour_ago = process.now_ms() - 3_600_000
    redis_client.hset(Keys("mosaic").run(run.id)[0], "created_ms", an_hour_ago)
    run.rerun("answer")
    assert routed(run) == ["api.replay/sage"] * 2


def test_a_call_that_limits_hold_up_waits_for_them_and_is_not_sent_again_at_once(
    models: Path, process: Process
) -> None:
    models.write_text(models.read_text() + "limits: {tenants: {'*': {requests_per_minute: 1}}}\n")
    first, second = (submit(workflow(), {}, tenant="acme") for _ in range(2))
    drive(process, first.id, ["0"])
    assert first.result(5) == "Forty-two."
    drive(process, second.id, ["0"])
    assert routed(second) == ["api.replay/sage", ""]
    (call,) = second.live_calls()
    assert (call.state, call.queue) == ("delayed", "mosaic.routed")
    assert calls_at(process) == 0
    (told,) = second.explain()
    assert "the rate limit 'tenant:acme:requests' is used up" in str(told)
    assert second.unserved_queues() == []  # somebody answers it, later


def test_a_call_that_nobody_could_ever_answer_is_told_to_lack_a_worker(models: Path) -> None:
    serving("mosaic.cpu")
    run = submit(workflow(), {})
    with pytest.raises(NoWorker, match=r"'mosaic\.routed', .*start one with: .*mosaic\.api\.PROVIDER"):
        run.wait(5, no_worker_s=0.05)


def test_a_call_that_waits_for_days_for_a_worker_is_told_of_once(models: Path) -> None:
    process = serving("mosaic.cpu")
    run = submit(workflow(), {})
    for _ in range(3):
        (waits,) = run.live_calls()
        assert waits.state == "delayed"
        process.ledger.wake(run.id, ["0"], now_ms=waits.at_ms)
        process.publish(run.id, process.plan_of(run.id), [("mosaic.routed", ["0"])])
    assert routed(run) == [""]
    close_all()
    process = serving("mosaic.api.replay")
    run = get_run(run.id)
    (waits,) = run.live_calls()
    process.ledger.wake(run.id, ["0"], now_ms=waits.at_ms)
    process.publish(run.id, process.plan_of(run.id), [("mosaic.routed", ["0"])])
    assert routed(run) == ["", "api.replay/sage"]


def test_a_call_waits_for_a_cheap_target_that_rests_rather_than_fail_at_a_dear_one(
    models: Path, tmp_path: Path
) -> None:
    answers = json.dumps(str(tmp_path / "answers.jsonl"))
    offer = f"      - {{engine: replay, model: {answers}, provider: "
    models.write_text(
        "limits: {providers: {api.cheap: {requests_per_minute: 1}}}\n"
        "models:\n  sage:\n    capabilities: {wisdom: 0.9}\n    context_tokens: 4096\n    providers:\n"
        f"{offer}cheap, price: {{input: 1, output: 1}}}}\n{offer}dear, price: {{input: 1000000, output: 1000000}}}}\n"
    )
    process = serving("mosaic.api.cheap", "mosaic.api.dear")
    first = submit(workflow("budget: 0.1\n"), {})
    drive(process, first.id, ["0"])
    assert first.result(5) == "Forty-two."
    process.places = Dispatcher(process)  # which knows nothing of a moment ago
    second = submit(workflow("budget: 0.1\n"), {})
    assert routed(first) == ["api.cheap/sage"]
    assert routed(second) == [""]


def test_the_list_of_a_fan_out_is_read_once_for_all_of_its_prompts(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    unpack = process.payloads.unpack_many

    def unpacked(*args: Any) -> Any:
        read.append(args)
        return unpack(*args)

    run = submit(FAN_OUT, {"numbers": list(range(40))})
    monkeypatch.setattr(process.payloads, "unpack_many", unpacked)
    drive(process, run.id, ["0"])
    assert calls_at(process) == 40
    assert len(read) < 10


def test_runs_that_cannot_be_read_keep_no_other_from_being_mended(process: Process) -> None:
    ledger, now_ms = process.ledger, process.now_ms()
    ledger.list_run("never-opened", now_ms=now_ms - 120_000, keep_s=60.0)
    ledger.client.set(ledger.keys.plan("newer"), b"\x93 of a later version", px=60_000)
    ledger.list_run("unreadable", now_ms=now_ms - 60_000, keep_s=60.0)
    roots = [("q", ["0"])]
    ledger.open_run(
        "unreadable", plan="newer", name="n", inputs=NIL, roots=roots, retention_s=60.0, max_run_s=60.0
    )
    late = submit(workflow(), {}, deadline_s=0.001)
    run_recovery(process).sweep()
    assert late.record().error == "not finished within its deadline of 0.001 s"
    assert [run_id for run_id, _ in ledger.listed_runs()] == ["unreadable", late.id]


def mended(process: Process) -> None:
    """A sweep that waits for nobody."""
    keep = Limits(grace_s=0.0, max_run_s=3_600.0, max_run_bytes=10_000_000, plans_s=60.0)
    RunRecovery(process.ledger, host=Recovering(process), limits=keep).sweep()


def test_the_sweeper_takes_what_a_run_that_is_over_had_sent_from_the_load(process: Process) -> None:
    cancelled, going_on = submit(workflow(), {}), submit(workflow(), {})
    assert calls_at(process) == 2
    cancelled.cancel("enough")
    assert calls_at(process) == 2  # who takes up its message learns of it, and nobody does
    mended(process)
    assert calls_at(process) == 1
    answered(process, going_on)


def answered(process: Process, run: Run) -> None:
    """Runs what is ready until the run is over: its calls are answered once, and nothing of it is a load any more."""
    while calls := [call.call for call in run.live_calls() if call.state == "ready"]:
        drive(process, run.id, calls)
    assert run.record().status == "done"
    assert calls_at(process) == 0
    done = [call for event in run.events() if event.kind == "done" for call in event.calls]
    assert len(done) == len(set(done))


class Killed(BaseException):
    """Nothing after this happens."""


@pytest.mark.parametrize("step", ["ledger.route", "guards.lease", "outbox.publish"])
@pytest.mark.parametrize("is_done", [False, True])
def test_who_dies_while_it_sends_a_call_loses_nothing(
    process: Process, monkeypatch: pytest.MonkeyPatch, step: str, is_done: bool
) -> None:
    owner, name = step.split(".")
    place = getattr(process, owner)
    act = getattr(place, name)

    def kill(*args: Any, **options: Any) -> Any:
        if is_done:
            act(*args, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(place, name, kill)
        with pytest.raises(Killed):
            submit(workflow(), {})
    ((run_id, _),) = process.ledger.listed_runs()
    run = get_run(run_id)
    for _ in range(2):
        mended(process)
    assert calls_at(process) == 1
    assert routed(run)[-1] == "api.replay/sage"
    answered(process, run)


def test_what_nobody_can_place_here_is_placed_by_another(process: Process, redis_client: Redis) -> None:
    places, process.places = process.places, None
    run = submit(workflow(), {})
    assert redis_client.llen("mosaic.routed") == 0
    redis_client.lpush("mosaic.routed", '{"headers": {"sent_at": 1.0}}')  # from whomever: nobody takes it
    process.places = places
    mended(process)
    redis_client.delete("mosaic.routed")
    answered(process, run)


def test_what_an_answer_cost_that_is_of_no_use_counts(process: Process) -> None:
    asks = Workflow.from_yaml(
        "name: asks\nbudget: 100\nnodes:\n"
        "  answer:\n    agent: {prompt: A question., model: 'pool:sage', output: {type: object, required: [number]}}\n"
        "output: answer\n"
    )
    run = submit(asks, {})
    drive(process, run.id, ["0"])
    assert run.record().status == "failed"
    (used,) = [event for event in run.events() if event.kind == "usage"]
    assert used.cost_usd
    ((spent, reserved),) = process.guards.read(Query(accounts=((f"run:{run.id}", "total"),))).accounts
    assert spent == pytest.approx(used.cost_usd * 1e6, abs=1)
    assert reserved == 0


def broken_off(process: Process, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> tuple[int, int]:
    """What a run paid and reserved whose call said a hundred tokens before this ended it."""
    run = submit(workflow("budget: 100\n"), {})
    asking = Asking(process, run.id, process.plan_of(run.id), epoch=0)

    async def half(*_: Any, on_delta: Callable[[str], None], **__: Any) -> None:
        on_delta("word" * 60)
        on_delta("word" * 40)
        raise error

    monkeypatch.setattr("mosaic_tasks.execution.placing.asking.run_agent", half)
    sent = asking.sent("0")
    assert sent is not None
    sent = replace(sent, input_tokens=1_000.0, output_tokens=500.0)
    work: Any = SimpleNamespace(claim=Claim("0", 1, 0, 0))
    agent = process.plan_of(run.id).plan.nodes[0].agent
    assert agent is not None
    with pytest.raises(type(error)):
        asyncio.run(asking._ask_sent(work, agent, {}, sent, Heard(None), {}))
    (account,) = process.guards.read(Query(accounts=((f"run:{run.id}", "total"),))).accounts
    return account


@pytest.mark.parametrize("error", [asyncio.CancelledError(), CallTimeout("it took too long")])
def test_a_call_that_is_broken_off_pays_for_its_prompt_and_what_it_said(
    process: Process, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    assert broken_off(process, monkeypatch, error) == (1_000 * 100 + 100 * 1_000, 0)


def test_a_call_that_could_not_be_asked_pays_nothing(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broken_off(process, monkeypatch, BindingError("no such name")) == (0, 0)


def test_a_call_that_was_taken_from_another_worker_is_a_load_of_that_which_asks(process: Process) -> None:
    run = submit(workflow(), {})
    there, here = "l4/sage@there", f"l4/sage@{process.facts.hostname}"
    decision = Decision(target=there, latency_s=1.0, work_tokens=7.0)
    count_at(there, process.guards, run.id, "0", fence=1, decision=decision)
    asking = Asking(process, run.id, process.plan_of(run.id), epoch=0)
    asking.take_over(Claim("0", 1, 0, 0), Sent(decision, deployment="l4/sage"))
    assert (calls_at(process, there), calls_at(process, here)) == (0, 1)
    asking.release(Claim("0", 1, 0, 0))
    assert calls_at(process, here) == 0


def test_who_lost_a_call_takes_nothing_from_the_load_of_who_has_it_now(process: Process) -> None:
    run = submit(workflow(), {})
    (lost,) = process.ledger.advance(run.id, holder="a-dead-process#1", claim=["0"]).claimed
    mended(process)
    (has,) = process.ledger.advance(run.id, holder=process.claimant(), claim=["0"]).claimed
    asking = Asking(process, run.id, process.plan_of(run.id), epoch=0)
    asking.release(lost)
    assert calls_at(process) == 1
    asking.release(has)
    assert calls_at(process) == 0


def test_who_dies_while_it_asks_leaves_the_call_and_its_load_to_another(process: Process) -> None:
    run = submit(workflow(), {})
    process.ledger.advance(run.id, holder="a-dead-process#1", claim=["0"])
    assert calls_at(process) == 1
    mended(process)
    assert calls_at(process) == 1
    answered(process, run)


def test_readers_of_streams_are_placed_anew_in_each_epoch(process: Process) -> None:
    chain = Workflow.from_yaml(
        "name: chain\nnodes:\n"
        "  first: {agent: {prompt: A question., model: 'pool:sage'}}\n"
        "  second:\n"
        "    agent: {prompt: 'Another question: {{ first }}', model: 'pool:sage'}\n"
        "    edges: {first: stream}\n"
        "output: second\n"
    )
    run = submit(chain, {})
    assert {call.call: call.state for call in run.live_calls()} == {"0": "ready", "1.m": "idle"}
    assert run.unserved_queues() == []  # who waits for chunks needs no worker yet
    answered(process, run)
    run.rerun("first")
    while calls := [call.call for call in run.live_calls() if call.state == "ready"]:
        drive(process, run.id, calls)
    assert run.result(5) == "Forty-two."
    assert calls_at(process) == 0
    assert set(routed(run)) == {"api.replay/sage"}


@pytest.fixture
def announced(redis_client: Redis) -> Iterator[Callable[[str], None]]:
    """Announces another worker, which serves a queue."""
    others: list[Liveness] = []

    def announce(queue: str) -> None:
        others.append(Liveness(redis_client, Keys("mosaic"), expiry_s=10.0, queues=[queue], slots=1))
        others[-1].start()

    yield announce
    for other in others:
        other.stop()


def test_the_queue_of_a_worker_that_has_just_come_is_not_deleted(
    process: Process, announced: Callable[[str], None], redis_client: Redis
) -> None:
    new, dead = "mosaic.direct.new@here", "mosaic.direct.dead@there"
    announced(new)  # after this process has counted who lives
    redis_client.sadd("mosaic:direct", new, dead)
    redis_client.expire("mosaic:direct", 60)
    redis_client.lpush(new, "a message")
    delete_deserted(process)
    assert redis_client.llen(new) == 1
    assert redis_client.smembers("mosaic:direct") == {new.encode()}
    assert redis_client.ttl("mosaic:direct") > 60  # it is still needed
    redis_client.delete(new)


def test_a_straggler_goes_on_where_nobody_can_say_where_else_to_ask(process: Process) -> None:
    def hedge(*_: Any) -> None:
        raise ServerUnavailable("away")

    run = submit(FAN_OUT, {"numbers": []})
    places: Any = SimpleNamespace(hedge=hedge)
    process.places = places
    asking = Asking(process, run.id, process.plan_of(run.id), epoch=0)
    work: Any = SimpleNamespace(claim=SimpleNamespace(call="0.0"), holder="me")
    assert not asking._hedge(work, Sent(Decision()), Heard(None), elapsed_s=60.0)
