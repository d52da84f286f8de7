"""What carries a mark dies with the process that gave it, whoever its parent is by then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from mosaic_tasks.engines.vllm.orphans import VARIABLE, Guard, kill_marked, marked, marking

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="marks are read from /proc")

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
WORKER = f"""
import subprocess, sys
from mosaic_tasks.engines.vllm.orphans import Guard, marking
guard = Guard()
guard.keep()
with marking(guard.mark):
    # A child that has a child and ends: what it started belongs to nobody.
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    subprocess.run([sys.executable, "-c", code, {SLEEP!r}])
print(guard.mark, guard.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def guard() -> Iterator[Guard]:
    made = Guard()
    yield made
    made.close()


def sleeper(guard: Guard) -> subprocess.Popen[str]:
    with marking(guard.mark):
        process = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_what_is_started_inside_carries_the_mark(guard: Guard) -> None:
    with sleeper(guard) as process:
        assert marked(guard.mark) == [process.pid]
        assert marked("another") == []
        assert kill_marked(guard.mark) == [process.pid]
    assert marked(guard.mark) == []


def test_the_environment_is_as_before(guard: Guard) -> None:
    before = dict(os.environ)
    with marking(guard.mark):
        assert os.environ[VARIABLE] == guard.mark
    assert dict(os.environ) == before


def test_closing_kills_what_is_left(guard: Guard) -> None:
    guard.keep()
    with sleeper(guard) as process:
        assert guard.close() == [process.pid]
    assert guard.pid is None


def test_a_guard_that_was_killed_is_replaced(guard: Guard) -> None:
    assert guard.keep() is True
    assert guard.keep() is False
    assert guard.pid is not None
    first = psutil.Process(guard.pid)
    first.kill()
    psutil.wait_procs([first], timeout=5)
    assert guard.keep() is True
    assert guard.pid != first.pid


def test_orphans_of_a_killed_worker_are_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        # The orphan's word comes before or after its parent's; only then has it become what it was started as.
        told = sorted(worker.stdout.readline().split() for _ in range(2))
        assert ["up"] in told
        ((mark, guard_pid),) = (words for words in told if words != ["up"])
        orphans = [psutil.Process(pid) for pid in marked(mark)]
        guard = psutil.Process(int(guard_pid))
        assert len(orphans) == 1
        worker.kill()
        _, alive = psutil.wait_procs([*orphans, guard], timeout=20)
    assert alive == []
