"""The command on a real server with a worker that the command itself started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
from json_worker import COMMAND, JsonWorker
from typer.testing import CliRunner

from mosaic_queues.connection import redact
from mosaic_queues.settings import Settings
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from tests.services import Worker

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
LEAVES_RUNS = pytest.mark.leaves("keys", reason="without a worker nobody sweeps the index of runs")

WORKFLOW = """
name: shout
inputs:
  count: {type: integer, default: 3}
nodes:
  letters: {tool: "cli_tools:letters", with: {count: "${inputs.count}"}}
  loud:
    for_each: "${letters}"
    as: letter
    tool: cli_tools:upper
    with: {letter: "${letter}"}
  word: {tool: "cli_tools:LAST", with: {parts: "${loud}"}}
output: word
"""

Mosaic = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory as a user has it: workflows beside their tools."""
    (tmp_path / "cli_tools.py").write_text((HERE / "cli_tools.py").read_text())
    (tmp_path / "good.yaml").write_text(WORKFLOW.replace("LAST", "join"))
    (tmp_path / "bad.yaml").write_text(WORKFLOW.replace("LAST", "broken"))
    (tmp_path / "surrogate.yaml").write_text("{name: s, nodes: {n: {tool: 'cli_tools:names'}}, output: n}")
    return tmp_path


@pytest.fixture
def environment(redis_url: str, place: Path) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("MOSAIC_REDIS")}
    known.pop("PYTHONPATH", None)
    return {
        **known,
        "MOSAIC_REDIS_URL": redis_url,
        "MOSAIC_HOME": str(place / "home"),
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def mosaic(environment: dict[str, str], place: Path) -> Mosaic:
    """Runs the command in the user's directory, to its end."""

    def run(*arguments: str, **changed: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            env={**environment, **changed},
            cwd=place,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return run


@pytest.fixture
def here(mosaic_process: Settings, place: Path, monkeypatch: pytest.MonkeyPatch) -> Mosaic:
    """Runs the command inside this process: the same code without the second that a new process takes."""
    monkeypatch.chdir(place)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        answer = CliRunner().invoke(application, list(arguments), catch_exceptions=False)
        return subprocess.CompletedProcess(arguments, answer.exit_code, answer.stdout, answer.stderr)

    return run


@pytest.fixture
def worker(environment: dict[str, str], place: Path) -> Iterator[Worker]:
    """`mosaic worker`."""
    command: Sequence[str] = [*COMMAND, "worker", "--pool", "solo", "--name", "cli"]
    started = Worker("cli", command, environment=environment, cwd=place)
    try:
        yield started.wait_ready()
    finally:
        started.stop()
        print(started.log)


def run_id_of(answer: subprocess.CompletedProcess[str]) -> str:
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


@LEAVES_RUNS
def test_a_run_from_start_to_timeline(mosaic: Mosaic, here: Mosaic, worker: Worker, place: Path) -> None:
    answer = mosaic("run", "good.yaml", "--input", "count=4")
    assert (answer.returncode, answer.stdout) == (0, "ABCD\n"), answer.stderr
    lines = answer.stderr.splitlines()
    assert lines[-1].endswith("run done")
    assert any("loud: done" in line for line in lines)

    document = json.loads(here("run", "good.yaml", "--json", "--output", "word.txt").stdout)
    assert (document["status"], document["output"]) == ("done", "ABC")
    assert (place / "word.txt").read_text() == "ABC\n"
    run = document["run"]

    assert here("result", run).stdout == "ABC\n"
    assert here("explain", run).stdout.startswith("the run is done after ")
    assert "was over already: done" in here("cancel", run).stdout

    nodes = json.loads(here("status", run, "--json").stdout)["nodes"]
    assert [(node["name"], node["state"], node["calls_done"]) for node in nodes] == [
        ("letters", "done", 1),
        ("loud", "done", 3),
        ("word", "done", 1),
    ]

    events = [json.loads(line) for line in here("events", run, "--json").stdout.splitlines()]
    assert (events[0]["kind"], events[-1]["kind"]) == ("opened", "closed")
    rest = here("events", run, "--json", "--after", events[3]["id"]).stdout.splitlines()
    assert [json.loads(line) for line in rest] == events[4:]

    assert "loud x3" in here("timeline", run).stdout
    assert here("timeline", run, "--svg", "run.svg").returncode == 0
    ElementTree.parse(place / "run.svg")


@LEAVES_RUNS
def test_a_failed_run_names_node_and_cause(here: Mosaic, worker: Worker) -> None:
    answer = here("run", "bad.yaml")
    assert answer.returncode == ExitCode.FAILED
    assert "node 'word': ToolError: ValueError: no such luck" in answer.stderr
    run = answer.stderr.partition("more: mosaic explain ")[2].strip()
    assert "no such luck" in here("explain", run).stdout
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""
    document = here("run", "bad.yaml", "--json")
    assert document.returncode == ExitCode.FAILED
    told = json.loads(document.stdout)
    assert (told["status"], told["output"]) == ("failed", None)
    assert "'word'" in here("explain", told["run"]).stdout
    assert here("result", told["run"]).returncode == ExitCode.FAILED


@LEAVES_RUNS
def test_a_worker_logs_in_lines_of_one_form(here: Mosaic, worker: Worker) -> None:
    here("run", "bad.yaml")
    worker.wait_said("call.failed")
    lines = worker.log.splitlines()
    begin = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[(info|warning) +\] "
    assert [
        line for line in lines if "call.failed" in line and re.match(begin + r"call\.failed  ", line)
    ] != []
    assert [line for line in lines if re.search(r"ready\.$", line) and re.match(begin + "cli@", line)] != []
    assert not [line for line in lines if len(re.findall(r"\d\d:\d\d:\d\d", line)) > 1]


def test_a_workers_log_goes_where_celerys_option_says(environment: dict[str, str], place: Path) -> None:
    command = [
        *COMMAND,
        "worker",
        "--pool",
        "solo",
        "--name",
        "cli",
        "--",
        "--logfile",
        "w.log",
        "--loglevel",
        "DEBUG",
    ]
    started = Worker("cli", command, environment=environment, cwd=place)
    try:
        started.wait_said("mosaic.cpu")
        while "ready." not in (place / "w.log").read_text():
            assert started.returncode is None
            time.sleep(0.05)
    finally:
        started.stop()
    assert "[debug    ]" in (place / "w.log").read_text()
    assert "ready." not in started.log


@LEAVES_RUNS
def test_a_run_without_worker_is_told_by_its_queue(mosaic: Mosaic) -> None:
    answer = mosaic("run", "good.yaml", "--patience", "0.2")
    assert answer.returncode == ExitCode.NO_WORKER
    assert "start one with: mosaic worker --queues mosaic.cpu" in answer.stderr.splitlines()[-1]


@LEAVES_RUNS
def test_what_waits_can_be_looked_at_and_cancelled(here: Mosaic) -> None:
    run = run_id_of(here("run", "good.yaml", "--no-wait", "--key", "monday"))
    assert run_id_of(here("run", "good.yaml", "--no-wait", "--key", "monday")) == run
    assert run in here("status").stdout
    assert [record["run_id"] for record in json.loads(here("status", "--json").stdout)] == [run]

    explained = json.loads(here("explain", run, "--json").stdout)["explanations"]
    assert [explanation["node"] for explanation in explained] == ["letters", "loud", "word"]
    assert "no worker serves; start one with: mosaic worker --queues mosaic.cpu" in explained[0]["text"]
    assert explained[1]["text"] == "waits for 'letters' (ready)"

    doctor = here("doctor", "--json")
    assert doctor.returncode == ExitCode.NO_WORKER
    levels = {check["name"]: check["level"] for check in json.loads(doctor.stdout)["checks"]}
    assert (levels["server"], levels["packages"], levels["workers"], levels["queues"]) == (
        "ok",
        "ok",
        "warn",
        "fail",
    )

    assert here("result", run).returncode == ExitCode.TIMEOUT
    assert here("result", run, "--wait", "--timeout", "0.2").returncode == ExitCode.TIMEOUT
    assert here("cancel", run, "--reason", "enough").stdout == f"run {run} is cancelled\n"
    result = here("result", run)
    assert (result.returncode, "enough" in result.stderr) == (ExitCode.CANCELLED, True)
    assert here("explain", run).stdout.endswith("enough\n")


@LEAVES_RUNS
def test_followed_events_end_with_the_run(here: Mosaic, environment: dict[str, str], place: Path) -> None:
    run = run_id_of(here("run", "good.yaml", "--no-wait"))
    command = [*COMMAND, "events", run, "--follow"]
    with subprocess.Popen(command, env=environment, cwd=place, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert "opened" in follower.stdout.readline()
        here("cancel", run)
        assert follower.stdout.read().splitlines()[-1].endswith("cancelled from the command line")
    assert follower.returncode == 0


@LEAVES_RUNS
def test_events_after_an_id_are_followed_without_repeats(here: Mosaic) -> None:
    run = run_id_of(here("run", "good.yaml", "--no-wait"))
    here("cancel", run)
    events = here("events", run, "--json").stdout.splitlines()
    first = json.loads(events[0])["id"]
    assert here("events", run, "--json", "--after", first, "--follow").stdout.splitlines() == events[1:]


@LEAVES_RUNS
def test_an_interrupt_ends_the_watching_and_says_how_to_go_on(
    here: Mosaic, environment: dict[str, str], place: Path
) -> None:
    command = [*COMMAND, "run", "good.yaml"]
    with subprocess.Popen(
        command, env=environment, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watcher:
        assert watcher.stderr is not None
        assert "run " in watcher.stderr.readline()
        watcher.send_signal(signal.SIGINT)
        told = watcher.stderr.read()
    assert watcher.returncode == ExitCode.INTERRUPTED
    assert "goes on without this terminal" in told
    assert "Traceback" not in told
    run = told.partition("mosaic cancel ")[2].split()[0]
    assert json.loads(here("status", run, "--json").stdout)["run"]["status"] == "running"


@LEAVES_RUNS
def test_a_waiting_time_that_is_over_leaves_the_run_alone(here: Mosaic) -> None:
    answer = here("run", "good.yaml", "--timeout", "0.2", "--json")
    assert answer.returncode == ExitCode.TIMEOUT
    assert json.loads(answer.stdout)["error"]["type"] == "WaitTimeout"
    assert len(json.loads(here("status", "--json").stdout)) == 1


@pytest.mark.parametrize("command", ["status", "events", "explain", "timeline", "result", "cancel"])
def test_an_unknown_run_is_told_by_every_command(here: Mosaic, command: str) -> None:
    answer = here(command, "nope")
    assert answer.returncode == ExitCode.UNKNOWN_RUN
    assert answer.stderr.startswith("mosaic: no run 'nope'")


@pytest.mark.parametrize("arguments", [("status",), ("run", "good.yaml"), ("worker",), ("doctor",)])
def test_a_server_that_does_not_answer_is_told_in_one_message(
    mosaic: Mosaic, arguments: tuple[str, ...]
) -> None:
    answer = mosaic(*arguments, MOSAIC_REDIS_URL="redis://:secret@127.0.0.1:1/0")
    assert answer.returncode == ExitCode.SERVER
    told = answer.stdout + answer.stderr
    assert "127.0.0.1:1" in told
    assert "Traceback" not in told
    assert "secret" not in told


def test_a_wrong_input_starts_nothing(here: Mosaic) -> None:
    answer = here("run", "good.yaml", "--input", "count=many")
    assert (answer.returncode, "'count'" in answer.stderr) == (ExitCode.USAGE, True)
    assert json.loads(here("status", "--json").stdout) == []


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("[1, 18446744073709551616]", "inputs.any[1] holds an int of 65 bits"),
        (r'{"a": "xy\ud800"}', r"inputs.any.a holds a text with the lone surrogate '\ud800' at position 2"),
    ],
)
def test_an_input_that_cannot_be_stored_is_told_with_its_place(
    here: Mosaic, place: Path, file: str, told: str
) -> None:
    (place / "any.yaml").write_text("{name: w, inputs: {any: {}}, nodes: {n: {task: t}}, output: n}")
    (place / "any.json").write_text(file)
    answer = here("run", "any.yaml", "--input", "any=@any.json")
    assert answer.returncode == ExitCode.USAGE
    assert answer.stderr.startswith(f"mosaic: input 'any': {told}")
    assert json.loads(here("status", "--json").stdout) == []


@LEAVES_RUNS
def test_a_result_that_no_encoding_could_give_back_fails_its_call(here: Mosaic, worker: Worker) -> None:
    answer = here("run", "surrogate.yaml")
    assert answer.returncode == ExitCode.FAILED
    assert r"node 'n': NotSerializable: result[0].name holds a text with the lone surrogate" in answer.stderr


@LEAVES_RUNS
def test_an_error_whose_text_is_no_utf_8_is_told_and_takes_the_declared_way_out(
    here: Mosaic, worker: Worker, place: Path
) -> None:
    (place / "said.yaml").write_text("{name: s, nodes: {n: {tool: 'cli_tools:misnamed'}}, output: n}")
    assert r"node 'n': ToolError: ValueError: Jos\udce9 (in misnamed" in here("run", "said.yaml").stderr
    (place / "out.yaml").write_text(
        "{name: s, nodes: {n: {tool: 'cli_tools:misnamed', on_failure: {default: x}}}, output: n}"
    )
    assert here("run", "out.yaml").stdout == "x\n"


@LEAVES_RUNS
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_worker_that_speaks_json(
    here: Mosaic, environment: dict[str, str], place: Path, redis_url: str, pool: str
) -> None:
    arguments = ("--pool", pool, "--concurrency", "1", "--name", "speaker", "--queues", "mosaic.cpu,other")
    with JsonWorker(*arguments, environment=environment, cwd=place) as worker:
        assert worker.told.pop("name").startswith("speaker@")
        assert psutil.pid_exists(worker.told.pop("pid"))
        assert worker.told == {
            "queues": ["mosaic.cpu", "other"],
            "pool": pool,
            "concurrency": 1,
            "server": redact(redis_url),
        }
        assert here("run", "bad.yaml").returncode == ExitCode.FAILED
        failed = worker.await_event("call.failed")
        assert (failed["node"], failed["level"]) == ("word", "warning")
        assert worker.stop() == (0, "")


@LEAVES_RUNS
def test_the_first_run_of_the_help_works_in_an_empty_directory(
    mosaic: Mosaic, worker: Worker, place: Path
) -> None:
    told = mosaic("--help").stdout.partition("A first run")[2]
    start, write, run = (line.strip() for line in told.splitlines()[1:4])
    assert start == "mosaic worker"
    subprocess.run(write, shell=True, cwd=place, check=True)
    answer = mosaic(*run.split()[1:])
    assert (answer.returncode, answer.stdout) == (0, "Hello\n")


def test_a_wrong_celery_option_is_told(mosaic: Mosaic) -> None:
    answer = mosaic("worker", "--", "--no-such-option")
    assert answer.returncode == ExitCode.USAGE
    assert "--no-such-option" in answer.stderr
    assert "Traceback" not in answer.stderr
