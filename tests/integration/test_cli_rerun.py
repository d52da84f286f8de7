"""`mosaic rerun` on a real server with a real worker, and what the other commands say of its epochs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from redis import Redis
from typer.testing import CliRunner

from mosaic_queues.errors import RunFailed
from mosaic_tasks import Run
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from tests.integration import stream_tools as tools
from tests.integration.stream_runs import failed_once, run, tool
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
NODES = {
    "kept": tool("counted", with_={"name": "kept"}),
    "again": tool("counted", with_={"name": "again"}),
    "numbers": tool("numbers", with_={"n": "${again}"}),
    "doubled": tool("double", for_each="${numbers}", with_={"x": "${item}"}),
    "last": tool("both", with_={"a": "${kept}", "b": "${doubled}"}),
}


@pytest.fixture
def worker(workers: Workers) -> Workers:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=4).wait_ready()
    return workers


@pytest.fixture
def done(worker: Workers) -> Run:
    """A run that is over."""
    started = run(NODES, "last")
    assert started.result(30) == [1, [0]]
    return started


def mosaic(*arguments: str) -> Any:
    return CliRunner().invoke(application, list(arguments), catch_exceptions=False)


def test_a_node_and_its_dependants_run_again_and_the_rest_is_kept(done: Run) -> None:
    answer = mosaic("rerun", done.id, "--node", "again")
    assert (answer.exit_code, json.loads(answer.stdout)) == (ExitCode.OK, [1, [0, 2]])
    lines = answer.stderr.splitlines()
    assert lines[0].endswith("epoch 1: again, numbers, doubled and last run again")
    assert lines[-1].endswith("run done")
    assert not any("kept" in line for line in lines)


def test_its_epochs_are_seen_in_status_events_explain_and_timeline(done: Run, tmp_path: Path) -> None:
    assert mosaic("rerun", done.id, "--node", "numbers").exit_code == ExitCode.OK
    assert mosaic("rerun", done.id, "-n", "last").exit_code == ExitCode.OK
    nodes = json.loads(mosaic("status", done.id, "--json").stdout)["nodes"]
    epochs = {node["name"]: node["epoch"] for node in nodes}
    assert epochs == {"kept": 0, "again": 0, "numbers": 1, "doubled": 1, "last": 2}
    events = [json.loads(line) for line in mosaic("events", done.id, "--json").stdout.splitlines()]
    redone = [(event["detail"], event["nodes"]) for event in events if event["kind"] == "redo"]
    assert redone == [("1", ["numbers", "doubled", "last"]), ("2", ["last"])]
    assert mosaic("explain", done.id).stdout.startswith("the run is done in epoch 2 after ")
    drawn = [line.split("|")[0].strip() for line in mosaic("timeline", done.id).stdout.splitlines()]
    assert [name for name in drawn if name.startswith("last")] == ["last", "last (epoch 1)", "last (epoch 2)"]
    assert sum(name.startswith("kept") for name in drawn) == 1
    assert mosaic("timeline", done.id, "--svg", str(tmp_path / "run.svg")).exit_code == ExitCode.OK
    titles = [element.text or "" for element in ElementTree.parse(tmp_path / "run.svg").iter()]
    assert any(title.startswith("last (epoch 2): done, ran ") for title in titles)


def test_json_gives_the_run_with_its_output(done: Run, tmp_path: Path) -> None:
    answer = mosaic("rerun", done.id, "--node", "again", "--json", "--output", str(tmp_path / "out.json"))
    document = json.loads(answer.stdout)
    assert (document["run"], document["status"], document["output"]) == (done.id, "done", [1, [0, 2]])
    assert json.loads((tmp_path / "out.json").read_text()) == [1, [0, 2]]


def test_who_does_not_wait_gets_the_id(done: Run) -> None:
    answer = mosaic("rerun", done.id, "--node", "again", "--no-wait", "--json")
    assert (answer.exit_code, json.loads(answer.stdout)["run"]) == (ExitCode.OK, done.id)
    assert done.result(30) == [1, [0, 2]]
    assert mosaic("rerun", done.id, "--node", "again", "--no-wait").stdout.strip() == done.id
    assert done.result(30) == [1, [0, 2, 4]]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("RUN", "--node", "agin"), ExitCode.USAGE, "has no node 'agin'; did you mean 'again'?"),
        (("RUN",), ExitCode.USAGE, "--node"),
        (("no-such-run", "--node", "again"), ExitCode.UNKNOWN_RUN, "no run 'no-such-run'"),
    ],
)
def test_what_cannot_run_again_is_told(
    done: Run, arguments: tuple[str, ...], code: ExitCode, words: str
) -> None:
    answer = mosaic("rerun", *(done.id if argument == "RUN" else argument for argument in arguments))
    assert answer.exit_code == code
    assert words in answer.stderr
    assert done.view().epoch == 0


def test_with_json_what_cannot_run_again_is_a_document(done: Run) -> None:
    document = json.loads(mosaic("rerun", done.id, "--node", "agin", "--json").stdout)
    assert document["exit_code"] == ExitCode.USAGE
    assert "did you mean 'again'?" in document["error"]["message"]


def test_a_failed_run_goes_on_and_is_told_when_it_fails_again(worker: Workers) -> None:
    started = failed_once()
    answer = mosaic("rerun", started.id, "--node", "b")
    assert (answer.exit_code, answer.stdout) == (ExitCode.OK, "1\n")


def test_a_run_that_fails_again_is_a_failure(worker: Workers) -> None:
    started = run({"mean": {"tool": "statistics:mean", "with": {"data": []}}}, "mean")
    with pytest.raises(RunFailed):
        started.result(30)
    answer = mosaic("rerun", started.id, "--node", "mean")
    assert answer.exit_code == ExitCode.FAILED
    assert f"mosaic explain {started.id}" in answer.stderr
    assert answer.stderr.count("mean: failed") == 1


@pytest.fixture
def gated(worker: Workers, redis_client: Redis) -> Iterator[Run]:
    """A run that is over, whose producer waits at a gate each time."""
    tools.open_gate(redis_client, "more")
    started = run({"numbers": tool("gated_numbers", with_={"n": 1, "gate_at": 0})}, "numbers")
    assert started.result(30) == [0]
    yield started
    started.cancel()
    tools.open_gate(redis_client, "more")


def test_the_waiting_may_end_before_the_run(gated: Run) -> None:
    answer = mosaic("rerun", gated.id, "--node", "numbers", "--timeout", "0.05")
    assert answer.exit_code == ExitCode.TIMEOUT
    assert gated.record().status == "running"


def test_a_run_that_is_cancelled_again_is_told(gated: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(run: Run, *_: Any, **__: Any) -> Any:
        run.cancel("enough")
        return run.record()

    monkeypatch.setattr(Run, "wait", wait)
    answer = mosaic("rerun", gated.id, "--node", "numbers")
    assert answer.exit_code == ExitCode.CANCELLED
    assert "enough" in answer.stderr
