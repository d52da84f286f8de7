"""The command without a server: help, usage, messages, exit codes, and what it prints."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from kombu.exceptions import OperationalError
from made_runs import START_MS, Story, fanned_out, finished, opened, report_plan
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError
from rich.console import Console
from typer.testing import CliRunner

from mosaic_queues import errors
from mosaic_queues.connection import Clock, ServerFacts
from mosaic_queues.liveness import LiveProcess
from mosaic_routing.inventory import EngineReport
from mosaic_tasks.cli import application, checks, working
from mosaic_tasks.cli.exits import ExitCode, told_errors
from mosaic_tasks.cli.live import Board, Lines, chosen, display, render
from mosaic_tasks.cli.options import duration
from mosaic_tasks.cli.output import to_json
from mosaic_tasks.cli.running import read_inputs
from mosaic_tasks.definition.workflow import Workflow
from mosaic_tasks.engines.registry import meant_engine
from mosaic_tasks.engines.vllm import gpus
from mosaic_tasks.inspection.progress import Progress, project
from mosaic_tasks.inspection.telling import event_line

COMMANDS = [
    info.callback.__name__.replace("_", "-") for info in application.registered_commands if info.callback
]
SMALL = """
name: small
inputs:
  repo: {type: string, default: "."}
  count: {type: integer, default: 3}
  names: {type: array, default: []}
nodes:
  first: {tool: "made_tools:anything", with: {names: "${inputs.names}"}}
  last: {task: reports.last, with: {number: "${first}"}}
output: last
"""


def mosaic(*arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(application, list(arguments), catch_exceptions=False, **options)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


# -- help and usage ----------------------------------------------------------------------------------------


def test_help_documents_every_exit_code() -> None:
    text = mosaic("--help").stdout
    codes = {line.split()[0] for line in text.partition("Exit codes:")[2].splitlines()[1:11] if line.strip()}
    assert {str(int(code)) for code in ExitCode} == codes & {str(number) for number in range(256)}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_shows_an_example_and_json(command: str) -> None:
    text = mosaic(command, "--help").stdout
    assert f"mosaic {command}" in text.partition("Example")[2]
    assert "--json" in text


def test_no_argument_shows_help_with_all_commands_by_what_they_are_for() -> None:
    text = mosaic().output.partition("\nOptions:")[2]
    panels = re.findall(r"^(\w.*):\n((?:  .*\n?)+)", text, re.MULTILINE)
    shown = {title: re.findall(r"^  ([\w-]+) ", below, re.MULTILINE) for title, below in panels}
    group: Any = typer.main.get_command(application)
    assert sorted(name for names in shown.values() for name in names) == sorted(group.commands)
    assert shown["Watching"] == ["status", "events", "explain", "timeline"]


def test_version_is_printed() -> None:
    assert mosaic("--version").stdout.startswith("mosaic-tasks ")


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            (command, "a\udcff")
            for command in ("status", "events", "explain", "timeline", "stream", "result", "cancel")
        ),
        ("run", "x.yaml", "--key", "a\udcff"),
        ("cancel", "r", "--reason", "a\udcff"),
        ("worker", "--queues", "a\udcff"),
        ("worker", "--name", "a\udcff"),
    ],
)
def test_what_is_no_text_is_refused(arguments: tuple[str, ...]) -> None:
    answer = mosaic(*arguments)
    assert answer.exit_code == ExitCode.USAGE
    assert r"'a\udcff' is no UTF-8 text" in answer.stderr


def test_a_wrong_command_is_answered_with_the_nearest_one() -> None:
    answer = mosaic("explane")
    assert answer.exit_code == ExitCode.USAGE
    assert "'explain'" in answer.stderr


def test_the_command_loads_nothing_heavy_until_it_needs_it() -> None:
    heavy = {"celery", "redis", "jinja2", "pydantic", "rich", "openai"}
    code = f"import sys, mosaic_tasks.cli; print(sorted({heavy!r} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


# -- workflow files ----------------------------------------------------------------------------------------


def test_a_right_file_is_told_with_its_size(small: Path) -> None:
    answer = mosaic("validate", str(small))
    assert (answer.exit_code, "right: workflow 'small', 2 nodes" in answer.stdout) == (0, True)
    told = json.loads(mosaic("validate", str(small), "--json").stdout)
    assert (told["nodes"], told["output"]) == (["first", "last"], "last")


IMPOSSIBLE = """
name: small
nodes:
  first: {agent: {prompt: Hello, requires: {min_memory_gb: 80, classes: l4}}}
  last: {agent: {prompt: "{{ first }}", model: "pool:lama-3.1-8b"}}
output: last
"""


def test_what_the_model_pool_cannot_satisfy_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "impossible.yaml"
    path.write_text(IMPOSSIBLE)
    answer = mosaic("validate", str(path))
    contradictory, unknown = answer.stderr.splitlines()
    assert answer.exit_code == 0
    assert "'first': these requirements contradict each other: min_memory_gb 80, classes l4" in contradictory
    assert "'last': the model pool has no model 'lama-3.1-8b'; did you mean 'llama-3.1-8b'?" in unknown


@pytest.mark.parametrize(
    ("option", "told"), [("soon", "'soon' is no duration"), ("-1", "'-1' is no duration")]
)
def test_how_long_to_wait_is_a_duration(option: str, told: str) -> None:
    answer = mosaic("result", "0193", "--wait", "--timeout", option)
    assert answer.exit_code == ExitCode.USAGE
    assert told in answer.stderr
    assert duration("1m") == duration(60.0) == duration("60") == 60


MODELS = """
name: small
nodes:
  first: {agent: {prompt: Hello}}
  last: {agent: {prompt: "{{ first }}", model: "vlm:tiny"}}
output: last
"""


def test_a_file_is_checked_for_the_model_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(MODELS)
    monkeypatch.setenv("MOSAIC_MODEL", "vllm:big")
    answer = mosaic("validate", str(path))
    assert (answer.exit_code, "for the queues mosaic.api.vlm, mosaic.gpu.big" in answer.stdout) == (0, True)
    told = "node 'last': no engine is called 'vlm' (model 'vlm:tiny'); did you mean 'vllm'?"
    assert answer.stderr == f"{path}: warning: {told}\n"
    assert json.loads(mosaic("validate", str(path), "--json").stdout)["warnings"] == [told]
    assert {node["queue"] for node in json.loads(mosaic("graph", str(path), "--json").stdout)["nodes"]} == {
        "mosaic.api.vlm",
        "mosaic.gpu.big",
    }


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("vlm:a", "vllm"),
        ("opnai:a", "openai"),
        ("replai:a", "replay"),
        ("vllm:a", None),
        ("anthropic:a", None),
    ],
)
def test_a_misspelt_engine_is_noticed(model: str, meant: str | None) -> None:
    assert meant_engine(model) == meant


def test_an_engine_that_is_called_like_an_endpoint_is_not_taken_for_misspelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endpoints.yaml").write_text('vlm: [{url: "http://localhost:1/v1"}]')
    monkeypatch.setenv("MOSAIC_ENDPOINTS", str(tmp_path / "endpoints.yaml"))
    assert meant_engine("vlm:a") is None


@pytest.mark.parametrize("text", ["name: [", "name: x", "- 1", "", SMALL.replace("${first}", "${frist}")])
def test_a_wrong_file_is_told_without_traceback(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    answer = mosaic("validate", str(path))
    assert answer.exit_code == ExitCode.USAGE
    assert answer.stderr.startswith(f"{path}:")
    assert "Traceback" not in answer.output


def test_a_missing_file_is_told_by_its_name(tmp_path: Path) -> None:
    answer = mosaic("run", str(tmp_path / "none.yaml"))
    assert answer.exit_code == ExitCode.USAGE
    assert "none.yaml" in answer.stderr


def test_with_json_an_error_is_a_document(tmp_path: Path) -> None:
    answer = mosaic("validate", str(tmp_path / "none.yaml"), "--json")
    assert json.loads(answer.stdout)["error"]["type"] == "DefinitionError"
    assert json.loads(answer.stdout)["exit_code"] == answer.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(("form", "words"), [("text", "first"), ("mermaid", "flowchart")])
def test_a_graph_is_drawn_in_each_form(small: Path, form: str, words: str) -> None:
    assert words in mosaic("graph", str(small), "--format", form).stdout


def test_a_graph_as_json_has_nodes_and_edges(small: Path) -> None:
    assert json.loads(mosaic("graph", str(small), "--json").stdout)["edges"] == [
        {"from": "first", "to": "last", "kind": "final"}
    ]


def test_the_schema_of_files_is_printed() -> None:
    assert "nodes" in json.loads(mosaic("schema").stdout)["properties"]


# -- inputs ------------------------------------------------------------------------------------------------


def test_inputs_are_read_by_their_declared_type(tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text('["a", "b"]')
    pairs = ["repo=12", "count=12", f"names=@{tmp_path / 'names.json'}"]
    assert read_inputs(Workflow.from_yaml(SMALL), pairs) == {"repo": "12", "count": 12, "names": ["a", "b"]}


def test_an_input_may_contain_equals_signs() -> None:
    assert read_inputs(Workflow.from_yaml(SMALL), ["repo=a=b"]) == {"repo": "a=b"}


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["repo"], "write --input NAME=VALUE"),
        (["=1"], "write --input NAME=VALUE"),
        (["repo=1", "repo=2"], "given twice"),
        (["names=@none.json"], "cannot read 'none.json'"),
        (["count=many"], "'count'"),
    ],
)
def test_a_wrong_input_is_told(pairs: list[str], words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        read_inputs(Workflow.from_yaml(SMALL), pairs)


def test_a_file_that_is_no_json_is_told(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    path.write_text("[1,")
    with pytest.raises(errors.InputError, match="is no JSON"):
        read_inputs(Workflow.from_yaml(SMALL), [f"names=@{path}"])


# -- exit codes and messages -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RunFailed("no"), 1),
        (errors.DefinitionError(["no"]), 2),
        (errors.InputError("no"), 2),
        (errors.ConfigurationError("no"), 2),
        (errors.UnknownRun("no"), 3),
        (errors.ServerStartError("no"), 4),
        (errors.ServerFull("no"), 4),
        (RedisConnectionError("no"), 4),
        (errors.NoWorker(["q"], run_id="r", start="mosaic worker"), 5),
        (errors.RunCancelled("no"), 6),
        (errors.WaitTimeout("no"), 7),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_has_its_exit_code(error: BaseException, code: int) -> None:
    with pytest.raises(typer.Exit) as raised, told_errors(debug=False, as_json=False):
        raise error
    assert raised.value.exit_code == code


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RedisConnectionError("gone"), "does not answer (gone)"),
        (OutOfMemoryError("command not allowed"), "is full"),
        (NoPermissionError("no 'time'"), "forbids what is needed (no 'time')"),
        (ResponseError("WRONGTYPE"), "refuses a command (WRONGTYPE)"),
        (ResponseError("MISCONF"), "does not serve now (MISCONF): it cannot write its data to disk"),
        (OperationalError("no broker"), "does not answer (no broker)"),
    ],
)
def test_an_error_of_the_server_is_told_by_its_reason(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit), told_errors(debug=False, as_json=False):
        raise error
    assert f"mosaic: the server {words}" in capsys.readouterr().err


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), told_errors(debug=False, as_json=False):
        raise ZeroDivisionError


@pytest.mark.parametrize("way", ["option", "environment"])
def test_a_traceback_is_shown_when_asked_for(tmp_path: Path, way: str) -> None:
    arguments = ["validate", str(tmp_path / "none.yaml")]
    if way == "option":
        answer = mosaic("--debug", *arguments)
    else:
        answer = mosaic(*arguments, env={"MOSAIC_DEBUG": "1"})
    assert "Traceback" in answer.stderr


# -- worker ------------------------------------------------------------------------------------------------


def test_the_worker_is_celerys_with_task_events() -> None:
    words = working.worker_arguments(
        queues=["a", " b "], concurrency=3, pool="threads", name="w", log_level="info", more=["--purge"]
    )
    assert words[:2] == ["worker", "--task-events"]
    assert words[words.index("--queues") + 1] == "a,b"
    assert words[words.index("--hostname") + 1] == "w@%h"
    assert words[words.index("--concurrency") + 1] == "3"
    assert words[-1] == "--purge"


@pytest.mark.parametrize(
    ("model", "queues"),
    [
        (None, ["mosaic.cpu"]),
        ("extractive", ["mosaic.cpu"]),
        ("openai:m", ["mosaic.cpu", "mosaic.api.openai"]),
        ("vllm:tiny", ["mosaic.cpu"]),
    ],
)
def test_a_worker_serves_by_default_what_a_first_run_needs(model: str | None, queues: list[str]) -> None:
    assert working.default_queues(model) == queues


@pytest.mark.parametrize("queue", ["mosaic.gpu.tiny", "mosaic.h100.tiny", "mosaic.cpu.tiny"])
def test_a_worker_that_would_not_host_what_it_serves_is_refused_with_the_one_that_does(queue: str) -> None:
    answer = mosaic("worker", "--queues", f"mosaic.cpu,{queue}")
    assert answer.exit_code == ExitCode.USAGE
    assert (
        f"this worker would not host the model of {queue!r}; start instead: mosaic worker --class"
        in answer.stderr
    )
    assert "--model SPEC (the model with the alias 'tiny')" in answer.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--gpu", "H100"],
            "'H100' is no GPU class; write one in small letters, digits and '-', such as h100",
        ),
        (["--gpu", "h100"], "--class: it is for a worker that hosts a model; name that too: --model SPEC"),
        (["--engine-option", "a=1"], "--engine-option: it is for a worker that hosts a model"),
        (
            ["--gpu", "h100", "--model", "m"],
            "--class: no NVIDIA GPU here: it is on holiday; to compute on the",
        ),
    ],
)
def test_a_gpu_that_cannot_be_is_told(words: list[str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "why_none", lambda: "it is on holiday")
    answer = mosaic("worker", *words)
    assert (answer.exit_code, told in answer.stderr) == (ExitCode.USAGE, True), answer.stderr


def test_a_machine_without_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "_NVML", "libno-such-driver.so.1")
    monkeypatch.setattr(gpus, "_AMD", tmp_path / "kfd")
    assert gpus.why_none() == "its driver is not installed (libno-such-driver.so.1)"
    (tmp_path / "kfd").touch()
    assert gpus.why_none() == ""


@pytest.mark.parametrize(
    ("failed", "count", "told"), [(0, 2, ""), (0, 0, "finds none"), (9, 0, "NVML error 9")]
)
def test_a_driver_says_whether_there_is_a_gpu(
    failed: int, count: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver:
        def __init__(self, _name: str) -> None: ...

        def nvmlInit_v2(self) -> int:
            return failed

        def nvmlDeviceGetCount_v2(self, found: Any) -> None:
            found._obj.value = count

        def nvmlShutdown(self) -> None: ...

    monkeypatch.setattr(gpus.ctypes, "CDLL", Driver)
    assert told in gpus.why_none()
    assert bool(told) == bool(gpus.why_none())


@pytest.mark.parametrize("command", ["run", "batch"])
@pytest.mark.parametrize("value", ["10", "-1", "high"])
def test_what_is_no_priority_is_told(command: str, value: str, small: Path) -> None:
    answer = mosaic(command, str(small), f"--priority={value}")
    assert answer.exit_code == ExitCode.USAGE
    assert "is no priority; give a whole number from 0, the most urgent, to 9" in answer.stderr


# -- doctor ------------------------------------------------------------------------------------------------


def facts(**changed: Any) -> ServerFacts:
    known: dict[str, Any] = {
        "version": (7, 2, 4),
        "flavour": "valkey",
        "flavour_version": "9.1.2",
        "mode": "standalone",
        "maxmemory_policy": "noeviction",
        "maxmemory_bytes": 0,
        "used_memory_bytes": 1,
        "aof_enabled": True,
    }
    return ServerFacts(**{**known, **changed})


@pytest.mark.parametrize(
    ("changed", "name", "level"),
    [
        ({"version": (6, 0, 9)}, "server", "fail"),
        ({"maxmemory_policy": "allkeys-lru"}, "eviction", "warn"),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory_bytes": 9}, "eviction", "fail"),
        ({"aof_enabled": False}, "persistence", "warn"),
        ({"maxmemory_bytes": 100, "used_memory_bytes": 91}, "memory", "warn"),
        ({"maxmemory_bytes": 100, "used_memory_bytes": 100}, "memory", "fail"),
    ],
)
def test_what_is_wrong_with_a_server_is_told_with_advice(
    changed: dict[str, Any], name: str, level: str
) -> None:
    found = checks.check_server(facts(**changed), "redis://here")
    [wrong] = [check for check in found if check.level != "ok"]
    assert (wrong.name, wrong.level, bool(wrong.advice)) == (name, level, True)
    assert checks.worst(found) == level


@pytest.mark.parametrize("limit", [0, 3 << 30])
def test_nothing_is_wrong_with_a_right_server(limit: int) -> None:
    right = facts(maxmemory_bytes=limit, used_memory_bytes=2 << 30)
    assert checks.worst(checks.check_server(right, "redis://here")) == "ok"


def test_memory_is_told_in_numbers() -> None:
    told = checks.check_server(facts(maxmemory_bytes=2 << 30, used_memory_bytes=3 << 20), "redis://here")
    assert "3.0 MiB used of 2.0 GiB (maxmemory)" in [check.text for check in told]


@pytest.mark.parametrize(("skew_ms", "level"), [(-5_000.0, "warn"), (900.0, "ok")])
def test_a_clock_that_differs_is_told(skew_ms: float, level: str) -> None:
    assert checks.check_clock(Clock(round_trip_ms=0.1, skew_ms=skew_ms)).level == level


def test_wrong_packages_are_named() -> None:
    installed = {"celery": "5.6.2", "redis": "8.1.0"}
    needed = ["celery>=5.7,<6", "redis>=6.4", "rich>=14", 'flower>=2; extra == "flower"']
    check = checks.check_packages(needed, installed.get)
    assert check.level == "fail"
    assert check.text == "celery 5.6.2 (needed: <6,>=5.7); rich is missing (needed: >=14)"
    assert checks.check_packages(needed[1:2], installed.get).text == "redis 8.1.0"


def test_queues_without_worker_are_named_with_the_command_that_helps() -> None:
    worker = LiveProcess(name="h/1/a", host="h", pid=1, started_ms=0, queues=("mosaic.cpu",), slots=1)
    [check] = checks.check_queues({"mosaic.cpu": 2, "mosaic.gpu": 1}, [worker])
    assert check.level == "fail"
    assert check.text == "no worker serves 'mosaic.gpu', where 1 call of unfinished runs waits"
    assert check.advice.endswith("mosaic worker --queues mosaic.gpu")
    assert checks.check_queues({}, [])[0].level == "ok"
    assert checks.check_queues({"mosaic.cpu": 1}, [worker])[0].level == "ok"


def test_a_queue_of_a_hosted_model_is_told_with_the_worker_that_hosts_it() -> None:
    [check] = checks.check_queues({"mosaic.h100.tiny": 1}, [])
    assert "start one with: mosaic worker --class h100 --model SPEC" in check.advice


def engine(holder: str, model: str, fingerprint: str = "f1") -> EngineReport:
    return EngineReport(
        holder=holder,
        queues=(f"mosaic.gpu.{model}", f"mosaic.cpu.{model}"),
        model=model,
        fingerprint=fingerprint,
        gpu_class="cpu",
        at_ms=0,
    )


def test_workers_whose_models_share_a_queue_are_named() -> None:
    alike = [engine("h/1/a", "tiny"), engine("h/2/b", "tiny"), engine("h/3/c", "other", "f2")]
    [right] = checks.check_engines(alike)
    assert (right.level, right.text) == ("ok", "3 engines: other and tiny")
    wrong = checks.check_engines([*alike, engine("h/4/d", "tiny", "f3")])
    assert [check.level for check in wrong] == ["fail", "fail"]
    assert "'mosaic.cpu.tiny'" in wrong[0].text
    assert all(f"h/{name}" in wrong[1].text for name in ("1/a", "2/b", "4/d"))
    assert "h/3/c" not in wrong[1].text
    assert checks.check_engines([])[0].level == "ok"


def test_a_worker_that_does_not_host_what_it_serves_is_named() -> None:
    queues = ("mosaic.cpu", "mosaic.gpu.tiny", "mosaic.cpu.tiny")
    host, other = (
        LiveProcess(name=f"h/{pid}/a", host="h", pid=pid, started_ms=0, queues=queues, slots=1)
        for pid in (1, 2)
    )
    assert checks.check_hosting([host], [engine("h/1/a", "tiny")]) == []
    [wrong] = checks.check_hosting([host, other], [engine("h/1/a", "tiny")])
    assert (wrong.level, wrong.text.partition(" and hosts")[0]) == (
        "fail",
        "the worker h/2 serves 'mosaic.gpu.tiny' and 'mosaic.cpu.tiny'",
    )
    assert (
        "start instead: mosaic worker --class CLASS --model SPEC (the model with the alias 'tiny')"
        in wrong.advice
    )


def test_workers_are_counted() -> None:
    child = LiveProcess(name="h/2/b", host="h", pid=2, started_ms=0)
    assert checks.check_workers([child]).level == "warn"
    worker = LiveProcess(name="h/1/a", host="h", pid=1, started_ms=0, queues=("q",), slots=1)
    assert checks.check_workers([worker, child]).text == "1 worker: h/1 (q)"


@pytest.mark.parametrize(("free", "level"), [(1 << 40, "ok"), (1 << 29, "warn"), (1 << 20, "fail")])
def test_little_space_is_told(free: int, level: str) -> None:
    assert checks.check_space("here", free).level == level


# -- what is printed ---------------------------------------------------------------------------------------


def test_json_has_named_fields_and_takes_bytes() -> None:
    event = opened().events[0]
    assert json.loads(to_json({"event": event, "data": b"ab"}))["event"]["kind"] == "opened"
    assert "\n" not in to_json([1, {"a": [2]}], indent=0)


def test_an_event_is_told_by_the_names_of_its_nodes() -> None:
    plan = report_plan()
    lines = [event_line(plan, event, START_MS) for event in finished().events]
    assert any(
        "ready" in line and "sections[0], sections[1] and sections[2]  in queue mosaic.cpu" in line
        for line in lines
    )
    assert any("sections[1]  in 100 ms, after: ToolError: no" in line for line in lines)
    assert any("sections[close]" in line for line in lines)
    assert any("sections  into 3" in line for line in lines)
    assert lines[-1].split() == ["400", "ms", "closed", "done"]


@pytest.mark.parametrize(
    ("usd", "told"), [(0.25, "0.2500 USD"), (0.0, "0.0000 USD"), (0.000039, "0.000039 USD")]
)
def test_usage_is_told_in_tokens_and_money(usd: float, told: str) -> None:
    [event] = Story().tell(5, "usage", "0", detail="openai:m", tokens=(9, 2), cost_usd=usd).events  # type: ignore[arg-type]
    line = event_line(report_plan(), event, START_MS)
    assert line.endswith(f"commits  openai:m: 9 tokens in, 2 out, {told}")


def shown(story: Story) -> list[str]:
    console = Console(file=io.StringIO(), width=200, markup=False, highlight=False)
    with Lines(report_plan(), "r", console) as lines:
        for event in story.events:
            lines.show(event)
    assert isinstance(console.file, io.StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines()]


def test_without_a_terminal_each_change_is_a_line() -> None:
    lines = shown(finished())
    assert lines[0] == "0 ms  run r of weekly-report"
    assert "10 ms  commits: done after 5 ms" in lines
    assert "60 ms  sections: 1/3" in lines
    assert "70 ms  sections: next attempt in 100 ms, after: ToolError: no" in lines
    assert "120 ms  sections: process host/2/b died, its work is taken over" in lines
    assert lines[-1] == "400 ms  run done"


def test_a_large_fan_out_takes_ten_lines() -> None:
    story = fanned_out(1000)
    for item in range(1000):
        story.run(f"2.{item}", 40 + item, 41 + item)
    assert sum("/1000" in line for line in shown(story)) == 10


def test_a_failed_run_shows_its_error_once() -> None:
    story = opened().tell(5, "claimed", "0").tell(9, "failed", "0", detail="ToolError: no")
    lines = shown(story.tell(9, "closed", detail="failed: ToolError: no"))
    assert lines[-2:] == [
        "9 ms  commits: failed after 4 ms (ToolError: no)",
        "9 ms  run failed: ToolError: no",
    ]


def test_a_terminal_gets_a_table_that_ends_as_the_run_ended() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=20, legacy_windows=False)
    with display(report_plan(), "r", console) as board:
        assert isinstance(board, Board)
        for event in finished().events:
            board.show(event)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "sections" in text
    assert "3/3" in text
    assert "weekly-report r: done, 400 ms: 5 done" in text


def test_what_runs_and_failed_is_shown_where_not_all_fits() -> None:
    story = opened().run("0", 1, 2).tell(3, "claimed", "1", holder="h")
    nodes = project(report_plan(), story.events).nodes
    assert [found.name for found in chosen(nodes, 2)] == ["people", "tickets"]
    assert len(chosen(nodes, 99)) == 5


def test_no_line_of_the_table_is_wider_than_the_terminal() -> None:
    progress = Progress(report_plan(), run_id="r" * 36)
    story = opened().tell(5, "claimed", "0").tell(9, "retry", "0", detail="e" * 500, pause_ms=10)
    for event in story.events:
        progress.apply(event)
    console = Console(file=io.StringIO(), width=60)
    console.print(render(progress, progress.view().nodes, START_MS + 10, 20))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= 60
    assert any("commits" in line for line in lines)


@pytest.mark.parametrize("amount", ["abc", "-1", "inf", "nan"])
def test_a_budget_that_is_no_amount_is_told_what_to_give(amount: str) -> None:
    answer = mosaic("run", "w.yaml", "--budget", amount)
    assert answer.exit_code == ExitCode.USAGE
    told = " ".join(answer.stderr.replace("\u2502", " ").split())
    assert f"{amount!r} is no amount of money; write US dollars as a number, such as 0.50" in told


def test_a_drain_reads_durations_as_other_commands_do() -> None:
    answer = mosaic("drain", "--timeout", "5 lightyears")
    assert answer.exit_code == ExitCode.USAGE
    assert "is no duration" in answer.stderr
