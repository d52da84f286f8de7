"""`make flower`: a run watched in Flower, and nothing left after Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, str(ROOT / "scripts" / "flower.py")]
WAIT_S = 60.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MOSAIC_", "FLOWER_", "OPENAI_")) and name != "PYTHONPATH"
    }
    told = {
        "FLOWER_PORT": "0",
        "FLOWER_UNAUTHENTICATED_API": "1",
        "NO_COLOR": "1",
        "MOSAIC_REPLAY_SPEED": "20",
    }
    return {**kept, **told, "MOSAIC_HOME": str(tmp_path / "home")}


@contextlib.contextmanager
def started(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        DEMO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as demo:
        try:
            yield demo
        finally:
            demo.send_signal(signal.SIGINT)


def left_over(home: str) -> list[str]:
    """Processes that belong to the demo's home."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if home in words or process.environ().get("MOSAIC_HOME") == home:
                found.append(words)
    return found


def task(url: str, task_id: str) -> dict[str, Any]:
    with contextlib.suppress(OSError), urlopen(f"{url}/api/task/info/{task_id}", timeout=10) as answer:
        return dict(json.load(answer))
    return {}


def test_it_shows_where_a_run_is_and_stops_everything(environment: dict[str, str]) -> None:
    with started(environment) as demo:
        assert demo.stdout is not None
        printed = ""
        for line in demo.stdout:
            printed += line
            if "Ctrl-C stops everything" in line:
                break
        found = re.search(r"(http://127\.0\.0\.1:\d+)/task/(\S+)", printed)
        assert found is not None, printed
        deadline = time.monotonic() + WAIT_S
        while (run := task(*found.groups())).get("state") != "SUCCESS":
            assert time.monotonic() < deadline, run
            time.sleep(0.2)
        assert run["name"] == "financial-report"
        assert len(run["children"]) > 20
        with urlopen(f"{found[1]}/task/{found[2]}", timeout=10) as page:
            assert b"financial-report" in page.read()
        demo.send_signal(signal.SIGINT)
        printed += demo.stdout.read()
    assert demo.returncode == 130, printed
    assert "Traceback" not in printed
    assert left_over(environment["MOSAIC_HOME"]) == []


def test_a_port_that_is_taken_is_told(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        demo = subprocess.run(
            DEMO,
            env={**environment, "FLOWER_PORT": str(held.getsockname()[1])},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            cwd=ROOT,
            check=False,
        )
    assert demo.returncode not in (0, 130)
    assert "is taken; choose another: FLOWER_PORT=" in demo.stdout
    assert left_over(environment["MOSAIC_HOME"]) == []
