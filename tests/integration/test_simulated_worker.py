"""Workers that host simulated GPUs, as `mosaic worker` starts them: routed to, reported, and dead."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from mosaic_queues.documents import dump
from mosaic_queues.settings import settings
from mosaic_routing.inventory import engines
from mosaic_tasks import Run, Workflow, submit
from tests.services import ServerForTests, Worker, Workers, key_events

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

WAIT_S = 30.0
FAST, SLOW = "simulated-fast", "simulated-slow"
PROMPT = "A long story about a river. " * 20


class SimulatedGpus(Workers):
    """Starts `mosaic worker` with a simulated GPU."""

    def host(self, gpu_class: str, folder: Path, **fields: Any) -> Worker:
        """Starts one; its model is called `teller`."""
        spec = folder / f"{gpu_class}.yaml"
        told = {"simulated": True, "alias": "teller", "recordings": str(folder / "answers.jsonl")}
        spec.write_text(dump({**told, "decode_tokens_s": 1000.0, **fields}), encoding="utf-8")
        name = f"{gpu_class}-{os.getpid()}@localhost"
        command = [sys.executable, "-m", "mosaic_tasks.cli", "worker", "--class", gpu_class, "--name", name]
        command += ["--model", str(spec)]
        worker = Worker(name, command, environment=self._environment({}), cwd=self._directory)
        self._started.append(worker)
        return worker


@pytest.fixture
def gpus(
    redis_server: ServerForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SimulatedGpus]:
    """A model pool with a model that two classes of simulated GPUs host."""
    (tmp_path / "answers.jsonl").write_text(json.dumps({"text": "It flows.", "match": [""]}) + "\n")
    hosting = {"spec": {"model": "simulated"}, "classes": {FAST: {}, SLOW: {}}}
    pool = tmp_path / "models.yaml"
    pool.write_text(dump({"models": {"teller": {"context_tokens": 4096, "hosting": hosting}}}))
    monkeypatch.setenv("MOSAIC_MODELS", str(pool))
    settings.cache_clear()
    with SimulatedGpus(redis_server.urls, tmp_path) as started:
        yield started


def asked(model: str = "pool:teller") -> Run:
    agent = {"prompt": PROMPT, "model": model}
    data = {"name": "asks", "nodes": {"answer": {"agent": agent}}, "output": "answer"}
    return submit(Workflow.from_data(data), {})


def target(run: Run) -> str:
    """Where the router sent the call of a run at last."""
    return [event.target for event in run.events() if event.kind == "routed"][-1]


def test_it_is_routed_to_by_its_measured_speed_and_tells_that_it_is_simulated(
    gpus: SimulatedGpus, tmp_path: Path, redis_client: Redis
) -> None:
    slow = gpus.host(SLOW, tmp_path, decode_tokens_s=500.0, cache_blocks=100, block_tokens=8)
    fast = gpus.host(FAST, tmp_path, cache_blocks=100, block_tokens=8)
    for worker in (slow, fast):
        worker.wait_ready()
    runs = [asked(), asked("simulated:teller")]
    assert [run.result(WAIT_S) for run in runs] == ["It flows."] * 2
    assert target(runs[0]) == f"{FAST}/teller@{fast.name}"
    told = {(each.engine, each.gpu_class): each for each in engines(redis_client)}
    assert set(told) == {("simulated", FAST), ("simulated", SLOW)}
    assert (told["simulated", FAST].inter_token_s, told["simulated", SLOW].inter_token_s) == (0.001, 0.002)


def test_what_its_prefix_cache_spared_is_told(gpus: SimulatedGpus, tmp_path: Path) -> None:
    gpus.host(FAST, tmp_path, cache_blocks=100, block_tokens=8).wait_ready()
    first, second = asked(), asked()
    first.result(WAIT_S)
    second.result(WAIT_S)
    spared = [
        event.cached_tokens for run in (first, second) for event in run.events() if event.kind == "usage"
    ]
    tokens = -(-len(PROMPT) // 4)
    assert sorted(spared) == [0, tokens // 8 * 8]


def test_a_call_whose_simulated_gpu_dies_is_answered_by_another(gpus: SimulatedGpus, tmp_path: Path) -> None:
    dying = gpus.host(FAST, tmp_path, faults={"dies_after": 1}).wait_ready()
    run = asked()
    assert dying.wait(WAIT_S) == 1
    assert "as its spec says; it is not started again" in dying.log
    gpus.host(SLOW, tmp_path).wait_ready()
    assert run.result(WAIT_S) == "It flows."
    assert target(run).startswith(SLOW)


def test_what_a_worker_learned_of_lengths_reaches_those_that_place_calls(
    gpus: SimulatedGpus, tmp_path: Path, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_LIVENESS_S", "1")
    gpus.host(FAST, tmp_path).wait_ready()
    with key_events(redis_client, "$") as events:
        asked().result(WAIT_S)
        next(key for _, key in events if key.startswith("mosaic:length:"))
