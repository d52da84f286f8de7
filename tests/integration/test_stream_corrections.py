"""What corrects itself: failed producers, repaired answers, nodes that run again while others still do."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from mosaic_queues.errors import DefinitionError
from mosaic_tasks import Run
from mosaic_tasks.execution.inputs import Inputs
from tests.integration import stream_tools as tools
from tests.integration.stream_runs import agent, one_by_one, recorded, run, tool
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
HERE = "tests.integration.correction_tools"


@pytest.fixture
def worker(workers: Workers) -> Workers:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=6).wait_ready()
    return workers


def mine(name: str, **options: Any) -> dict[str, Any]:
    return tool(name, module=HERE, **options)


def test_what_a_failed_producer_said_is_taken_back_for_its_default(
    worker: Workers, redis_client: Redis
) -> None:
    nodes = {
        "numbers": mine("says_and_fails", with_={"n": 3}, on_failure={"default": [7, 8]}),
        "seen": mine("seen", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
        "both": tool("both", with_={"a": "${numbers}", "b": "${seen}"}),
    }
    started = run(nodes, "both")
    tools.await_told(redis_client, "seen", 1)
    tools.open_gate(redis_client, "more")
    assert started.result(30) == [[7, 8], [7, 8]]


def test_items_of_a_failed_producer_are_those_of_its_default(worker: Workers, redis_client: Redis) -> None:
    nodes = {
        "numbers": mine("says_and_fails", with_={"n": 3}, on_failure={"default": [7, 8, 9, 10]}),
        "each": mine("told_item", for_each="${numbers}", with_={"x": "${item}"}),
    }
    started = run(nodes, "each")
    tools.await_told(redis_client, "item", 1)
    tools.open_gate(redis_client, "more")
    assert started.result(30) == [7, 8, 9, 10]


def test_a_list_in_the_default_of_an_agent_is_fanned_out(worker: Workers, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"match": ["zzz"], "text": "{}"}) + "\n")
    nodes = {
        "extract": agent(f"replay:{path}", on_failure={"default": {"revenue": 1, "warnings": ["x", "y"]}}),
        "each": mine("told_item", for_each="${extract.warnings}", with_={"x": "${item}"}),
    }
    assert run(nodes, "each").result(30) == ["x", "y"]


def test_who_reads_a_field_of_a_producer_that_is_skipped_when_it_fails_is_skipped(
    worker: Workers, redis_client: Redis, tmp_path: Path
) -> None:
    wrong = '{"revenue": 1, "profit": "none"}'
    model = recorded(tmp_path / "a.jsonl", (0.0, wrong[:16]), (1.0, wrong[16:]))
    nodes = {
        "extract": agent(model, on_failure="skip"),
        "early": tool("told", with_={"x": "${extract.revenue}"}, edges={"extract": "fields"}),
    }
    started = run(nodes, "early")
    assert tools.await_told(redis_client, "seen", 1) == ["1"]
    assert started.result(30) is None


@pytest.mark.parametrize("way", ["skip", {"default": [5]}])
def test_an_earlier_execution_that_fails_does_not_end_the_run(
    workers: Workers, redis_client: Redis, way: Any
) -> None:
    """The worker has one thread for each of the two; who comes next waits until the first one is over."""
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=2).wait_ready()
    workers.start("mosaic_tasks.app", ["mosaic.io"]).wait_ready()
    nodes = {
        "numbers": mine("first_waits_and_fails", with_={"n": 3}, on_failure=way),
        "seen": mine("seen", with_={"values": "${numbers}"}, edges={"numbers": "stream"}, queue="mosaic.io"),
    }
    started = run(nodes, "seen")
    tools.await_told(redis_client, "begun", 1)
    tools.await_told(redis_client, "seen", 1)
    started.rerun("numbers")
    tools.await_told(redis_client, "begun", 2)
    tools.await_told(redis_client, "seen", 2)
    tools.open_gate(redis_client, "zombie")
    assert run({"next": tool("counted", with_={"name": "next"})}, "next").result(30) == 1
    tools.open_gate(redis_client, "more")
    assert started.result(30) == [0, 1, 2]


def await_reading(started: Run, epoch: int) -> None:
    """Waits until a mailbox of this epoch has read what there is."""
    is_there = False
    for event in started.events(follow=True):
        is_there = is_there or (event.kind == "redo" and event.detail == str(epoch))
        is_mailbox = any(call.endswith(".m") for call in event.calls)
        if is_there and (event.kind == "closed" or (event.kind in ("idle", "done") and is_mailbox)):
            return


@pytest.mark.parametrize("second", ["seen", "b"])
def test_a_fold_that_runs_again_waits_for_a_producer_that_still_runs_again(
    worker: Workers, redis_client: Redis, second: str
) -> None:
    nodes = {
        "a": mine("gated_again", with_={"n": 3, "name": "a"}),
        "b": tool("numbers", with_={"n": 2}),
        "seen": mine("pairs", with_={"x": "${a}", "y": "${b}"}, edges={"a": "stream", "b": "stream"}),
    }
    started = run(nodes, "seen")
    assert started.result(30) == [3, 2]
    started.rerun("a")
    tools.await_told(redis_client, "again", 1)
    started.rerun(second)
    await_reading(started, 2)
    tools.open_gate(redis_client, "a")
    assert started.result(30) == [3, 2]
    assert started.node_output("a") == [100, 101, 102]


def test_a_fan_out_that_runs_again_waits_for_a_producer_that_still_runs_again(
    worker: Workers, redis_client: Redis
) -> None:
    nodes = {
        "a": mine("gated_again", with_={"n": 3, "name": "a"}),
        "each": mine("told_item", for_each="${a}", with_={"x": "${item}"}),
    }
    started = run(nodes, "each")
    assert started.result(30) == [0, 1, 2]
    started.rerun("a")
    tools.await_told(redis_client, "again", 1)
    started.rerun("each")
    await_reading(started, 2)
    tools.open_gate(redis_client, "a")
    assert started.result(30) == [100, 101, 102]


def test_a_fold_of_a_skipped_producer_is_skipped_without_its_finish(worker: Workers) -> None:
    nodes = {
        "numbers": tool("numbers", with_={"n": 3}, when="false"),
        "mean": mine("mean", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
    }
    assert run(nodes, "mean").result(30) is None


def test_what_is_taken_back_while_a_fan_out_waits_for_more(worker: Workers, redis_client: Redis) -> None:
    nodes = {
        "numbers": mine("linger_source", with_={"n": 12}, retry={"attempts": 2, "delay": 0.01}),
        "each": mine(
            "told_item",
            for_each="${numbers}",
            with_={"x": "${item}"},
            batch={"min_items": 5, "max_items": 5, "max_wait": "10s"},
        ),
    }
    started = run(nodes, "each")
    tools.await_told(redis_client, "item", 5)
    tools.open_gate(redis_client, "fail")
    assert started.result(30) == [0, *range(101, 112)]


def test_a_run_that_ends_while_it_is_told_to_run_again_goes_on_whole(
    worker: Workers, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {
        "a": tool("counted", with_={"name": "a"}),
        "slow": tool("gated_numbers", with_={"n": 2, "gate_at": 0}),
        "both": tool("both", with_={"a": "${a}", "b": "${slow}"}),
    }
    started = run(nodes, "both")
    process = started._process
    redo = process.redo

    def late(*args: Any, **options: Any) -> Any:
        started.cancel()
        monkeypatch.undo()
        return redo(*args, **options)

    monkeypatch.setattr(process, "redo", late)
    started.rerun("a")
    tools.open_gate(redis_client, "more", 3)
    assert started.result(20)[1] == [0, 1]


def test_items_that_went_while_their_calls_were_claimed_do_not_end_the_run() -> None:
    """A rerun takes the items of a grown fan-out between the claim of its calls and their reading."""
    nodes = {
        "numbers": tool("numbers", with_={"n": 3}),
        "each": tool("both", for_each="${numbers}", with_={"a": "${item}", "b": 0}),
    }
    started = run(nodes, "each")
    process = started._process
    Inputs(process, started.id, process.plan_of(started.id), epoch=0).fetch(["1.0", "1.1"])


FIELDS_THEN_WRONG = '{"revenue": 1, "warnings": ["a", "b", "c"], "profit": "none"}'


def answered(path: Path, *later: str) -> str:
    """The model of a recording: an answer with a wrong end, which comes late, and what follows on its repair."""
    first, rest = FIELDS_THEN_WRONG[:-18], FIELDS_THEN_WRONG[-18:]
    lines: list[dict[str, Any]] = [
        {"match": ["Extract."], "text": FIELDS_THEN_WRONG, "deltas": [[0, first], [1, rest]]},
        *({"match": ["does not fit"], "text": text} for text in later),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return f"replay:{path}"


def test_what_an_agent_said_is_taken_back_for_its_default(worker: Workers, tmp_path: Path) -> None:
    default = {"revenue": 9, "warnings": ["q"], "profit": 8}
    nodes = {
        "extract": agent(answered(tmp_path / "a.jsonl"), on_failure={"default": default}),
        "each": mine("told_item", for_each="${extract.warnings}", with_={"x": "${item}"}),
        "upper": tool("listed", with_={"texts": "${extract.warnings}"}, edges={"extract": "stream"}),
        "both": tool("both", with_={"a": "${each}", "b": "${upper}"}),
    }
    assert run(nodes, "both").result(30) == [["q"], ["Q"]]


def test_a_fan_out_may_go_over_a_field(worker: Workers, tmp_path: Path) -> None:
    model = answered(tmp_path / "a.jsonl", '{"revenue": 1, "warnings": ["a", "b", "c"], "profit": 2}')
    nodes = {
        "extract": agent(model),
        "each": tool(
            "both",
            for_each="${extract.warnings}",
            with_={"a": "${item}", "b": "${extract.revenue}"},
            edges={"extract": "fields"},
        ),
    }
    assert run(nodes, "each").result(30) == [["a", 1], ["b", 1], ["c", 1]]


def test_a_condition_cannot_read_a_stream() -> None:
    nodes = {
        "numbers": tool("numbers", with_={"n": 3}),
        "totals": tool(
            "totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}, when="numbers | length > 1"
        ),
    }
    with pytest.raises(
        DefinitionError, match="field 'when': it decides on the whole node, so it cannot read 'numbers'"
    ):
        run(nodes, "totals")


def test_each_batch_has_its_attempts(worker: Workers) -> None:
    """Two batches fail once each; two attempts are enough for either."""
    nodes = {
        "numbers": tool("numbers", with_={"n": 6}),
        "kept": one_by_one("two_batches_fail_once", module=HERE, retry={"attempts": 2, "delay": 0.01}),
    }
    assert run(nodes, "kept").result(30) == [0, 1, 2, 3, 4, 5]


def test_objects_of_a_run_live_as_long_as_the_run_that_runs_again(
    workers: Workers, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_REDIS_BYTES", "1000")
    workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
    nodes = {
        "large": tool("large_pieces", with_={"n": 1, "megabytes": 1}),
        "late": tool("gated_numbers", with_={"n": 1, "gate_at": 0}),
        "both": tool("both", with_={"a": "${large}", "b": "${late}"}),
    }
    started = run(nodes, "both")
    tools.open_gate(redis_client, "more")
    started.result(30)
    over_ms = time.time() * 1000 + 1
    redis_client.zadd(
        "mosaic:stored", {started.id: over_ms}, xx=True
    )  # as the sweeper does, by the retention
    started.rerun("late")
    assert redis_client.zscore("mosaic:stored", started.id) > over_ms


def test_the_timeout_of_a_fold_is_that_of_a_batch(worker: Workers) -> None:
    nodes = {
        "numbers": tool("paced", with_={"n": 75, "pause_s": 0.02}),
        "total": tool("total", with_={"values": "${numbers}"}, edges={"numbers": "stream"}, timeout="1s"),
    }
    assert run(nodes, "total").result(30) == sum(range(75))


def test_waiting_for_more_is_no_part_of_the_timeout(worker: Workers) -> None:
    nodes = {
        "numbers": tool("paced", with_={"n": 4, "pause_s": 0.5}),
        "total": tool(
            "total",
            with_={"values": "${numbers}"},
            edges={"numbers": "stream"},
            batch={"min_items": 4, "max_wait": "5s"},
            timeout="1s",
        ),
    }
    assert run(nodes, "total").result(30) == 6
