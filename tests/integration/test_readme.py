"""The README's commands, run as they stand, in its order."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_queues.liveness import live_processes
from tests.services import Worker, key_events

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


class Block(NamedTuple):
    language: str
    mark: str
    text: str


def blocks() -> list[Block]:
    found = re.findall(r"^```(\w+) ?(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with the README's files."""
    for block in blocks():
        if block.language in ("python", "yaml"):
            name = re.match(r"# (\S+)\n", block.text)
            assert name is not None, block.text
            (tmp_path / name[1]).write_text(block.text, "utf-8")
    return tmp_path


@pytest.fixture
def environment(redis_url: str, project: Path) -> dict[str, str]:
    bin_directory = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([bin_directory, os.environ["PATH"]]),
        "MOSAIC_REDIS_URL": redis_url,
        "MOSAIC_HOME": str(project / ".mosaic"),
    }


@contextlib.contextmanager
def in_background(
    command: str, directory: Path, environment: dict[str, str], client: Redis
) -> Iterator[None]:
    """A worker that has announced itself, and that is stopped after the block."""
    before = workers_of(client)
    with key_events(client, "z") as events:
        worker = Worker("of the README", command.split(), environment=environment, cwd=directory)
        try:
            if not any(key.endswith(":holders") and workers_of(client) != before for _, key in events):
                pytest.fail(f"the worker did not announce itself; it printed:\n{worker.log}", pytrace=False)
            yield
        finally:
            worker.stop()


def workers_of(client: Redis) -> set[str]:
    """The workers that announced themselves."""
    return {process.name for process in live_processes(client, Keys("mosaic")) if process.queues}


def run(line: str, directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_its_commands_work_in_order(project: Path, environment: dict[str, str], redis_client: Redis) -> None:
    outputs: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for block in blocks():
            if block.language != "sh" or block.text.startswith(("make ", "pip ")):
                continue
            if block.mark == "worker":
                stack.enter_context(in_background(block.text, project, environment, redis_client))
                continue
            for line in block.text.splitlines():
                outputs[line] = run(line, project, environment)
    for line in ("mosaic run report.yaml --input day=Monday", "python report.py"):
        assert "Oslo bought for 120 euros." in outputs[line]
    assert outputs["mosaic stream $(cat flash.txt)"].endswith("3. Bern bought for 95 euros.\n")
    assert (project / "timeline.svg").read_text("utf-8").startswith("<svg")


def test_a_plain_celery_worker_serves_alone(
    project: Path, environment: dict[str, str], redis_client: Redis
) -> None:
    command = next(b.text for b in blocks() if b.mark == "worker" and b.text.startswith("celery"))
    alone = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    with in_background(command, project, alone, redis_client):
        printed = run("mosaic run report.yaml --input day=Monday", project, alone)
    assert "Oslo bought for 120 euros." in printed


def test_make_demo_leaves_a_report_and_no_process(tmp_path: Path) -> None:
    environment = {**os.environ, "MOSAIC_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    for name in ("MOSAIC_REDIS_URL", "PYTHONPATH"):
        environment.pop(name, None)
    printed = run("make demo", ROOT, environment)
    assert "Weekly report" in printed
    for name in ("weekly-report.md", "weekly-report.html"):
        assert (ROOT / "out" / name).stat().st_size > 500
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path / "home") not in listed


def test_every_make_target_of_the_readme_exists() -> None:
    named = set(re.findall(r"make ([a-z]+)", README))
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert named <= known
