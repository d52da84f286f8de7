"""Partial outputs start the next nodes: on a real server, with real workers."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from mosaic_queues.errors import InputError, RunFailed
from tests.integration import stream_tools as tools
from tests.integration.stream_runs import agent, failed_once, one_by_one, recorded, run, tool
from tests.services import Workers, key_events

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
SIZE = 1000


@pytest.fixture
def worker(workers: Workers) -> Workers:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=6).wait_ready()
    return workers


def test_a_fold_starts_before_its_producer_ends(worker: Workers, redis_client: Redis) -> None:
    started = run(
        {
            "numbers": tool("gated_numbers", with_={"n": 4, "gate_at": 2}),
            "totals": tool("totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
        },
        "totals",
    )
    tools.await_told(redis_client, "totals", 1)
    assert started.record().status == "running"
    tools.open_gate(redis_client, "more")
    assert started.result(30) == [0, 1, 3, 6]


def test_calls_of_a_fan_out_start_while_its_list_grows(worker: Workers, redis_client: Redis) -> None:
    started = run(
        {
            "numbers": tool("gated_numbers", with_={"n": 4, "gate_at": 2}),
            "doubled": tool("double", for_each="${numbers}", with_={"x": "${item}"}),
        },
        "doubled",
    )
    assert sorted(tools.await_told(redis_client, "doubled", 2)) == ["0", "1"]
    tools.open_gate(redis_client, "more")
    assert started.result(30) == [0, 2, 4, 6]


def test_an_empty_stream_ends(worker: Workers) -> None:
    nodes = {
        "numbers": tool("numbers", with_={"n": 0}),
        "doubled": tool("double", for_each="${numbers}", with_={"x": "${item}"}),
        "totals": tool("totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
        "both": tool("both", with_={"a": "${doubled}", "b": "${totals}"}),
    }
    assert run(nodes, "both").result(30) == [[], []]


@pytest.mark.parametrize("producer", ["numbers", "async_numbers"])
def test_streams_chain_through_folds_and_fan_outs(worker: Workers, producer: str) -> None:
    nodes = {
        "numbers": tool(producer, with_={"n": SIZE}),
        "doubled": tool("double", for_each="${numbers}", with_={"x": "${item}"}),
        "totals": tool("totals", with_={"values": "${doubled}"}, edges={"doubled": "stream"}),
        "spelled": tool("spelled", with_={"values": "${totals}"}, edges={"totals": "stream"}),
        "total": tool("total", with_={"values": "${totals}"}, edges={"totals": "stream"}),
        "both": tool("both", with_={"a": "${spelled}", "b": "${total}"}),
    }
    totals = [number * (number + 1) for number in range(SIZE)]
    spelled = "".join(f"{number}," for number in totals) + f"({SIZE})"
    assert run(nodes, "both").result(60) == [spelled, sum(totals)]


def test_a_node_may_stream_from_two_and_wait_for_a_third(worker: Workers, redis_client: Redis) -> None:
    nodes = {
        "a": tool("numbers", with_={"n": 5}),
        "mark": tool("gated_numbers", with_={"n": 1, "gate_at": 0}),
        "spelled": tool("spelled", with_={"values": "${a}", "mark": "-${mark[0]}-"}, edges={"a": "stream"}),
    }
    started = run(nodes, "spelled")
    tools.open_gate(redis_client, "more")
    assert started.result(30) == "0-0-1-0-2-0-3-0-4-0-(5)"


def test_a_batch_has_at_most_and_at_least_so_many_items(worker: Workers) -> None:
    nodes = {
        "numbers": tool("numbers", with_={"n": 10}),
        "sized": tool(
            "sized",
            with_={"values": "${numbers}"},
            edges={"numbers": "stream"},
            batch={"min_items": 3, "max_items": 4},
        ),
    }
    sizes = run(nodes, "sized").result(30)
    assert sum(sizes) == 10
    assert all(3 <= size <= 4 for size in sizes[:-1])


def test_a_failed_batch_is_tried_again_from_the_last_commit(worker: Workers) -> None:
    nodes = {
        "numbers": tool("numbers", with_={"n": 6}),
        "kept": one_by_one("third_batch_fails_once", retry={"attempts": 2, "delay": 0.01}),
    }
    assert run(nodes, "kept").result(30) == [0, 1, 2, 3, 4, 5]


def test_a_batch_that_fails_for_good_fails_the_run_and_says_where(worker: Workers) -> None:
    nodes = {
        "numbers": tool("numbers", with_={"n": 6}),
        "kept": one_by_one("third_batch_fails_once"),
    }
    with pytest.raises(RunFailed, match="node 'kept': ToolError: RuntimeError: the third batch fails"):
        run(nodes, "kept").result(30)


def test_a_field_starts_its_readers_while_the_answer_is_written(
    worker: Workers, redis_client: Redis, tmp_path: Path
) -> None:
    model = recorded(
        tmp_path / "answer.jsonl",
        (0.0, 'Here: ```json\n{"revenue": 12, "ri'),
        (0.1, 'sk": {"level": "high"},'),
        (4.0, ' "profit": 5}\n```'),
    )
    nodes = {
        "extract": agent(model),
        "early": tool(
            "told", with_={"x": ["${extract.revenue}", "${extract.risk.level}"]}, edges={"extract": "fields"}
        ),
        "late": tool("both", with_={"a": "${extract.profit}", "b": "${early}"}),
    }
    started = run(nodes, "late")
    assert tools.await_told(redis_client, "seen", 1) == ["[12, 'high']"]
    assert next(call.call for call in started.live_calls() if call.state == "claimed") == "0"
    assert started.result(30) == [5, [12, "high"]]


def test_elements_of_a_list_are_items_while_the_answer_is_written(
    worker: Workers, redis_client: Redis, tmp_path: Path
) -> None:
    model = recorded(
        tmp_path / "answer.jsonl", (0.0, '{"revenue": 1, "warnings": ["a", "b",'), (4.0, ' "c"]}')
    )
    nodes = {
        "extract": agent(model),
        "each": tool("told", for_each="${extract.warnings}", with_={"x": "${item}"}),
        "upper": tool("listed", with_={"texts": "${extract.warnings}"}, edges={"extract": "stream"}),
        "both": tool("both", with_={"a": "${each}", "b": "${upper}"}),
    }
    started = run(nodes, "both")
    assert sorted(tools.await_told(redis_client, "seen", 2)) == ["a", "b"]
    assert started.record().status == "running"
    assert started.result(30) == [["a", "b", "c"], ["A", "B", "C"]]


def test_a_part_that_never_came_fails_its_reader_at_once_and_says_what_there_is(
    worker: Workers, tmp_path: Path
) -> None:
    model = recorded(tmp_path / "answer.jsonl", (0.0, '{"revenue": 12}'))
    nodes = {
        "extract": agent(model),
        "early": tool("told", with_={"x": "${extract.profit}"}, edges={"extract": "fields"}),
    }
    with pytest.raises(
        RunFailed,
        match=r"node 'early': BindingError: .*node 'extract' has no 'profit' in its output; it has: revenue",
    ):
        run(nodes, "early").result(30)


def test_an_agent_reads_a_stream_batch_by_batch(worker: Workers) -> None:
    nodes = {
        "numbers": tool("sentences", with_={"n": 3}),
        "writer": {
            "agent": {"prompt": "FACTS:\n{{ numbers | join('\n') }}", "model": "extractive"},
            "edges": {"numbers": "stream"},
            "batch": {"max_items": 1},
            "queue": "mosaic.cpu",
        },
    }
    assert run(nodes, "writer").result(30) == "\n\n".join(tools.sentences(3))


def test_a_text_is_read_sentence_by_sentence(worker: Workers, tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    text = "# Year\n\nIt was good, e.g. in May. Sales rose by 1.5 %. The end"
    path.write_text(json.dumps({"match": [""], "text": text, "tokens_per_s": 200}) + "\n", "utf-8")
    nodes = {
        "writer": {"agent": {"prompt": "Write.", "model": f"replay:{path}"}, "queue": "mosaic.cpu"},
        "listed": tool(
            "listed", with_={"texts": "${writer}"}, edges={"writer": {"kind": "stream", "by": "sentence"}}
        ),
    }
    assert run(nodes, "listed").result(30) == [
        "# YEAR", "IT WAS GOOD, E.G. IN MAY.", "SALES ROSE BY 1.5 %.", "THE END",
    ]  # fmt: skip


def test_a_second_attempt_goes_on_where_the_first_had_come_to(worker: Workers) -> None:
    nodes = {
        "numbers": tool("breaks_once", with_={"n": 6, "after": 3}, retry={"attempts": 2, "delay": 0.01}),
        "totals": tool("totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
        "each": tool("double", for_each="${numbers}", with_={"x": "${item}"}),
        "both": tool("both", with_={"a": "${totals}", "b": "${each}"}),
    }
    started = run(nodes, "both")
    assert started.result(30) == [[0, 1, 3, 6, 10, 15], [0, 2, 4, 6, 8, 10]]


def test_an_attempt_that_says_something_else_takes_back_what_was_said(worker: Workers) -> None:
    nodes = {
        "numbers": tool(
            "breaks_once", with_={"n": 6, "after": 3, "shift": 100}, retry={"attempts": 2, "delay": 0.01}
        ),
        "totals": tool("totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
        "spelled": tool("spelled", with_={"values": "${totals}"}, edges={"totals": "stream"}),
        "each": tool("double", for_each="${numbers}", with_={"x": "${item}"}),
        "sums": tool("totals", with_={"values": "${each}"}, edges={"each": "stream"}),
        "both": tool("both", with_={"a": "${spelled}", "b": "${sums}"}),
    }
    values = [0, 101, 102, 103, 104, 105]
    totals = [sum(values[: place + 1]) for place in range(6)]
    spelled = "".join(f"{number}," for number in totals) + "(6)"
    assert run(nodes, "both").result(30) == [spelled, [2 * number for number in totals]]


def test_a_node_and_what_depends_on_it_run_again_and_the_rest_is_kept(
    worker: Workers, redis_client: Redis
) -> None:
    nodes = {
        "a": tool("counted", with_={"name": "a"}),
        "b": tool("counted", with_={"name": "b", "after": "${a}"}),
        "c": tool("counted", with_={"name": "c", "after": "${a}"}),
        "numbers": tool("numbers", with_={"n": "${b}"}),
        "each": tool("double", for_each="${numbers}", with_={"x": "${item}"}),
        "totals": tool("totals", with_={"values": "${each}"}, edges={"each": "stream"}),
        "d": tool("both", with_={"a": "${c}", "b": "${totals}"}),
    }
    started = run(nodes, "d")
    assert started.result(30) == [1, [0]]
    started.rerun("b")
    assert started.result(30) == [1, [0, 2]]
    started.rerun("b")
    assert started.result(30) == [1, [0, 2, 6]]
    started.rerun("a")
    assert started.result(30) == [2, [0, 2, 6, 12]]
    view = {node.name: node.epoch for node in started.view().nodes}
    assert view == {"a": 3, "b": 3, "c": 3, "numbers": 3, "each": 3, "totals": 3, "d": 3}
    assert [event.detail for event in started.events() if event.kind == "redo"] == ["1", "2", "3"]


def test_a_failed_run_goes_on_when_its_node_runs_again(worker: Workers) -> None:
    started = failed_once()
    started.rerun("b")
    assert started.result(30) == 1
    assert started.record().status == "done"


def test_branches_that_a_failure_cut_off_run_too_when_a_node_runs_again(
    worker: Workers, redis_client: Redis
) -> None:
    nodes = {
        "a": tool("fails_once", with_={"x": 1}),
        "slow": tool("gated_numbers", with_={"n": 2, "gate_at": 0}),
        "each": tool("double", for_each="${slow}", with_={"x": "${item}"}),
        "both": tool("both", with_={"a": "${a}", "b": "${each}"}),
    }
    started = run(nodes, "both")
    with pytest.raises(RunFailed, match="fails once"):
        started.result(30)
    tools.open_gate(redis_client, "more", 2)
    started.rerun("a")
    assert started.result(30) == [1, [0, 2]]


def test_who_reads_a_skipped_node_is_skipped(worker: Workers) -> None:
    nodes = {
        "numbers": tool("numbers", with_={"n": 3}, when="false"),
        "totals": tool("totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
        "each": tool("double", for_each="${numbers}", with_={"x": "${item}"}),
        "both": tool("both", with_={"a": "${totals}", "b": "${each}"}),
    }
    started = run(nodes, "both")
    assert started.result(30) is None
    assert {node.name: node.state for node in started.view().nodes} == dict.fromkeys(nodes, "skipped")


def test_an_unknown_node_cannot_run_again(worker: Workers) -> None:
    started = run({"a": tool("counted", with_={"name": "a"})}, "a")
    started.result(30)
    with pytest.raises(InputError, match="no node 'aa'; did you mean 'a'"):
        started.rerun("aa")


def test_a_field_that_is_otherwise_in_the_end_runs_its_readers_again(
    worker: Workers, redis_client: Redis, tmp_path: Path
) -> None:
    """The first answer does not fit its schema, so it is repaired; what read it early reads the repaired one."""
    path = tmp_path / "answers.jsonl"
    wrong = '{"revenue": 1, "profit": "none"}'
    lines = [
        {"match": ["Extract."], "text": wrong, "deltas": [[0, wrong[:16]], [1, wrong[16:]]]},
        {"match": ["does not fit the required JSON Schema"], "text": '{"revenue": 2, "profit": 3}'},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    nodes = {
        "extract": agent(f"replay:{path}"),
        "early": tool("told", with_={"x": "${extract.revenue}"}, edges={"extract": "fields"}),
        "late": tool("both", with_={"a": "${early}", "b": "${extract.profit}"}),
    }
    started = run(nodes, "late")
    assert started.result(30) == [2, 3]
    assert tools.happened(redis_client, "seen") == ["1", "2"]
    assert {node.name: node.epoch for node in started.view().nodes} == {"extract": 0, "early": 1, "late": 1}


def test_who_read_a_field_of_an_agent_that_is_skipped_in_the_end_is_skipped(
    worker: Workers, tmp_path: Path
) -> None:
    wrong = '{"revenue": 1, "profit": "none"}'
    model = recorded(tmp_path / "answer.jsonl", (0.0, wrong[:16]), (0.2, wrong[16:]))
    nodes = {
        "extract": agent(model, on_failure="skip"),
        "early": tool("told", with_={"x": "${extract.revenue}"}, edges={"extract": "fields"}),
    }
    started = run(nodes, "early")
    assert started.result(30) is None
    assert {node.name: node.state for node in started.view().nodes} == dict.fromkeys(nodes, "skipped")


def is_awaited(client: Redis, calls: str, mailbox: str) -> bool:
    """Whether the producer of a mailbox waits for its next commit."""
    raw = client.hget(calls, mailbox)
    return raw is not None and msgspec.msgpack.decode(raw)[8:] == [1]


def test_a_producer_waits_for_a_reader_that_is_far_behind(workers: Workers, redis_client: Redis) -> None:
    """The reader holds its first batch; the producer stops at the limit until the gate opens: not a chunk is lost."""
    env = {"MOSAIC_STREAM_LAG": "1000", "MOSAIC_STREAM_BYTES": "10000"}
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=4, env=env).wait_ready()
    nodes = {
        "numbers": tool("told_numbers", with_={"n": 10_000, "every": 100}),
        "slow": tool("gated_count", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
    }
    with key_events(redis_client, "h") as events:
        started = run(nodes, "slow")
        calls = f"mosaic:{{{started.id}}}:calls"
        next(event for event in events if event == ("hset", calls) and is_awaited(redis_client, calls, "1.m"))
    tools.await_told(redis_client, "holds", 1)
    assert 1000 < int(tools.happened(redis_client, "number")[-1]) < 3000
    tools.open_gate(redis_client, "more", 1)
    assert started.result(60) == list(range(10_000))
