"""GPU workers that lose an engine, a child or their life, and that are told to end: no call is lost, nothing stays."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from mosaic_queues.settings import Settings
from mosaic_tasks import Run
from tests.engine.gpu_runs import (
    RUN_S,
    GpuWorkers,
    agent,
    belongings,
    cores,
    done,
    fan_out,
    guards,
    reports,
    reports_of,
    spec_file,
    streamed,
    submitted,
    wait_gone,
    wait_running,
    wait_until,
)
from tests.engine.models import WEIGHTS, write_model
from tests.services import ServerForTests, Worker

CALLS, SOME = 30, 10
LONG: dict[str, Any] = {"max_tokens": 950}
LIST = {"type": "array", "items": {"enum": ["alpha", "beta"]}, "minItems": 100, "maxItems": 100}


@pytest.fixture
def started(redis_server: ServerForTests, mosaic_process: Settings, tmp_path: Path) -> Iterator[GpuWorkers]:
    with GpuWorkers(redis_server.urls, tmp_path) as workers:
        yield workers


@pytest.fixture
def spec(tiny_model: Path, tmp_path: Path) -> Path:
    return spec_file(tmp_path, tiny_model)


def lists() -> Run:
    """A run of 30 long calls. Each gives the same list each time, also from a model with random weights: a grammar
    leaves it two words to choose from, and an answer under a grammar begins anew after a failure."""
    return submitted({"lists": fan_out(output=LIST, **LONG)}, items=CALLS)


def said_once(run: Run) -> bool:
    """Whether no call was recorded twice."""
    return max(Counter(done(run)).values()) == 1


def core(worker: Worker) -> psutil.Process:
    """The EngineCore of a worker with one engine."""
    found = cores(worker)
    return next(each for each in found if each.ppid() == worker.pid)


LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[[a-z]+ *\] \S")
CELERYS = re.compile(r"  \. mosaic\.\w+|worker: .+")


def test_a_start_and_its_end_by_ctrl_c_are_told_in_lines_of_one_form(
    started: GpuWorkers, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_LOGGING_LEVEL")
    worker = started.ready(spec)
    os.killpg(worker.pid, signal.SIGINT)  # as a terminal does
    assert worker.wait(60) == 0
    worker.kill()  # reads its log to the end
    told = [line for line in worker.log.partition("[tasks]")[2].splitlines() if line.strip()]
    assert [line for line in told if not LINE.match(line) and not CELERYS.fullmatch(line)] == []
    assert any("ready after" in line for line in told)


class TestKills:
    def test_a_killed_engine_costs_no_call_and_is_replaced(self, started: GpuWorkers, spec: Path) -> None:
        worker = started.ready(spec)
        story = {"text": agent("Tell a story", **LONG)}
        expected = lists().result(RUN_S)
        run, read = lists(), submitted(story)
        with ThreadPoolExecutor(1) as readers:
            reading = readers.submit(streamed, read)
            wait_running(CALLS)
            first = core(worker)
            first.kill()
            assert run.result(RUN_S) == expected
            assert read.result(RUN_S) == reading.result(RUN_S)
        assert said_once(run)
        assert said_once(read)
        assert worker.log.count("engine.died") == 1
        assert f"EngineCore (pid {first.pid}) was killed by SIGKILL" in worker.log
        assert "Traceback" not in worker.log
        for child in psutil.Process(worker.pid).children():
            child.kill()
        wait_until(lambda: guards(worker) and cores(worker) and reports()["tiny"].slots, "another engine")
        assert lists().result(RUN_S) == expected

    def test_a_killed_worker_costs_no_call_and_leaves_nothing(self, started: GpuWorkers, spec: Path) -> None:
        first = started.host(spec)
        second = started.host(spec).wait_ready(240)
        first.wait_ready(240)
        expected = lists().result(RUN_S)
        run = lists()
        wait_until(
            lambda: any(report.running for report in reports_of(first)), "requests in the first worker"
        )
        left = belongings(first)
        first.signal(signal.SIGKILL)
        wait_gone(left)
        assert run.result(RUN_S) == expected
        assert said_once(run)
        assert second.returncode is None

    def test_an_engine_that_cannot_be_replaced_ends_its_worker(
        self, started: GpuWorkers, tmp_path: Path
    ) -> None:
        model = write_model(tmp_path / "brittle")
        worker = started.ready(spec_file(tmp_path, model))
        left = belongings(worker)
        weights = model / WEIGHTS
        weights.write_bytes(weights.read_bytes()[:1000])
        core(worker).kill()
        assert worker.wait(120) == 1
        worker.kill()
        assert "engine 'brittle' died 4 times within 900 s, the last time: " in worker.log
        assert "are corrupt: " in worker.log
        assert "Traceback" not in worker.log
        wait_gone(left)


class TestShutdowns:
    def test_a_warm_one_records_what_runs(self, started: GpuWorkers, spec: Path) -> None:
        worker = started.ready(spec)
        run = lists()
        wait_running(SOME)
        left = belongings(worker)
        worker.signal(signal.SIGTERM)
        assert worker.wait(60) == 0
        wait_gone(left)
        assert len(done(run)) >= SOME
        assert said_once(run)
        assert all(call.state != "claimed" for call in run.live_calls())
        assert "Traceback" not in worker.log
        assert reports() == {}

    @pytest.mark.parametrize(
        "signals", [[signal.SIGQUIT], [signal.SIGTERM, signal.SIGTERM]], ids=["quit", "twice"]
    )
    def test_a_cold_one_hands_back_what_runs(
        self, started: GpuWorkers, spec: Path, signals: list[signal.Signals]
    ) -> None:
        worker = started.ready(spec)
        expected = lists().result(RUN_S)
        run = lists()
        wait_running(SOME)
        left = belongings(worker)
        for number in signals:
            worker.signal(number)
            if number is not signals[-1]:
                worker.wait_said("Warm shutdown")
        worker.wait(30)
        wait_gone(left)
        assert run.record().status == "running"
        started.ready(spec)
        assert run.result(RUN_S) == expected
        assert said_once(run)

    @pytest.mark.parametrize("phase", ["importing vLLM", "loading weights"])
    def test_an_interrupt_while_the_engine_starts(self, started: GpuWorkers, spec: Path, phase: str) -> None:
        worker = started.host(spec)
        worker.wait_said(phase, 120)
        left = belongings(worker)
        worker.signal(signal.SIGINT)
        assert worker.wait(60) == 0
        worker.kill()
        wait_gone(left)
        assert "Traceback" not in worker.log
        assert reports() == {}
