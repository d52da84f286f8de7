"""What the command says of a run that is over: its output as it is, and once why there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("worker")]
TOOLS = "tests.integration.stream_tools"

Written = Callable[..., str]


@pytest.fixture
def worker(mosaic_process: object, workers: Workers) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes a workflow of these nodes, the last of which is the output; gives its path."""

    def write(**nodes: Any) -> str:
        file = tmp_path / "workflow.yaml"
        file.write_text(json.dumps({"name": "ends", "nodes": nodes, "output": list(nodes)[-1]}))
        return str(file)

    return write


def told(x: Any) -> dict[str, Any]:
    return {"tool": f"{TOOLS}:told", "with": {"x": x}}


def mosaic(*arguments: str) -> Any:
    return CliRunner().invoke(application, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize(
    ("value", "printed"),
    [("text\n", "text\n"), ("text", "text\n"), ("", "\n"), ("a\n\n", "a\n\n"), (1, "1\n")],
)
def test_an_output_ends_with_the_newline_that_it_has(written: Written, value: Any, printed: str) -> None:
    assert mosaic("run", written(x=told(value)), "--key", "k").stdout == printed
    run = mosaic("run", written(x=told(value)), "--key", "k", "--no-wait").stdout.strip()
    assert mosaic("result", run).stdout == printed


def test_why_a_run_failed_is_told_once_with_who_and_what_to_do(written: Written) -> None:
    answer = mosaic("run", written(good=told(1), bad={"tool": f"{TOOLS}:fails", "after": ["good"]}))
    assert answer.exit_code == ExitCode.FAILED
    assert answer.stderr.count("no such luck") == 1
    *shown, last = answer.stderr.splitlines()
    assert "node 'bad': ToolError: RuntimeError: no such luck" in last
    run = last.partition("; more: mosaic explain ")[2]
    assert mosaic("explain", run).exit_code == 0
    assert "bad: failed after" in shown[-2]
    assert shown[-1].endswith("run failed")
    again = mosaic("rerun", run, "--node", "bad")
    assert (again.exit_code, again.stderr.count("no such luck")) == (ExitCode.FAILED, 1)


def test_why_an_attempt_failed_is_told_when_it_is_tried_again(written: Written) -> None:
    bad = {"tool": f"{TOOLS}:fails_once", "with": {"x": 1}, "retry": {"attempts": 2, "delay": 0.01}}
    answer = mosaic("run", written(x=bad))
    assert (answer.exit_code, answer.stdout, answer.stderr.count("fails once")) == (0, "1\n", 1)


def test_one_document_is_one_line_for_programs(written: Written) -> None:
    (line,) = mosaic("run", written(x=told({"a": [1]})), "--json").stdout.splitlines()
    assert json.loads(line)["output"] == {"a": [1]}
    (line,) = mosaic("result", "nope", "--json").stdout.splitlines()
    assert json.loads(line)["error"]["type"] == "UnknownRun"
