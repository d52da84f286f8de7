"""`make demo` when something is wrong, and when somebody stops it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, str(ROOT / "scripts" / "demo.py")]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MOSAIC_", "DEMO_", "OPENAI_")) and name != "PYTHONPATH"
    }
    return {**kept, "MOSAIC_HOME": str(tmp_path / "home"), "DEMO_OUT": str(tmp_path / "out"), "NO_COLOR": "1"}


def start(environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        DEMO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )


def left_over(tmp_path: Path) -> list[str]:
    """Processes that belong to the demo's home."""
    home = str(tmp_path / "home")
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if home in words or process.environ().get("MOSAIC_HOME") == home:
                found.append(words)
    return found


@pytest.mark.parametrize("line", ["started cpu-1", "run ", "history: done"])
def test_interrupting_it_leaves_no_process(environment: dict[str, str], tmp_path: Path, line: str) -> None:
    with start(environment) as demo:
        assert demo.stdout is not None
        for printed in demo.stdout:
            if line in printed:
                demo.send_signal(signal.SIGINT)
                break
        rest = demo.stdout.read()
    assert demo.returncode in (130, 0), rest
    assert "Traceback" not in rest
    assert left_over(tmp_path) == []


def test_without_tickets_it_ends_with_how_to_add_them(environment: dict[str, str], tmp_path: Path) -> None:
    demo = start(environment)
    printed, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0, printed
    assert printed.splitlines()[-1].startswith("no tickets: `make demo TICKETS=file` adds")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "weekly-report.html",
        "weekly-report.md",
    ]
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("DEMO_REPO", "/nowhere/at/all", "'/nowhere/at/all' does not exist"),
        ("DEMO_TICKETS", __file__, "test_demo.py' begins with"),
        ("DEMO_SINCE", "[bold]blah", "since '[bold]blah' is not a date"),
    ],
    ids=["missing repository", "unknown tickets", "no date"],
)
def test_a_mistake_is_told_once_before_anything_starts(
    environment: dict[str, str], tmp_path: Path, variable: str, value: str, told: str
) -> None:
    demo = start({**environment, variable: value})
    printed, _ = demo.communicate(timeout=60)
    assert demo.returncode == 2, printed
    [line] = printed.splitlines()
    assert line.startswith("the demo did not start: ")
    assert told in line
    assert not (tmp_path / "home").exists()
