"""Calls that the router places: recorded, published, run where they were sent, counted and paid, on a real server."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from redis import Redis

from mosaic_queues.errors import RunFailed
from mosaic_queues.settings import settings
from mosaic_routing.guards import Query
from mosaic_tasks import Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.placing.asking import Asking
from mosaic_tasks.execution.process import process_for
from tests.services import Workers, key_events

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model pool of one model that two providers answer for, at unlike prices, from recordings."""
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"text": "Forty-two.", "match": ["question"]}) + "\n")
    pool = tmp_path / "models.yaml"
    offer = f"{{engine: replay, model: {json.dumps(str(answers))}"
    pool.write_text(
        "models:\n"
        "  sage:\n"
        "    capabilities: {wisdom: 0.9}\n"
        "    context_tokens: 4096\n"
        "    providers:\n"
        f"      - {offer}, provider: replay, price: {{input: 100, output: 1000}}}}\n"
    )
    monkeypatch.setenv("MOSAIC_MODELS", str(pool))
    settings.cache_clear()
    return pool


def workflow(extra: str = "") -> Workflow:
    return Workflow.from_yaml(
        "name: asks\n"
        f"{extra}"
        "nodes:\n"
        "  answer: {agent: {prompt: A question about everything., requires: {capability: wisdom}}}\n"
        "output: answer\n"
    )


@pytest.mark.parametrize("pool", ["prefork", "async"])
def test_a_call_is_answered_where_the_router_sent_it(models: Path, workers: Workers, pool: str) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.api.replay"], pool=pool).wait_ready()
    run = submit(workflow(), {})
    assert run.result(30) == "Forty-two."
    process = process_for(app)
    sent = Asking(process, run.id, process.plan_of(run.id), epoch=0).sent("0")
    assert sent is not None
    assert (sent.deployment, sent.model) == ("api.replay/sage", "sage")
    (event,) = [event for event in run.events() if event.kind == "routed"]
    assert (event.calls, event.target) == (("0",), "api.replay/sage")
    read = process.guards.read(Query(leases=("target:api.replay/sage",)))
    assert read.leases == ((0, 0),)


def test_what_it_cost_is_what_the_pool_says(models: Path, workers: Workers) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.api.replay"], pool="async").wait_ready()
    run = submit(workflow("budget: 1\n"), {})
    run.result(30)
    (used,) = [event for event in run.events() if event.kind == "usage"]
    read_tokens, written = used.tokens
    assert used.cost_usd == pytest.approx((100 * read_tokens + 1000 * written) / 1e6)


def test_a_run_whose_budget_does_not_suffice_fails_and_says_so(models: Path, workers: Workers) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.api.replay"], pool="async").wait_ready()
    run = submit(workflow("budget: 0.000001\n"), {})
    with pytest.raises(RunFailed, match=f"the budget 'run:{run.id}' does not suffice for the call"):
        run.result(30)


def test_a_call_waits_for_a_worker_that_can_answer_it(models: Path, workers: Workers) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="solo").wait_ready()
    run = submit(workflow(), {})
    next(event for event in run.events(follow=True) if event.kind == "routed")
    (told,) = run.explain()
    assert "the router has no place for it: no model here satisfies capability wisdom" in str(told)
    assert "api.replay (no worker asks this provider)" in str(told)
    workers.start("mosaic_tasks.app", ["mosaic.api.replay"], pool="async").wait_ready()
    assert run.result(30) == "Forty-two."


def test_a_run_past_its_deadline_fails_and_says_so(models: Path, workers: Workers) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="solo").wait_ready()
    run = submit(workflow(), {}, deadline_s=0.5)
    with pytest.raises(RunFailed, match=r"not finished within its deadline of 0\.5 s"):
        run.result(30)


def test_a_straggler_is_asked_elsewhere_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> None:
    quick, stuck = tmp_path / "quick.jsonl", tmp_path / "stuck.jsonl"
    last = {"text": "At last.", "match": ["number 59"]}
    rest = [{"text": "Soon.", "match": [f"number {number}."]} for number in range(59)]
    quick.write_text("".join(json.dumps(line) + "\n" for line in (last, *rest)))
    stuck.write_text("".join(json.dumps(line) + "\n" for line in ({**last, "first_token_s": 600}, *rest)))
    fast = "speed: {prefill_tokens_s: 1000000, decode_tokens_s: 100000}"
    slow = "speed: {prefill_tokens_s: 1000, decode_tokens_s: 1000}"
    pool = tmp_path / "models.yaml"
    pool.write_text(
        "models:\n  sage:\n    context_tokens: 4096\n    providers:\n"
        f"      - {{engine: replay, model: {json.dumps(str(stuck))}, provider: one, {fast}}}\n"
        f"      - {{engine: replay, model: {json.dumps(str(quick))}, provider: other, {slow}}}\n"
    )
    monkeypatch.setenv("MOSAIC_MODELS", str(pool))
    settings.cache_clear()
    queues = ["mosaic.api.one", "mosaic.api.other", "mosaic.cpu"]
    workers.start("mosaic_tasks.app", queues, pool="async", concurrency=4).wait_ready()
    asks = Workflow.from_yaml(
        "name: asks\ninputs: {numbers: array}\nnodes:\n"
        "  answers: {for_each: '${inputs.numbers}', agent: {prompt: 'number {{ item }}.', model: 'pool:sage'}}\n"
        "output: answers\n"
    )
    run = submit(asks, {"numbers": list(range(60))})
    assert run.result(60) == ["Soon."] * 59 + ["At last."]
    targets = {event.target for event in run.events() if event.kind == "routed" and event.calls == ("0.59",)}
    assert targets == {"api.one/sage"}
    hedged = [(event.calls, event.target) for event in run.events() if event.kind == "hedged"]
    assert (("0.59.~",), "api.other/sage") in hedged  # on a busy machine others take long too


def test_a_reader_of_a_stream_is_placed_like_any_call(models: Path, workers: Workers) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.api.replay", "mosaic.cpu"], pool="async").wait_ready()
    chain = Workflow.from_yaml(
        "name: chain\nnodes:\n"
        "  first: {agent: {prompt: A question., model: 'pool:sage'}}\n"
        "  second:\n"
        "    agent: {prompt: 'Another question: {{ first }}', model: 'pool:sage'}\n"
        "    edges: {first: stream}\n"
        "output: second\n"
    )
    run = submit(chain, {})
    assert run.result(30) == "Forty-two."
    targets = {event.calls[0]: event.target for event in run.events() if event.kind == "routed"}
    assert targets == {"0": "api.replay/sage", "1.m": "api.replay/sage"}


def test_what_a_cancelled_run_had_sent_is_no_load_any_more(
    models: Path, workers: Workers, redis_client: Redis
) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="solo").wait_ready()
    stopped = workers.start("mosaic_tasks.app", ["mosaic.api.replay"], pool="solo")
    stopped.wait_ready()
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        run = submit(workflow(), {})
        next(event for event in run.events(follow=True) if event.kind == "routed")
        guards = process_for(app).guards
        assert guards.read(Query(leases=("target:api.replay/sage",))).leases[0][0] == 1
        with key_events(redis_client, "zh") as happened:
            run.cancel("enough")
            while guards.read(Query(leases=("target:api.replay/sage",))).leases[0][0]:
                next(happened)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)


def test_a_dead_deployment_costs_one_try_and_calls_go_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"text": "Alive.", "match": ["number"]}) + "\n")
    cheap, dear = "price: {input: 0.1, output: 0.1}", "price: {input: 1, output: 1}"
    pool = tmp_path / "models.yaml"
    pool.write_text(
        "limits: {breaker: {open_s: 600, open_max_s: 600}}\n"
        "models:\n  sage:\n    context_tokens: 4096\n    providers:\n"
        f"      - {{engine: openai, model: gone, provider: openai, {cheap}}}\n"
        f"      - {{engine: replay, model: {json.dumps(str(answers))}, provider: replay, {dear}}}\n"
    )
    monkeypatch.setenv("MOSAIC_MODELS", str(pool))
    settings.cache_clear()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        dead = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
        queues = ["mosaic.api.openai", "mosaic.api.replay", "mosaic.cpu"]
        workers.start("mosaic_tasks.app", queues, pool="async", env=dead).wait_ready()
        asks = Workflow.from_yaml(
            "name: asks\nobjective: cost\ninputs: {number: integer}\nnodes:\n"
            "  answer:\n    agent: {prompt: 'number {{ inputs.number }}', model: 'pool:sage'}\n"
            "    retry: {attempts: 2, delay: 10ms}\noutput: answer\n"
        )
        runs = []
        for number in range(12):
            runs.append(submit(asks, {"number": number}))
            assert runs[-1].result(30) == "Alive."
    sent = [event.target for run in runs for event in run.events() if event.kind == "routed"]
    assert sent.count("api.openai/sage") == 1
    failed = [event for run in runs for event in run.events() if event.kind == "retry"]
    assert len(failed) == 1


def test_limits_that_are_used_up_hold_calls_back_until_they_are_not(models: Path, workers: Workers) -> None:
    models.write_text(
        models.read_text()
        + "limits: {providers: {api.replay: {requests_per_minute: 120, burst_minutes: 0.01}}}\n"
    )
    workers.start("mosaic_tasks.app", ["mosaic.api.replay", "mosaic.cpu"], pool="async").wait_ready()
    asks = workflow()
    runs = [submit(asks, {}) for _ in range(5)]
    assert [run.result(30) for run in runs] == ["Forty-two."] * 5
    usages = sorted(event.at_ms for run in runs for event in run.events() if event.kind == "usage")
    assert usages[-1] - usages[0] >= 1500  # two a second, by the server's clock
