"""One trace a run, at a real collector: what real workers in several processes tell of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from mosaic_tasks import Run, Workflow, submit
from mosaic_tasks.execution.process import close_all
from mosaic_tasks.observability.origin import requested
from tests.integration.collector import Collector, Seen, collecting
from tests.integration.mixture_runs import ask, says
from tests.integration.test_hedging_workers import ASKS, Site, site
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

__all__ = ["site"]
WAIT_S = 60.0
QUEUES = ("mosaic.cpu", "mosaic.api.replay")
TOOLS = "tests.integration.run_tools"
STREAMS = "tests.integration.stream_tools"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as started:
        yield started


@pytest.fixture
def tracing(collector: Collector) -> dict[str, str]:
    """The environment of workers that trace."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "MOSAIC_LIVENESS_S": "1",
        "MOSAIC_SWEEP_S": "0.1",
    }


def run_of(nodes: dict[str, Any], output: str) -> Run:
    return submit(Workflow.from_data({"name": "traced", "nodes": nodes, "output": output}))


def by_call(spans: list[Seen]) -> dict[tuple[str, int], Seen]:
    return {
        (span.attributes["mosaic.call"], span.attributes["mosaic.attempt"]): span
        for span in spans
        if span.name.startswith("call ")
    }


def root_of(spans: list[Seen]) -> Seen:
    (root,) = [span for span in spans if not span.parent]
    return root


def is_linked(span: Seen, other: Seen) -> bool:
    return (other.trace, other.id) in span.links


def is_within(span: Seen, other: Seen) -> bool:
    return other.start_ns <= span.start_ns <= span.end_ns <= other.end_ns


def check_tree(spans: list[Seen]) -> None:
    """One root, and of each other span the parent is there, as are those of its run that it is linked to."""
    ids = [span.id for span in spans]
    assert len(ids) == len(set(ids))
    assert len([span for span in spans if not span.parent]) == 1
    for span in spans:
        assert not span.parent or span.parent in ids, f"the parent of {span} is missing"
        assert {other for trace, other in span.links if trace == span.trace} <= set(ids), span
        assert span.start_ns <= span.end_ns


def trace_of(run: Run, collector: Collector) -> list[Seen]:
    return [span for span in collector.spans if span.trace == run.id.replace("-", "")]


def test_a_run_over_several_processes_is_one_trace_with_its_tree_and_links(
    workers: Workers, collector: Collector, tracing: dict[str, str]
) -> None:
    env = {**tracing, "MOSAIC_CONTINUATION_CALLS": "0"}
    workers.start("mosaic_tasks.app", QUEUES, pool="prefork", concurrency=2, env=env)
    workers.start("mosaic_tasks.app", ["other"], env=env)
    for worker in workers._started:
        worker.wait_ready()
    nodes = {
        "numbers": {"tool": f"{TOOLS}:count", "with": {"n": 3}},
        "doubled": {"tool": f"{TOOLS}:double", "for_each": "${numbers}", "with": {"x": "${item}"}},
        "sum": {"tool": f"{TOOLS}:total", "with": {"values": "${doubled}"}, "queue": "other"},
    }
    run = run_of(nodes, "sum")
    assert run.result(WAIT_S) == 6
    spans = collector.await_run(run.id, calls=7)
    check_tree(spans)
    root, calls = root_of(spans), by_call(spans)
    assert (root.name, root.attributes["mosaic.status"], root.is_error) == ("run traced", "done", False)
    assert {call for call, _ in calls} == {"0", "1", "1.0", "1.1", "1.2", "1.c", "2"}
    assert all(span.parent == root.id for span in calls.values())
    assert {span.pid for span in calls.values()} >= {calls["2", 1].pid, calls["0", 1].pid}
    assert calls["2", 1].pid != calls["0", 1].pid
    assert is_linked(calls["1.1", 1], calls["0", 1])
    assert is_linked(calls["2", 1], calls["1.c", 1])
    assert 0 <= calls["2", 1].attributes["mosaic.queue.seconds"] < WAIT_S
    assert calls["2", 1].attributes["mosaic.queue.name"] == "other"


def test_a_call_whose_process_dies_is_told_twice_and_its_reader_knows_the_one_that_counts(
    workers: Workers, collector: Collector, tracing: dict[str, str], tmp_path: Path
) -> None:
    workers.start("mosaic_tasks.app", QUEUES, pool="prefork", concurrency=2, env=tracing).wait_ready()
    nodes = {
        "fatal": {"tool": f"{TOOLS}:die_once", "with": {"path": str(tmp_path / "died")}},
        "after": {"tool": f"{TOOLS}:echo", "with": {"value": "${fatal}"}},
    }
    run = run_of(nodes, "after")
    run.result(WAIT_S)
    spans = collector.await_run(run.id, calls=3)
    check_tree(spans)
    calls = by_call(spans)
    lost, done, after = calls["0", 1], calls["0", 2], calls["1", 1]
    assert (lost.attributes["mosaic.outcome"], lost.is_error, lost.status) == ("lost", True, "CallLost")
    assert (done.attributes["mosaic.outcome"], done.is_error) == ("done", False)
    assert lost.id != done.id
    assert lost.pid != done.pid  # by the sweeper: who died tells nothing
    assert is_linked(after, done)
    assert not is_linked(after, lost)


def test_a_run_that_runs_again_has_a_root_whether_it_was_over_or_not(
    workers: Workers, collector: Collector, tracing: dict[str, str], tmp_path: Path
) -> None:
    env = {**tracing, "MOSAIC_SWEEP_S": "1"}  # so that it runs again before anybody has seen its end
    workers.start("mosaic_tasks.app", QUEUES, pool="threads", concurrency=2, env=env).wait_ready()
    over = run_of({"one": {"tool": f"{TOOLS}:one"}}, "one")
    os.mkfifo(tmp_path / "pipe")
    nodes = {
        "one": {"tool": f"{TOOLS}:one"},
        "held": {"tool": f"{TOOLS}:read", "with": {"path": str(tmp_path / "pipe")}},
        "sum": {"tool": f"{TOOLS}:total", "with": {"values": ["${one}"]}, "after": ["held"]},
    }
    running = run_of(nodes, "sum")
    for _ in range(2):
        over.result(WAIT_S)
        over.rerun("one")
    next(event for event in running.events(follow=True) if event.kind == "done")
    running.rerun("one")
    (tmp_path / "pipe").write_text("here")
    for run in (over, running):
        run.result(WAIT_S)
        collector.await_run(run.id)
    workers.stop()
    for run in (over, running):
        check_tree(trace_of(run, collector))
    assert [span.name for span in trace_of(running, collector) if "run" in span.name] == ["run traced"]
    assert "rerun traced" in {span.name for span in trace_of(over, collector)}


def test_a_call_that_is_asked_twice_is_told_twice(
    site: Site,
    workers: Workers,
    collector: Collector,
    tracing: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in tracing.items():
        monkeypatch.setenv(name, value)
    for name in ("one", "other"):
        site.start(name)
    run = site.submit(ASKS)
    site.await_asked("one", "other")
    site.open("other")
    run.result(WAIT_S)
    site.await_usages(run, 2)
    collector.await_run(run.id, calls=2)
    close_all()  # this process has told of the submission
    workers.stop()
    spans = trace_of(run, collector)
    check_tree(spans)
    assert sum(span.name.startswith("chat ") for span in spans) == 2


def test_a_cancelled_run_tells_of_what_it_cut_off(
    workers: Workers, collector: Collector, tracing: dict[str, str], tmp_path: Path
) -> None:
    env = {**tracing, "MOSAIC_REPLAY_SPEED": "1"}
    workers.start("mosaic_tasks.app", QUEUES, pool="async", concurrency=4, env=env).wait_ready()
    slow = says(tmp_path, "slow", "word " * 9999, tokens_per_s=10.0)
    agent = {"agent": {"prompt": "Well?", "model": slow}}
    run = run_of({"one": agent, "other": {**agent, "detached": True}}, "one")
    claimed = (event for event in run.events(follow=True) if event.kind == "claimed")
    calls = set[str]()
    while len(calls) < 2:
        calls |= set(next(claimed).calls)
    run.cancel()
    collector.await_run(run.id, calls=2)
    workers.stop()
    spans = trace_of(run, collector)
    check_tree(spans)
    assert root_of(spans).attributes["mosaic.status"] == "cancelled"


def test_a_failure_tells_its_kind_and_nothing_that_it_quotes(
    workers: Workers, collector: Collector, tracing: dict[str, str]
) -> None:
    workers.start("mosaic_tasks.app", QUEUES, env=tracing).wait_ready()
    nodes = {
        "bad": {
            "tool": f"{TOOLS}:boom_on",
            "with": {"x": 4711, "bad": 4711},
            "retry": {"attempts": 2, "delay": 0.01},
        }
    }
    run = run_of(nodes, "bad")
    assert run.wait(WAIT_S).status == "failed"
    spans = collector.await_run(run.id, calls=2)
    calls = by_call(spans)
    assert root_of(spans).is_error
    assert [calls["0", n].attributes["mosaic.outcome"] for n in (1, 2)] == ["retried", "failed"]
    assert calls["0", 2].events == [("exception", {"exception.type": "ValueError"})]
    assert b"4711" not in collector.raw
    assert "4711" in run.record().error


def test_a_mixture_tells_whom_it_heard_and_whom_it_cut_off(
    workers: Workers, collector: Collector, tracing: dict[str, str], tmp_path: Path, redis_client: Redis
) -> None:
    workers.start(
        "mosaic_tasks.app", QUEUES, pool="async", concurrency=32, env={**tracing, "MOSAIC_REPLAY_SPEED": "1"}
    ).wait_ready()
    fast = [
        {"name": f"e{n}", "model": says(tmp_path, f"e{n}", '{"answer": "18"}', tokens_per_s=1000.0)}
        for n in range(2)
    ]
    slow = {
        "name": "slow",
        "model": says(tmp_path, "slow", '{"answer": "18"} ' + "word " * 9999, tokens_per_s=1.0),
    }
    run = ask([*fast, slow], gate={"kind": "margin", "margin": 2, "confidence": None}, waves=3)
    assert run.result(WAIT_S)["answer"] == 18
    trace = run.id.replace("-", "")
    spans = collector.await_that(
        lambda spans: (
            {"call answer.slow", "run mixes"} <= {s.name for s in spans if s.trace == trace} and spans
        )
    )
    (decided,) = [span for span in spans if span.name == "decide answer"]
    calls = {span.name: span for span in spans if span.name.startswith("call answer.")}
    assert decided.attributes["mosaic.mixture.by"] == "gate"
    assert decided.attributes["mosaic.mixture.cut"] == 1
    assert all(is_linked(decided, calls[f"call answer.e{n}"]) for n in range(2))
    assert decided.parent in {span.id for span in spans if span.name == "call answer"}
    assert calls["call answer.slow"].attributes["mosaic.outcome"] == "dropped"
    (asked,) = [span for span in spans if span.parent == calls["call answer.e0"].id]
    told = asked.attributes
    assert (told["gen_ai.operation.name"], told["gen_ai.provider.name"]) == ("chat", "replay")
    assert told["gen_ai.usage.output_tokens"] > 0
    assert told["gen_ai.response.finish_reasons"] == ["stop"]
    assert is_within(asked, calls["call answer.e0"])
    assert b"How many?" not in collector.raw


def test_prompts_and_answers_are_told_where_the_standard_s_variable_asks_for_them(
    workers: Workers, collector: Collector, tracing: dict[str, str], tmp_path: Path
) -> None:
    content = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}
    workers.start("mosaic_tasks.app", QUEUES, env={**tracing, **content}).wait_ready()
    node = {"agent": {"prompt": "Why so late?", "model": says(tmp_path, "a", "The train was late.")}}
    run = run_of({"answer": node}, "answer")
    run.result(WAIT_S)
    spans = collector.await_that(lambda spans: any(span.name.startswith("chat") for span in spans))
    (asked,) = [span for span in spans if span.name.startswith("chat")]
    assert "Why so late?" in asked.attributes["gen_ai.input.messages"]
    assert "The train was late." in asked.attributes["gen_ai.output.messages"]


def test_a_reader_of_a_stream_is_linked_to_the_attempts_that_wrote_it(
    workers: Workers, collector: Collector, tracing: dict[str, str]
) -> None:
    workers.start("mosaic_tasks.app", QUEUES, pool="threads", concurrency=4, env=tracing).wait_ready()
    nodes = {
        "numbers": {
            "tool": f"{STREAMS}:breaks_once",
            "with": {"n": 4, "after": 2},
            "retry": {"attempts": 2, "delay": 0.01},
        },
        "totals": {
            "tool": f"{STREAMS}:totals",
            "with": {"values": "${numbers}"},
            "edges": {"numbers": "stream"},
        },
    }
    run = run_of(nodes, "totals")
    run.result(WAIT_S)
    calls = by_call(collector.await_run(run.id, calls=3))
    writers = [calls["0", 1], calls["0", 2]]
    readers = [span for span in collector.spans if span.name == "call totals"]
    assert [writer.attributes["mosaic.outcome"] for writer in writers] == ["retried", "done"]
    for writer in writers:
        assert any(is_linked(reader, writer) for reader in readers)
    assert sum(reader.attributes.get("mosaic.stream.chunks", 0) for reader in readers) > 0


def test_a_web_app_s_trace_is_linked_from_the_run_s_root(
    workers: Workers, collector: Collector, tracing: dict[str, str]
) -> None:
    workers.start("mosaic_tasks.app", QUEUES, env=tracing).wait_ready()
    token = requested.set(f"00-{'ab' * 16}-{'cd' * 8}-01")
    try:
        run = run_of({"one": {"tool": f"{TOOLS}:one"}}, "one")
    finally:
        requested.reset(token)
    run.result(WAIT_S)
    assert root_of(collector.await_run(run.id)).links == [("ab" * 16, "cd" * 8)]


def test_a_submission_is_a_span_of_its_run(
    workers: Workers, collector: Collector, tracing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_BSP_SCHEDULE_DELAY"):
        monkeypatch.setenv(name, tracing[name])
    workers.start("mosaic_tasks.app", QUEUES).wait_ready()
    run = run_of({"one": {"tool": f"{TOOLS}:one"}}, "one")
    trace = run.id.replace("-", "")
    spans = collector.await_that(lambda spans: [s for s in spans if s.name == "submit traced"] and trace)
    assert {span.trace for span in spans if span.name == "submit traced"} == {trace}


def test_a_collector_that_is_dead_keeps_nobody_waiting(workers: Workers) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_MAX_QUEUE_SIZE": "4"}
    env |= {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2", "OTEL_BSP_SCHEDULE_DELAY": "10"}
    worker = workers.start("mosaic_tasks.app", QUEUES, env=env).wait_ready()
    nodes = {
        "numbers": {"tool": f"{TOOLS}:count", "with": {"n": 50}},
        "doubled": {"tool": f"{TOOLS}:double", "for_each": "${numbers}", "with": {"x": "${item}"}},
    }
    assert len(run_of(nodes, "doubled").result(WAIT_S)) == 50
    workers.stop()
    assert worker.returncode == 0
