"""Processes that a template forks are what `python -m` would have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.forking import Forked, forked, template_pids
from tests.leaks import Snapshot, leaks_since

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked"),
]

COMMAND = [sys.executable, "-m", "celery", "-A", "mosaic_tasks.app"]
AWAY = "redis://127.0.0.1:1/0"


@contextmanager
def running(*words: str, cwd: Path, **variables: str) -> Iterator[Forked]:
    """`celery -A mosaic_tasks.app WORDS`, killed in the end."""
    process = forked([*COMMAND, *words], environment={**os.environ, **variables}, cwd=cwd)
    assert process is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("number", [1, 2])
def test_each_has_a_session_an_environment_and_an_output_of_its_own(number: int, tmp_path: Path) -> None:
    with running("report", cwd=tmp_path, MOSAIC_REDIS_URL=f"redis://127.0.0.1:{number}/0") as process:
        assert os.getsid(process.pid) == process.pid
        told = process.stdout.read()
        assert told.startswith("\nsoftware -> celery:")
        assert f"//127.0.0.1:{number}/" in told
        assert process.wait() == 0


def test_how_one_ended_is_told_as_by_popen(tmp_path: Path) -> None:
    with running("no-such-command", cwd=tmp_path) as refused:
        assert (refused.wait(), refused.poll()) == (2, 2)
    with running("beat", cwd=tmp_path, MOSAIC_REDIS_URL=AWAY) as beat:
        assert beat.stdout.readline()
        assert psutil.Process(beat.pid).cwd() == str(tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):
            beat.wait(0)
        assert beat.poll() is None
        beat.send_signal(signal.SIGKILL)
        assert beat.wait() == -signal.SIGKILL


def test_one_that_stays_is_a_leak(tmp_path: Path) -> None:
    with running("--version", cwd=tmp_path) as first:
        first.wait()
    before = Snapshot.take()
    with running("beat", cwd=tmp_path, MOSAIC_REDIS_URL=AWAY) as process:
        (told,) = leaks_since(before, grace_s=0.01)["processes"]
        assert told.startswith(f"{process.pid} ")
    assert not leaks_since(before)["processes"]
    assert template_pids() <= {child.pid for child in psutil.Process().children()}


def test_what_an_interpreter_reads_at_its_start_is_as_it_was_asked_for(tmp_path: Path) -> None:
    told = {}
    for zone in ("UTC", "Pacific/Chatham"):
        with running("report", cwd=tmp_path, TZ=zone) as process:
            process.wait()
        told[zone] = template_pids()
    assert len(told["Pacific/Chatham"] - told["UTC"]) == 1


@pytest.mark.parametrize(
    "command",
    [[sys.executable, "-m", "mosaic_tasks.cli", "worker"], ["/usr/bin/python3", *COMMAND[1:], "worker"]],
)
def test_what_would_load_something_else_is_not_forked(command: list[str], tmp_path: Path) -> None:
    assert forked(command, environment=os.environ, cwd=tmp_path) is None
