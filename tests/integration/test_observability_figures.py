"""Figures of real workers: what they count, that it outlives them, and that it never goes back."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from json_worker import JsonWorker
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

import tests.integration.openai_server as http
from mosaic_queues.keys import Keys
from mosaic_tasks import Run, Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.observability import figures
from mosaic_tasks.observability.exposition import exposition
from mosaic_tasks.observability.gathering import gather
from mosaic_tasks.observability.tallies import Tallies, counted, tallies_key
from tests.integration.collector import collecting
from tests.services import Workers, key_events

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

WAIT_S = 60.0
KEYS = Keys("mosaic")
TOOLS = "tests.integration.run_tools"
CANARY = "sk-canary-0123456789abcdef"


def run_of(nodes: dict[str, Any], output: str) -> Run:
    return submit(Workflow.from_data({"name": "counted", "nodes": nodes, "output": output}))


def page(client: Redis) -> dict[tuple[str, ...], float]:
    """What `mosaic metrics` answers, by name and labels but those of buckets."""
    families = text_string_to_metric_families(exposition(gather(app, client, KEYS)))
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if "le" not in sample.labels
    }


def await_figure(client: Redis, *name: str) -> dict[tuple[str, ...], float]:
    """The page, once a figure is above 0: processes tell with their beat."""
    with key_events(client, "h") as happened:
        while not (found := page(client)).get(name):
            next(event for event in happened if event[1] == tallies_key(KEYS))
    return found


def test_what_workers_count_is_told_by_kind_queue_and_workflow(workers: Workers, redis_client: Redis) -> None:
    env = {"MOSAIC_LIVENESS_S": "1", "MOSAIC_SWEEP_S": "0.1"}
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="prefork", concurrency=2, env=env).wait_ready()
    nodes = {
        "numbers": {"tool": f"{TOOLS}:count", "with": {"n": 3}},
        "doubled": {"tool": f"{TOOLS}:double", "for_each": "${numbers}", "with": {"x": "${item}"}},
        "bad": {
            "tool": f"{TOOLS}:boom",
            "with": {"x": "${doubled}"},
            "retry": {"attempts": 2, "delay": 0.01},
            "on_failure": "skip",
            "detached": True,
        },
    }
    run = run_of(nodes, "doubled")
    assert run.result(WAIT_S) == [0, 2, 4]
    found = await_figure(redis_client, "mosaic_run_seconds_count", "done", "counted")
    assert found["mosaic_run_seconds_count", "done", "counted"] == 1
    workers.stop()
    found = page(redis_client)
    assert found["mosaic_call_seconds_count", "tool", "done"] == 4
    assert found["mosaic_call_seconds_count", "tool", "expanded"] == 1
    assert found["mosaic_call_seconds_count", "close", "done"] == 1
    assert found["mosaic_call_seconds_count", "tool", "retried"] == 1
    assert found["mosaic_call_seconds_count", "tool", "failed"] == 1
    assert found["mosaic_retries_total", "tool"] == 1
    assert found["mosaic_queue_seconds_count", "mosaic.cpu"] >= 1
    assert found["mosaic_sweeps_total",] >= 1
    assert found["mosaic_dead_letters",] == 0


def test_a_worker_that_is_killed_takes_nothing_back_and_its_calls_are_losses(
    workers: Workers, redis_client: Redis, tmp_path: Path
) -> None:
    env = {"MOSAIC_LIVENESS_S": "1", "MOSAIC_SWEEP_S": "0.1"}
    killed = workers.start("mosaic_tasks.app", ["mosaic.cpu"], env=env).wait_ready()
    run_of({"one": {"tool": f"{TOOLS}:one"}}, "one").result(WAIT_S)
    before = await_figure(redis_client, "mosaic_call_seconds_count", "tool", "done")
    run = run_of({"fatal": {"tool": f"{TOOLS}:die_once", "with": {"path": str(tmp_path / "died")}}}, "fatal")
    killed.wait()
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], env=env).wait_ready()
    run.result(WAIT_S)
    after = await_figure(redis_client, "mosaic_losses_total")
    assert after["mosaic_losses_total",] == 1
    counters = [name for name in before if name[0].endswith(("_total", "_count", "_sum"))]
    assert counters
    assert all(after[name] >= before[name] for name in counters)


def test_a_batch_that_is_sent_twice_counts_once(redis_client: Redis) -> None:
    class Forgetful:
        """Sends what it is given, and loses the answer."""

        def eval(self, *words: Any) -> None:
            redis_client.eval(*words)
            if not lost:
                lost.append(words)
                raise ConnectionError("the answer is lost")

    lost: list[Any] = []
    tallies, client = Tallies(), Forgetful()
    tallies.add(figures.LOSSES, amount=3)
    with pytest.raises(ConnectionError):
        tallies.flush(client, KEYS)  # type: ignore[arg-type]
    tallies.add(figures.LOSSES)
    tallies.flush(client, KEYS)  # type: ignore[arg-type]
    assert [tally.amount for tally in counted(redis_client, KEYS)] == [4]


def test_names_beyond_what_is_kept_count_together(redis_client: Redis) -> None:
    tallies = Tallies()
    for number in range(12_000):
        tallies.add(figures.DECIDED, f"w{number}", "n", "gate")
    tallies.flush(redis_client, KEYS)
    found = {tally.values: tally.amount for tally in counted(redis_client, KEYS)}
    assert len(found) == 10_001
    assert found["other", "other", "gate"] == 2_000
    assert sum(found.values()) == 12_000


@contextmanager
def provider(*script: http.Reply) -> Iterator[str]:
    """A server of OpenAI's kind, in a thread of its own."""
    ready, stop, found = threading.Event(), threading.Event(), list[str]()

    async def serve() -> None:
        async with http.serving(*script) as server:
            found.append(server.url)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        ready.wait(WAIT_S)
        yield found[0]
    finally:
        stop.set()
        thread.join()


def test_a_key_is_in_no_span_figure_or_line_though_the_server_repeats_it(
    redis_client: Redis, redis_url: str, tmp_path: Path
) -> None:
    leaky = http.refused(401, f"Incorrect API key provided: {CANARY}", code="invalid_api_key")
    with collecting() as collector, provider(http.said("Fine."), leaky) as url:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "MOSAIC_REDIS_URL": redis_url,
            "MOSAIC_HOME": str(tmp_path / "home"),
            "OPENAI_API_KEY": CANARY,
            "OPENAI_BASE_URL": url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
            "MOSAIC_LIVENESS_S": "1",
        }
        arguments = ["--queues", "mosaic.api.openai", "--pool", "solo", "--log-level", "debug"]
        with JsonWorker(*arguments, environment=environment, cwd=tmp_path) as worker:
            agent = {"agent": {"prompt": "Well?", "model": "openai:m"}}
            fine = run_of({"answer": agent}, "answer")
            assert fine.result(WAIT_S) == "Fine."
            bad = run_of({"answer": agent}, "answer")
            assert bad.wait(WAIT_S).status == "failed"
            line = worker.await_event("call.failed")
            collector.await_run(bad.id, calls=1)
        spans = collector.await_that(lambda spans: sum(s.name == "chat m" for s in spans) == 2 and spans)
        asked = {span.trace: span for span in spans if span.name == "chat m"}
        good, refused = asked[fine.id.replace("-", "")], asked[bad.id.replace("-", "")]
        assert good.attributes["server.address"] == "127.0.0.1"
        assert good.attributes["server.port"] == int(url.split(":")[2].partition("/")[0])
        assert "Fine." in good.attributes["gen_ai.output.messages"]
        assert (refused.is_error, refused.status) == (True, "EngineRefused")
        assert (line["run"], line["node"], line["trace_id"]) == (bad.id, "answer", bad.id.replace("-", ""))
        shown = exposition(gather(app, redis_client, KEYS))
        assert 'mosaic_tokens_total{direction="output",model="openai:m"}' in shown
        told = [json.dumps(worker.log), shown, repr(spans), bad.record().error]
        assert CANARY.encode() not in collector.raw
        assert not [text for text in told if CANARY in text]
