"""`mosaic batch` and `mosaic engines` on a real server, with real workers where runs are to end."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from json_worker import COMMAND
from redis import Redis
from typer.testing import CliRunner

from mosaic_queues.keys import Keys
from mosaic_queues.settings import Settings
from mosaic_routing.inventory import EngineReport, publish
from mosaic_tasks import list_runs, submit
from mosaic_tasks.cli import application
from mosaic_tasks.cli.batches.items import Item
from mosaic_tasks.cli.batches.results import Written
from mosaic_tasks.cli.batches.window import AHEAD, Window
from mosaic_tasks.cli.exits import ExitCode
from tests.services import Workers, key_events

pytestmark = pytest.mark.integration
TOOLS = "tests.integration.run_tools"
LEAVES_RUNS = pytest.mark.leaves("keys", reason="without a worker nobody sweeps the index of runs")

WORKFLOW = {
    "name": "each",
    "inputs": {"x": {"type": "integer"}, "directory": {"type": "string"}},
    "nodes": {
        "mark": {"tool": f"{TOOLS}:mark", "with": {"x": "${inputs.x}", "directory": "${inputs.directory}"}},
        "value": {
            "tool": f"{TOOLS}:boom_on",
            "with": {"x": "${inputs.x}", "bad": 2},
            "after": ["mark"],
        },
    },
    "output": "value",
}


@pytest.fixture
def place(tmp_path: Path, mosaic_process: Settings, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a workflow, the inputs of five runs, and one where each run leaves a file."""
    (tmp_path / "marks").mkdir()
    (tmp_path / "each.yaml").write_text(json.dumps(WORKFLOW))
    give(tmp_path, *({"x": number, "directory": "marks"} for number in range(5)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def worker(place: Path, workers: Workers) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()


def give(place: Path, *inputs: Any) -> None:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in inputs]
    (place / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))


WORDS = ("batch", "each.yaml", "--inputs", "in.jsonl")


def batch(*more: str, output: str | None = "out.jsonl") -> Any:
    words = [*WORDS, *(("--output", output) if output else ()), *more]
    return CliRunner().invoke(application, words, catch_exceptions=False)


def results(path: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def marks(place: Path) -> list[int]:
    """Which runs did their work, each as often as it did."""
    return sorted(int(file.name.partition("-")[0]) for file in (place / "marks").iterdir())


# -- results -----------------------------------------------------------------------------------------------


def test_each_line_has_its_result_in_order_and_the_last_line_tells_what_failed(
    place: Path, worker: None
) -> None:
    answer = batch()
    assert answer.exit_code == ExitCode.PARTLY
    assert [(found["line"], found["status"], found.get("output")) for found in results()] == [
        (1, "done", 0),
        (2, "done", 1),
        (3, "failed", None),
        (4, "done", 3),
        (5, "done", 4),
    ]
    assert "2 is bad" in results()[2]["error"]
    *progress, last = answer.stderr.splitlines()
    assert last == "1 of 5 lines failed: line 3 of in.jsonl; results: out.jsonl"
    assert progress[-1].startswith("4 of 5 lines done, 1 failed, 0 running, ")
    assert answer.stdout == ""


def test_results_go_to_stdout_without_a_file(place: Path, worker: None) -> None:
    give(place, {"x": 0, "directory": "marks"}, "", {"x": 1, "directory": "marks"})
    answer = batch(output=None)
    assert answer.exit_code == ExitCode.OK
    assert [json.loads(line)["line"] for line in answer.stdout.splitlines()] == [1, 3]
    assert answer.stderr.splitlines()[-1] == "all 2 lines done"


def test_with_json_one_document_tells_how_many(place: Path, worker: None) -> None:
    answer = batch("--json")
    assert (answer.exit_code, answer.stderr) == (ExitCode.PARTLY, "")
    told = json.loads(answer.stdout)
    assert (told["lines"], told["done"], told["failed"], told["earlier"]) == (5, 4, 1, 0)
    assert told["failed_lines"] == [3]
    assert json.loads(batch("--json").stdout)["earlier"] == 5
    assert batch("--json", output=None).exit_code == ExitCode.USAGE


# -- going on ----------------------------------------------------------------------------------------------


def test_the_same_command_repeats_nothing(place: Path, worker: None) -> None:
    assert batch().exit_code == ExitCode.PARTLY
    before = Path("out.jsonl").read_bytes()
    assert batch().exit_code == ExitCode.PARTLY
    assert (Path("out.jsonl").read_bytes(), marks(place)) == (before, [0, 1, 2, 3, 4])
    Path("out.jsonl").unlink()
    assert batch().exit_code == ExitCode.PARTLY
    assert (Path("out.jsonl").read_bytes(), marks(place)) == (before, [0, 1, 2, 3, 4])


def test_a_line_that_was_mended_runs_and_the_others_keep_their_results(place: Path, worker: None) -> None:
    assert batch().exit_code == ExitCode.PARTLY
    before = results()
    inputs = [{"x": number, "directory": "marks"} for number in (0, 1, 7, 3, 4)]
    give(place, *inputs)
    answer = batch()
    assert answer.exit_code == ExitCode.OK
    assert "1 result of lines that changed or are gone: left out of out.jsonl" in answer.stderr
    assert [(found["line"], found["output"]) for found in results()] == list(enumerate((0, 1, 7, 3, 4), 1))
    assert [found for found in results() if found["line"] != 3] == before[:2] + before[3:]
    assert marks(place) == [0, 1, 2, 3, 4, 7]
    assert list(place.glob(".*")) == []


def test_lines_that_are_added_taken_out_and_repeated_find_their_results(place: Path, worker: None) -> None:
    same = {"x": 5, "directory": "marks"}
    give(place, {"x": 0, "directory": "marks"}, {"x": 1, "directory": "marks"}, same, same)
    assert batch().exit_code == ExitCode.OK
    runs = {found["line"]: found["run"] for found in results()}
    assert len(set(runs.values())) == 4
    give(place, {"x": 8, "directory": "marks"}, {"x": 0, "directory": "marks"}, same, same, same)
    assert batch().exit_code == ExitCode.OK
    assert [found["output"] for found in results()] == [8, 0, 5, 5, 5]
    assert [found["run"] for found in results()][1:4] == [runs[1], runs[3], runs[4]]
    assert marks(place) == [0, 1, 5, 5, 5, 8]


def test_a_mended_batch_that_was_interrupted_keeps_what_it_wrote(
    place: Path, worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch()
    give(place, *({"x": number, "directory": "marks"} for number in (0, 6, 7, 3, 4)))
    with monkeypatch.context() as patched:
        patched.setattr(Written, "sort", interrupted)
        assert batch().exit_code == ExitCode.INTERRUPTED
    assert [found["line"] for found in results()] == [1, 2, 3, 4, 5, 2, 3]
    assert batch().exit_code == ExitCode.OK
    assert [(found["line"], found["output"]) for found in results()] == list(enumerate((0, 6, 7, 3, 4), 1))
    assert marks(place) == [0, 1, 2, 3, 4, 6, 7]


def interrupted(*_arguments: Any) -> None:
    raise KeyboardInterrupt


def test_another_name_is_another_batch(place: Path, worker: None) -> None:
    give(place, {"x": 0, "directory": "marks"})
    assert batch().exit_code == ExitCode.OK
    assert batch("--name", "again", output="again.jsonl").exit_code == ExitCode.OK
    assert marks(place) == [0, 0]
    assert results()[0]["run"] != results("again.jsonl")[0]["run"]


@pytest.mark.parametrize("torn", [1, 12, 40, -1])
def test_a_torn_last_line_is_written_again(place: Path, worker: None, torn: int) -> None:
    batch()
    whole = Path("out.jsonl").read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    Path("out.jsonl").write_bytes(whole.removesuffix(last) + last[:torn])
    answer = batch()
    assert "a line of out.jsonl that was written in part is written again" in answer.stderr
    assert (Path("out.jsonl").read_bytes(), marks(place)) == (whole, [0, 1, 2, 3, 4])


def test_a_batch_that_was_killed_goes_on(place: Path, worker: None) -> None:
    os.mkfifo("gate")
    workflow = {
        **WORKFLOW,
        "inputs": {**WORKFLOW["inputs"], "gate": {"type": "string", "default": "/dev/null"}},
    }  # type: ignore[dict-item]
    wait = {"tool": f"{TOOLS}:read", "with": {"path": "${inputs.gate}"}, "after": ["mark"]}
    value = {**WORKFLOW["nodes"]["value"], "after": ["wait"]}  # type: ignore[index]
    workflow["nodes"] = {"mark": WORKFLOW["nodes"]["mark"], "wait": wait, "value": value}  # type: ignore[index]
    Path("each.yaml").write_text(json.dumps(workflow))
    inputs = [{"x": 10 + number, "directory": "marks"} for number in range(6)]
    inputs[3]["gate"] = "gate"
    give(place, *inputs)
    words = [*COMMAND, *WORDS, "--output", "out.jsonl", "--at-once", "2"]
    killed = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with Path("gate").open("w"):  # once the fourth run reads it
        killed.kill()
        killed.wait()
    assert len(results()) < 4
    assert batch("--at-once", "2").exit_code == ExitCode.OK
    assert [found["output"] for found in results()] == [10, 11, 12, 13, 14, 15]
    assert marks(place) == [10, 11, 12, 13, 14, 15]


@LEAVES_RUNS
def test_ctrl_c_leaves_the_open_runs_and_tells_how_to_go_on(place: Path, redis_client: Redis) -> None:
    words = [*COMMAND, *WORDS, "--output", "out.jsonl", "--at-once", "2", "--patience", "60"]
    with key_events(redis_client, "l") as events:
        waiting = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert [next(events)[0], next(events)[0]] == ["lpush", "lpush"]
    waiting.send_signal(signal.SIGINT)
    _, told = waiting.communicate(timeout=30)
    assert waiting.returncode == ExitCode.INTERRUPTED
    assert "go on with the batch:  the same command again" in told
    assert len(list_runs()) == 2


# -- how many at once ---------------------------------------------------------------------------------------


@LEAVES_RUNS
def test_so_many_runs_are_open_at_most_and_give_way_to_others(place: Path, redis_client: Redis) -> None:
    answer = batch("--at-once", "3", "--patience", "0")
    assert answer.exit_code == ExitCode.NO_WORKER
    assert "start one with: mosaic worker --queues mosaic.cpu" in answer.stderr
    assert len(list_runs()) == 3
    assert redis_client.llen("mosaic.cpu\x06\x169") == 3
    assert batch("--at-once", "3", "--patience", "0").exit_code == ExitCode.NO_WORKER
    assert len(list_runs()) == 3


@LEAVES_RUNS
def test_lines_are_read_as_far_as_the_window_reaches(place: Path) -> None:
    read = itertools.count()
    lines = (
        Item(number + 1, f"k{number}", {"x": 0, "directory": "marks"}, "bad" if number else "")
        for number in read
    )
    window = Window(
        lambda item: submit("each.yaml", item.inputs, key=item.key),
        at_once=2,
        patience_s=0.0,
        ended=lambda _status: None,
    )
    with pytest.raises(Exception, match="no worker serves"):
        next(window.results(lines))
    assert next(read) == 2 * AHEAD


# -- what is refused ---------------------------------------------------------------------------------------

GOOD = '{"x": 1, "directory": "marks"}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{x: 1}", "it is no JSON: "),
        ('{"x": 1', "it is no JSON: "),
        ("[" * 100_000, "it is no JSON: "),
        ('[{"x": 1}]', "but an object is wanted"),
        ("{}", "input 'x' is missing"),
        ('{"x": "a", "directory": ""}', "input 'x': 'a' is string, but integer is wanted"),
        ('{"x": 1, "directory": "", "z": 1}', "the workflow has no input 'z'"),
        ('{"x": 123456789012345678901234567890, "directory": ""}', "input 'x': "),
    ],
)
def test_lines_that_fit_no_run_are_told_before_any_is_started(
    place: Path, redis_client: Redis, line: str, reason: str
) -> None:
    give(place, GOOD, line, GOOD)
    answer = batch()
    assert answer.exit_code == ExitCode.USAGE
    head, told = answer.stderr.splitlines()
    assert head.startswith("mosaic: 1 of 3 lines fits no run, so none was started")
    assert told.startswith("in.jsonl:2: ")
    assert reason in told
    assert redis_client.dbsize() == 0


def test_of_many_wrong_lines_the_first_are_told(place: Path) -> None:
    give(place, *["{"] * 30)
    lines = batch().stderr.splitlines()
    assert (len(lines), lines[-1]) == (22, "and 10 more")


def test_wrong_lines_can_be_skipped_and_have_a_result(place: Path, worker: None) -> None:
    give(place, GOOD, "{", GOOD)
    answer = batch("--skip-bad")
    assert answer.exit_code == ExitCode.PARTLY
    assert [found["status"] for found in results()] == ["done", "bad", "done"]
    assert results()[1]["error"].startswith("it is no JSON: ")
    assert results()[1]["run"] is None


@pytest.mark.parametrize(
    ("inputs", "output", "reason"),
    [
        ("none.jsonl", "out.jsonl", "cannot read the inputs 'none.jsonl': No such file or directory"),
        ("empty.jsonl", "out.jsonl", "'empty.jsonl' holds no line"),
        ("marks", "out.jsonl", "'marks' is no file"),
        ("in.jsonl", "nowhere/out.jsonl", "cannot write the results to 'nowhere/out.jsonl': No such file"),
        ("in.jsonl", "in.jsonl/", "cannot make the folder 'in.jsonl'"),
        ("in.jsonl", "nonsense://place/", "'nonsense://place' cannot be used as an object store"),
        ("in.jsonl", "file:///x?a=b", "the URL of --output has a query or fragment"),
        ("in.jsonl", "/dev/null", "'/dev/null' is no regular file"),
        ("in.jsonl", "x" * 300, "xxx': File name too long"),
        ("x" * 300, "out.jsonl", "xxx': File name too long"),
    ],
)
def test_files_that_are_of_no_use_are_told(place: Path, inputs: str, output: str, reason: str) -> None:
    Path("empty.jsonl").write_text("\n\n")
    answer = CliRunner().invoke(application, ["batch", "each.yaml", "--inputs", inputs, "--output", output])
    assert answer.exit_code == ExitCode.USAGE
    assert reason in answer.stderr


RESULT = '{"line":1,"run":"r","status":"done","output":1,"key":"k"}\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dear diary\n", "line 1, is no result of a batch"),
        ("dear diary", "the end, is no result of a batch"),
        ('{"lime":2,"ru', "the end, is no result of a batch"),
        (RESULT, "line 1, is the result of another workflow or model, or of another --name"),
    ],
)
def test_a_file_of_something_else_is_left_as_it_is(place: Path, text: str, reason: str) -> None:
    Path("out.jsonl").write_text(text)
    answer = batch()
    assert (answer.exit_code, Path("out.jsonl").read_text()) == (ExitCode.USAGE, text)
    assert reason in answer.stderr


def test_inputs_that_are_others_are_told(place: Path, worker: None) -> None:
    batch()
    before = Path("out.jsonl").read_bytes()
    give(place, *({"x": 9 + number, "directory": "marks"} for number in range(5)))
    told = batch()
    assert told.exit_code == ExitCode.USAGE
    assert "'out.jsonl' has outputs of 4 lines that these inputs do not have, and results of 0" in told.stderr
    assert Path("out.jsonl").read_bytes() == before


@pytest.mark.parametrize("output", ["in.jsonl", "./in.jsonl", "in.html"])
def test_inputs_are_never_taken_for_results(place: Path, output: str) -> None:
    """A last line without its end would be cut off, if it begins as a result does."""
    (place / "in.jsonl").write_text('{"line":"of a poem"}')
    answer = batch(output=output)
    assert answer.exit_code == ExitCode.USAGE
    assert "which are the inputs" in answer.stderr
    assert (place / "in.jsonl").read_text() == '{"line":"of a poem"}'


def test_one_batch_at_a_time_writes_a_file(place: Path) -> None:
    with Path("out.jsonl").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        answer = batch()
    assert answer.exit_code == ExitCode.USAGE
    assert "another `mosaic batch` writes 'out.jsonl'" in answer.stderr


# -- engines -----------------------------------------------------------------------------------------------

Published = Callable[..., None]


@pytest.fixture
def published(redis_client: Redis, mosaic_process: Settings) -> Published:
    """Reports as a worker does."""

    def report(model: str = "tiny", holder: str = "one/1/a", **figures: Any) -> None:
        known: dict[str, Any] = {"fingerprint": "f1", "gpu_class": "h100", "at_ms": 1_700_000_000_000}
        made = EngineReport(holder=holder, model=model, queues=(f"mosaic.gpu.{model}",), **known | figures)
        publish(redis_client, made, keys=Keys(mosaic_process.namespace), expiry_s=60.0)

    return report


def mosaic(*words: str) -> Any:
    return CliRunner().invoke(application, words, catch_exceptions=False)


def test_engines_are_shown_in_a_table_as_json_and_for_prometheus(published: Published) -> None:
    assert "mosaic worker --class CLASS --model SPEC" in mosaic("engines").stdout
    published(
        running=3, waiting=1, slots=5, kv_use=0.25, generated_tokens_s=1234.5, ttft_s=0.125, prefix_hits=0.5
    )
    published("other", "two/2/b", preempted=7, state="loading", phase="loading weights")
    *rows, phase = mosaic("engines").stdout.splitlines()
    head, other, tiny = (line.split() for line in rows)
    assert head[:3] == ["MODEL", "CLASS", "WORKER"]
    assert tiny == [
        "tiny",
        "h100",
        "one/1/a",
        "ready",
        "3",
        "1",
        "5",
        "25%",
        "1,234.5",
        "125",
        "ms",
        "50%",
        "0",
    ]
    assert (other[0], other[3], other[-1]) == ("other", "loading", "7")
    assert phase == "other in two/2/b: loading weights"
    found = json.loads(mosaic("engines", "--json").stdout)
    assert [(each["model"], each["running"]) for each in found] == [("other", 0), ("tiny", 3)]
    line = 'mosaic_engine_running{model="tiny",class="h100",worker="one/1/a"} 3'
    assert line in mosaic("engines", "--prometheus").stdout.splitlines()
    assert mosaic("engines", "--prometheus", "--follow").exit_code == ExitCode.USAGE


def test_engines_are_followed_line_by_line(published: Published) -> None:
    words = [*COMMAND, "engines", "--follow", "--json"]
    following = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert following.stdout is not None
    lines = map(json.loads, following.stdout)
    assert next(lines) == []
    published(running=1)
    assert next(found for found in lines if found)[0]["running"] == 1
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=30)
    assert following.returncode == ExitCode.INTERRUPTED


def test_the_doctor_names_workers_whose_models_share_a_queue(published: Published) -> None:
    published()
    published(holder="two/2/b", fingerprint="f2")
    answer = mosaic("doctor", "--json")
    [check] = [check for check in json.loads(answer.stdout)["checks"] if check["name"] == "engines"]
    assert (answer.exit_code, check["level"]) == (ExitCode.FAILED, "fail")
    assert "one/1/a" in check["text"]
    assert "two/2/b" in check["text"]
