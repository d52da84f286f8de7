"""Engines that die, hang or lose their worker: calls hear of it at once, and no process stays. All kills are real."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from mosaic_queues.errors import EngineOverloaded
from mosaic_tasks.engines.protocol import complete
from mosaic_tasks.engines.vllm.engine import VLLMEngine
from mosaic_tasks.engines.vllm.orphans import VARIABLE
from mosaic_tasks.engines.vllm.supervisor import Supervision, Supervisor
from tests.engine.hosting import ask, hosted, small

ENDLESS: dict[str, Any] = {"max_tokens": 900, "temperature": 1.0}
QUICK = Supervision(probe_s=3.0, look_s=0.2, base_s=0.1, deaths=3)
ORPHANS_END_S = 10.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """EngineCore, and the model in a child of it, as on GPUs that share a model."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """An empty folder; the engine puts sockets there, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="mosaic-test-", dir="/tmp") as folder:
        yield Path(folder)


def core_of(pids: list[int]) -> int:
    """The one whose parent is not among them."""
    return next(pid for pid in pids if psutil.Process(pid).ppid() not in pids)


async def until_ready(supervisor: Supervisor) -> None:
    while not supervisor.ready:
        await asyncio.sleep(0.05)


async def broken_by(supervisor: Supervisor, pid: int, how: signal.Signals, *, streams: int = 6) -> list[str]:
    """What that many streams end with when a process is sent a signal."""
    tasks = [asyncio.create_task(complete(supervisor, ask(f"Item {n}", **ENDLESS))) for n in range(streams)]
    while supervisor.load().running < streams:
        assert not any(task.done() for task in tasks), "an answer ended before all had begun"
        await asyncio.sleep(0.01)
    os.kill(pid, how)
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(error, EngineOverloaded) and error.retryable for error in errors), errors
    return [str(error) for error in errors]


class TestDeath:
    def test_a_killed_core_and_a_hung_one_are_replaced_and_then_it_is_given_up(
        self, tiny_model: Path
    ) -> None:
        reasons: list[str] = []
        supervisor = Supervisor(small(tiny_model), policy=QUICK, on_give_up=reasons.append)

        async def die() -> None:
            first = supervisor.pids()
            with capture_logs() as logs:
                told = await broken_by(supervisor, core_of(first), signal.SIGKILL)
                assert set(told) == {told[0]}
                assert "EngineCore (pid" in told[0]
                assert "was killed by SIGKILL; it restarts" in told[0]
                while supervisor.ready:
                    await asyncio.sleep(0)
                assert (supervisor.state, "SIGKILL" in supervisor.phase) == ("restarting", True)
                with pytest.raises(EngineOverloaded, match=r"engine 'tiny' .*died: .*SIGKILL; it restarts"):
                    await complete(supervisor, ask("Go", max_tokens=1))
                await until_ready(supervisor)
            died = [entry for entry in logs if entry["event"] == "engine.died"]
            assert len(died) == 1
            assert died[0]["streams"] == 6
            assert "SIGKILL" in died[0]["cause"]
            assert not any(psutil.pid_exists(pid) for pid in first)

        async def hang() -> None:
            second = supervisor.pids()
            told = await broken_by(supervisor, core_of(second), signal.SIGSTOP, streams=2)
            assert "it hung: no token for" in told[0]
            await until_ready(supervisor)
            assert not any(psutil.pid_exists(pid) for pid in second)
            answer = await complete(supervisor, ask("Go", max_tokens=3))
            assert answer.usage.output_tokens == 3

        async def give_up() -> None:
            await broken_by(supervisor, core_of(supervisor.pids()), signal.SIGKILL, streams=1)
            while not reasons:
                await asyncio.sleep(0.05)
            assert "died 3 times within 900 s, the last time: EngineCore" in reasons[0]
            with pytest.raises(EngineOverloaded, match="is not started again"):
                await complete(supervisor, ask("Go"))
            assert (supervisor.pids(), supervisor.load().slots) == ([], 0)

        assert supervisor.state == "loading"
        with hosted(supervisor) as host:
            assert supervisor.state == "ready"
            host.run(die())
            host.run(hang())
            host.run(give_up())
        assert len(reasons) == 1

    @pytest.mark.usefixtures("two_processes")
    def test_the_death_of_a_child_of_the_core_ends_all_of_it(self, tiny_model: Path) -> None:
        async def lose_child() -> None:
            pids = engine.engine.pids()
            child = next(pid for pid in pids if pid != core_of(pids))
            stream = engine.engine.stream(ask("Go", **ENDLESS))
            await anext(stream)
            os.kill(child, signal.SIGKILL)
            with pytest.raises(EngineOverloaded, match="engine 'tiny' died: "):
                async for _ in stream:
                    pass
            assert engine.engine.pids() == []

        with hosted(VLLMEngine(small(tiny_model))) as engine:
            engine.run(lose_child())


@contextmanager
def worker(model: Path, *, temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that hosts the model."""
    paths = [str(ROOT / folder) for folder in (".", "queues", "routing")]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.worker_main", str(model)],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore", "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def lines_until(process: subprocess.Popen[str], start: str) -> str:
    """The first line of the process's output that begins or ends so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start) or line.rstrip().endswith(start):
            return line
    raise AssertionError(f"the worker ended before it said {start!r}")


def belonging(worker_pid: int) -> list[psutil.Process]:
    """All that the worker started, whoever is its parent."""
    return psutil.Process(worker_pid).children(recursive=True)


def guards(worker_pid: int) -> list[psutil.Process]:
    """The processes that guard the worker's engine."""
    found = []
    for child in belonging(worker_pid):
        with suppress(psutil.Error):
            if any(part.endswith("orphans.py") for part in child.cmdline()):
                found.append(child)
    return found


class TestOrphans:
    @pytest.mark.usefixtures("two_processes")
    def test_nothing_outlives_a_worker_that_is_killed_after_its_guard(
        self, tiny_model: Path, short_path: Path
    ) -> None:
        with worker(tiny_model, temporary=short_path) as process:
            told = [int(pid) for pid in lines_until(process, "pids").split()[1:]]
            (guard,) = guards(process.pid)
            guard.kill()
            while not (set(guards(process.pid)) - {guard}):
                time.sleep(0.05)
            descendants = belonging(process.pid)
            assert set(told) <= {child.pid for child in descendants}
            assert len(told) >= 2
            process.kill()
            _, alive = psutil.wait_procs(descendants, timeout=ORPHANS_END_S)
        assert alive == []

    def test_nothing_outlives_a_worker_that_is_killed_while_its_engine_starts(
        self, tiny_model: Path, short_path: Path
    ) -> None:
        with worker(tiny_model, temporary=short_path) as process:
            lines_until(process, "starting the engine's process")
            descendants = belonging(process.pid)
            assert any(_is_marked(child) for child in descendants)
            assert list(short_path.glob("mosaic-vllm-*"))
            process.kill()
            _, alive = psutil.wait_procs(descendants, timeout=ORPHANS_END_S)
        assert alive == []
        assert list(short_path.glob("mosaic-vllm-*")) == []


def _is_marked(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return VARIABLE in process.environ()
    return False


class TestAdmission:
    """A KV cache of 23 blocks of 32 tokens, and requests of some 110: seven fit."""

    REQUESTS = 40

    async def _one(self, engine: VLLMEngine, number: int, begun: asyncio.Event) -> None:
        schema = {"type": "array", "items": {"enum": [0, 1]}, "minItems": 40, "maxItems": 40}
        async for _ in engine.stream(ask(f"Item {number}", max_tokens=90, output_schema=schema)):
            begun.set()

    async def _admitted(self, engine: VLLMEngine) -> int:
        """Asks as many at once as the engine has slots for; says the most at once."""
        tasks: set[asyncio.Task[None]] = set()
        most = 0
        for number in range(self.REQUESTS):
            while engine.load().slots == 0:
                _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            begun = asyncio.Event()
            tasks.add(asyncio.create_task(self._one(engine, number, begun)))
            await begun.wait()
            most = max(most, engine.load().running)
        await asyncio.gather(*tasks)
        return most

    def test_what_does_not_fit_waits_outside(self, tiny_model: Path) -> None:
        spec = small(
            tiny_model,
            max_length=256,
            options={"num_gpu_blocks_override": 24, "enable_prefix_caching": False},
        )
        with hosted(VLLMEngine(spec)) as engine:
            most = engine.run(self._admitted(engine.engine))
            assert most > 2
            assert engine.engine.load().preempted == 0

            async def all_at_once() -> None:
                await asyncio.gather(
                    *(self._one(engine.engine, number, asyncio.Event()) for number in range(self.REQUESTS))
                )

            engine.run(all_at_once())
            assert engine.engine.load().preempted > 0
