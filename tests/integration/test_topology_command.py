"""`mosaic topology`, and a worker that is really started as one of a group."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from json_worker import JsonWorker
from typer.testing import CliRunner

from mosaic_queues.documents import dump
from mosaic_queues.settings import settings
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from tests.services import Workers

GROUPS: list[dict[str, Any]] = [
    {
        "name": "plain",
        "class": "cpu",
        "queues": ["mosaic.cpu"],
        "pool": "threads",
        "concurrency": 3,
        "replicas": 2,
    },
    {"name": "llama", "class": "h100", "models": ["llama"]},
]
MODELS = {
    name: {"context_tokens": 8192, "hosting": {"spec": {"model": f"org/{name}"}, "classes": {"h100": {}}}}
    for name in ("llama", "other")
}


@pytest.fixture(autouse=True)
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a deployment; its pool has one model that nobody answers for."""
    path, models = tmp_path / "topology.yaml", tmp_path / "models.yaml"
    path.write_text(dump({"version": 1, "workers": GROUPS}))
    models.write_text(dump({"models": MODELS}))
    monkeypatch.setenv("MOSAIC_TOPOLOGY", str(path))
    monkeypatch.setenv("MOSAIC_MODELS", str(models))
    settings.cache_clear()
    return path


def mosaic(*words: str) -> Any:
    return CliRunner().invoke(application, ["topology", *words])


def test_it_shows_groups_queues_and_priorities() -> None:
    lines = [line.split() for line in mosaic().stdout.splitlines()]
    assert ["plain", "cpu", "2", "threads", "3"] in lines
    assert ["llama", "h100", "1", "1", "async", "llama"] in lines
    assert ["mosaic.h100.llama", "llama", "llama"] in lines
    assert "priorities (0 first): default 0, background 5, batch 9" in mosaic().stdout
    assert "dead letters: mosaic.dead" in mosaic().stdout


def test_it_tells_programs_the_same() -> None:
    told = json.loads(mosaic("--json").stdout)
    assert [(group["name"], group["class"], group["gpus"]) for group in told["workers"]] == [
        ("plain", "cpu", 0),
        ("llama", "h100", 1),
    ]
    assert told["workers"][1]["queues"] == ["mosaic.gpu.llama", "mosaic.h100.llama"]
    assert {each["queue"]: each["groups"] for each in told["queues"]}["mosaic.cpu"] == ["plain"]
    assert told["priorities"]["batch"] == 9


def test_what_fits_is_right_and_what_nobody_answers_for_is_told(topology: Path) -> None:
    answer = mosaic("check")
    assert answer.exit_code == ExitCode.OK
    assert answer.stdout.splitlines() == [
        "note: agents that name one of these as pool:NAME wait, no group answers: other",
        f"{topology} contradicts neither itself nor the model pool",
    ]


def test_what_contradicts_itself_fails(topology: Path) -> None:
    wrong = {"name": "wrong", "class": "h10", "queues": ["mosaic.gpu.other"]}
    topology.write_text(dump({"version": 1, "workers": [*GROUPS, wrong]}))
    answer = mosaic("check")
    assert answer.exit_code == ExitCode.FAILED
    first, second, *_ = answer.stdout.splitlines()
    assert first.startswith("wrong: group 'wrong': there is no GPU class 'h10'; did you mean")
    assert second.startswith("wrong: group 'wrong': it cannot serve the queue 'mosaic.gpu.other'")
    told = json.loads(mosaic("check", "--json").stdout)
    assert [problem["group"] for problem in told["contradictions"]] == ["wrong", "wrong"]
    assert told["gaps"] == [{"model": "other", "queues": ["mosaic.h100.other"]}]


def test_a_group_of_a_simulated_model_cannot_start(topology: Path, tmp_path: Path) -> None:
    simulated = {"context_tokens": 8, "hosting": {"spec": {"model": "simulated"}, "classes": {"sim": {}}}}
    (tmp_path / "models.yaml").write_text(dump({"models": {**MODELS, "sage": simulated}}))
    group = {"name": "pretends", "class": "sim", "models": ["sage"]}
    topology.write_text(dump({"version": 1, "workers": [*GROUPS, group]}))
    answer = mosaic("check")
    assert answer.exit_code == ExitCode.FAILED
    assert answer.stdout.startswith(
        "wrong: group 'pretends': 'sage' is simulated, and a group hosts real models"
    )


def test_a_file_that_cannot_be_read_is_wrong_usage(topology: Path) -> None:
    topology.write_text("version: 1\n")
    answer = mosaic("check")
    assert (answer.exit_code, "topology.yaml:1: field 'workers'" in answer.stderr) == (ExitCode.USAGE, True)


@pytest.mark.integration
def test_a_worker_of_a_group_does_what_the_topology_says(redis_url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "MOSAIC_REDIS_URL": redis_url, "MOSAIC_HOME": str(tmp_path / "home")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with JsonWorker("--group", "plain", environment=environment, cwd=tmp_path) as worker:
        assert worker.told["name"].startswith("plain-")
        assert {name: worker.told[name] for name in ("queues", "pool", "concurrency")} == {
            "queues": ["mosaic.cpu"],
            "pool": "threads",
            "concurrency": 3,
        }
        assert worker.stop()[0] == 0


@pytest.mark.integration
def test_a_worker_without_a_topology_that_can_be_read_does_not_start(
    topology: Path, workers: Workers
) -> None:
    topology.write_text("version: 1\n")
    worker = workers.start("mosaic_tasks.app", ["mosaic.cpu"])
    assert worker.wait() == 1
    worker.kill()  # reads its log to the end
    (told,) = [line for line in worker.log.splitlines() if "worker.refused" in line]
    assert "topology.yaml:1: field 'workers': it is missing" in told
    assert "Traceback" not in worker.log
