"""What `mosaic explain` says of streams, fields and growing lists, on a real server with real workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from typer.testing import CliRunner

from mosaic_queues.errors import RunFailed
from mosaic_tasks import Run
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from tests.integration import stream_tools as tools
from tests.integration.stream_runs import SCHEMA, agent, recorded, run, tool
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
LATE_S = 60.0
"""What is said so late is not said in a test: it ends the run before."""

Started = Callable[..., Run]


@pytest.fixture
def worker(workers: Workers) -> Workers:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=6).wait_ready()
    return workers


@pytest.fixture
def held(worker: Workers, redis_client: Redis) -> Iterator[Started]:
    """Starts runs that wait at a gate; they are cancelled after the test."""
    started: list[Run] = []

    def start(nodes: dict[str, Any], output: str) -> Run:
        started.append(run(nodes, output))
        return started[-1]

    yield start
    for each in started:
        each.cancel()
        tools.open_gate(redis_client, "more")


def explained(started: Run) -> list[str]:
    answer = CliRunner().invoke(application, ["explain", started.id], catch_exceptions=False)
    assert answer.exit_code == ExitCode.OK
    return [line for line in answer.stdout.splitlines() if line]


def await_event(started: Run, kind: str, call: str) -> None:
    """Waits until this happened to a call."""
    for event in started.events(follow=True):
        if event.kind == kind and call in event.calls:
            return
    raise AssertionError(f"the run ended without {kind} of {call}")


def test_an_idle_reader_names_its_producer_and_how_much_that_said(held: Started) -> None:
    started = held(
        {
            "numbers": tool("gated_numbers", with_={"n": 4, "gate_at": 2}),
            "totals": tool("totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
            "spelled": tool("spelled", with_={"values": "${totals}"}, edges={"totals": "stream"}),
            "letters": tool("upper", with_={"text": "${spelled}"}, edges={"spelled": "stream"}),
            "last": tool("told", with_={"x": "${letters}"}),
        },
        "last",
    )
    await_text(started, "spelled", 4)
    for call in ("1.m", "2.m", "3.m"):
        await_rest(started, call)
    lines = explained(started)
    assert lines[0].startswith("numbers: it runs in process ")
    assert lines[1:] == [
        "totals: waits for chunks of 'numbers' (running, 2 items so far)",
        "spelled: waits for chunks of 'totals' (running, 2 items so far)",
        "letters: waits for chunks of 'spelled' (running, 4 characters so far)",
        "last: waits for 'letters' (running)",
    ]


def await_text(started: Run, name: str, size: int) -> None:
    """Waits until a node said so many characters."""
    with started.stream(name) as events:
        next(event for event in events if event.offset + len(event.value or "") >= size)


def await_rest(started: Run, call: str) -> None:
    """Waits until a mailbox waits for more."""
    is_idle = False
    for event in started.events(follow=True):
        if call in event.calls:
            is_idle = event.kind == "idle"
        if is_idle and all(live.state == "idle" for live in started.live_calls() if live.call == call):
            return


def test_a_list_that_grows_tells_its_items_so_far(held: Started, redis_client: Redis) -> None:
    started = held(
        {
            "numbers": tool("gated_numbers", with_={"n": 4, "gate_at": 2}),
            "doubled": tool("double", for_each="${numbers}", with_={"x": "${item}"}),
        },
        "doubled",
    )
    await_event(started, "done", "1.0")
    await_event(started, "done", "1.1")
    await_rest(started, "1.m")
    assert explained(started)[1] == (
        "doubled: 2 of 2 items so far done, its list still grows; "
        "waits for chunks of 'numbers' (running, 2 items so far)"
    )


def test_a_reader_of_fields_names_those_that_are_missing(
    held: Started, redis_client: Redis, tmp_path: Path
) -> None:
    model = recorded(
        tmp_path / "a.jsonl", (0.0, '{"revenue": 12, "risk": {"level": "high"},'), (LATE_S, ' "profit": 5}')
    )
    started = held(
        {
            "extract": agent(model),
            "early": tool("told", with_={"x": "${extract.risk.level}"}, edges={"extract": "fields"}),
            "late": tool(
                "both",
                with_={"a": "${extract.revenue}", "b": "${extract.profit}"},
                edges={"extract": "fields"},
            ),
            "last": tool("both", with_={"a": "${early}", "b": "${late}"}),
        },
        "last",
    )
    tools.await_told(redis_client, "seen", 1)
    await_event(started, "done", "1")
    late, last = explained(started)[1:]
    assert late.startswith(
        "late: waits for the field 'profit' of 'extract', which is running and has announced "
    )
    assert set(late.rpartition("announced ")[2].split(" and ")) == {"revenue", "risk.level"}
    assert last == "last: waits for 'late' (waiting)"


def test_a_field_that_can_come_no_more_fails_the_run_and_explain_repeats_why(
    worker: Workers, tmp_path: Path
) -> None:
    started = run(
        {
            "extract": agent(recorded(tmp_path / "a.jsonl", (0.0, '{"revenue": 12}'))),
            "early": tool("told", with_={"x": "${extract.profit}"}, edges={"extract": "fields"}),
        },
        "early",
    )
    with pytest.raises(RunFailed):
        started.result(30)
    [line] = explained(started)
    assert line.startswith("the run failed after ")
    assert "node 'early': BindingError: it can no longer come: " in line
    assert "node 'extract' has no 'profit' in its output; it has: revenue" in line


def test_a_producer_that_was_skipped_skips_its_readers_and_is_counted(worker: Workers) -> None:
    started = run(
        {
            "one": tool("counted", with_={"name": "one"}),
            "numbers": tool("numbers", with_={"n": 4}, when="1 > 2", detached=True),
            "totals": tool(
                "totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}, detached=True
            ),
        },
        "one",
    )
    started.result(30)
    [line] = explained(started)
    assert line.startswith("the run is done after ")
    assert line.endswith(": 1 node done, 2 skipped")


def test_a_producer_that_failed_is_named_with_its_error(worker: Workers) -> None:
    started = run(
        {
            "numbers": tool("breaks_once", with_={"n": 4, "after": 1}),
            "totals": tool("totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
        },
        "totals",
    )
    with pytest.raises(RunFailed):
        started.result(30)
    [line] = explained(started)
    assert "node 'numbers': ToolError: RuntimeError: breaks once" in line


def test_a_reader_whose_queue_has_no_worker_names_the_queue(held: Started, redis_client: Redis) -> None:
    started = held(
        {
            "numbers": tool("gated_numbers", with_={"n": 4, "gate_at": 2}),
            "each": tool("double", for_each="${numbers}", with_={"x": "${item}"}),
            "totals": tool(
                "totals",
                with_={"values": "${numbers}"},
                edges={"numbers": "stream"},
                queue="mosaic.nobody",
            ),
            "both": tool("both", with_={"a": "${each}", "b": "${totals}"}),
        },
        "both",
    )
    tools.await_told(redis_client, "doubled", 2)
    [line] = [line for line in explained(started) if line.startswith("totals: ")]
    assert line == (
        "totals: it waits in queue 'mosaic.nobody', which no worker serves; "
        "start one with: mosaic worker --queues mosaic.nobody"
    )


def test_a_misspelt_field_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    path = tmp_path / "misspelt.yaml"
    path.write_text(MISSPELT)
    answer = CliRunner().invoke(application, ["validate", str(path)], catch_exceptions=False)
    assert answer.exit_code == ExitCode.USAGE
    assert "the output of 'extract' has no 'revenu'" in answer.stderr
    assert "revenue" in answer.stderr


MISSPELT = f"""
name: misspelt
nodes:
  extract: {{agent: {{prompt: Extract., output: {SCHEMA}, model: extractive}}}}
  early:
    tool: tests.integration.stream_tools:told
    with: {{x: "${{extract}}"}}
    edges: {{extract: {{fields: [revenu]}}}}
output: early
"""
