"""The topology: what its file may say, and what is told of mistakes, with file, line and field."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mosaic_queues.errors import ConfigurationError, InputError
from mosaic_queues.settings import settings
from mosaic_queues.topology import LEVELS, Topology, WorkerGroup, level_of, topology, topology_path

SMALL = """\
version: 1
priorities: {default: 0, nightly: 7}
workers:
  - {name: cpu, class: cpu, queues: [mosaic.cpu], concurrency: 4}
  - name: llama
    class: h100
    models: [llama-3.1-8b]
    replicas: 2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "topology.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def small(tmp_path: Path) -> Topology:
    """Two groups, one of which hosts a model."""
    return topology(written(tmp_path, SMALL))


def test_groups_are_read_with_what_follows_from_their_models(small: Topology) -> None:
    cpu, llama = small.workers
    assert (cpu.pool, cpu.concurrency, cpu.replicas, cpu.models) == ("prefork", 4, 1, ())
    assert (llama.pool, llama.gpu_class, llama.replicas) == ("async", "h100", 2)
    assert (small.dead_letter, small.classes()) == ("mosaic.dead", {"cpu", "h100"})


def test_a_group_is_found_by_its_name_and_told_where_there_is_none(small: Topology) -> None:
    assert small.group("llama") is small.workers[1]
    with pytest.raises(ConfigurationError, match=r"no group of workers is called 'gpu'; .* has cpu, llama"):
        small.group("gpu")


CPU = "  - {name: cpu, class: cpu, queues: [mosaic.cpu]}\n"
HEAD = "version: 1\nworkers:\n"


@pytest.mark.parametrize(
    ("text", "line", "field", "told"),
    [
        ("version: 2\nworkers:\n" + CPU, 1, "version", "should be 1"),
        ("version: 1\nworkers: []\n", 2, "workers", "at least 1 item"),
        ("workers:\n" + CPU, 1, "version", "it is missing"),
        (HEAD + CPU + "works: 1\n", 4, "works", "there is no such field; did you mean 'workers'?"),
        (
            HEAD + "  - {name: a, clas: cpu, queues: [a]}\n",
            3,
            "workers[0].clas",
            "there is no such field; did you mean 'class'?",
        ),
        (HEAD + "  - {class: cpu, queues: [a]}\n", 3, "workers[0].name", "it is missing"),
        (HEAD + "  - {name: A, class: cpu, queues: [a]}\n", 3, "workers[0].name", "match pattern"),
        (HEAD + "  - {name: a, class: H100, queues: [a]}\n", 3, "workers[0].class", "match pattern"),
        (HEAD + "  - {name: a, class: api.openai, queues: [a]}\n", 3, "workers[0].class", "match pattern"),
        (
            HEAD + "  - {name: a, class: cpu, queues: ['a b']}\n",
            3,
            "workers[0].queues",
            "'a b' is no name of a queue",
        ),
        (HEAD + "  - {name: a, class: cpu, queues: [a, a]}\n", 3, "workers[0].queues", "'a' is there twice"),
        (HEAD + "  - {name: a, class: l4, models: [m, m]}\n", 3, "workers[0].models", "'m' is there twice"),
        (HEAD + "  - {name: a, class: cpu}\n", 3, "workers[0]", "the group 'a' serves nothing"),
        (
            HEAD + "  - {name: a, class: l4, models: [m], pool: solo}\n",
            3,
            "workers[0]",
            "hosts models, which needs the pool async, not solo",
        ),
        (
            HEAD + CPU + "  - {name: b, class: cpu, queues: [a], pool: fork}\n",
            4,
            "workers[1].pool",
            "'prefork'",
        ),
        (
            HEAD + "  - {name: a, class: cpu, queues: [a], concurrency: 0}\n",
            3,
            "workers[0].concurrency",
            "greater than or equal to 1",
        ),
        (
            HEAD + "  - {name: a, class: cpu, queues: [a], replicas: -1}\n",
            3,
            "workers[0].replicas",
            "greater than or equal to 0",
        ),
        (
            HEAD + "  - {name: a, class: cpu, queues: [a], options: {x: 1}}\n",
            3,
            "workers[0]",
            "options of an engine, and hosts no model",
        ),
        (
            HEAD + "  - {name: a, class: cpu, queues: [a], gpus: 1}\n",
            3,
            "workers[0]",
            "has GPUs and the class cpu",
        ),
        (HEAD + CPU + CPU, 2, "workers", "two groups of workers are called 'cpu'; rename one"),
        (HEAD + CPU + "dead_letter: mosaic.cpu\n", 2, "workers", "no worker may serve it"),
        (HEAD + CPU + "dead_letter: 'my dead'\n", 4, "dead_letter", "'my dead' is no name of a queue"),
        (
            "priorities: {low: 10}\n" + HEAD + CPU,
            1,
            "priorities",
            "the priority 'low' is 10, and levels go from 0",
        ),
        ("priorities: {low: -1}\n" + HEAD + CPU, 1, "priorities", "the priority 'low' is -1"),
        ("priorities: {low: '5'}\n" + HEAD + CPU, 1, "priorities.low", "valid integer"),
        ("priorities: {Low: 5}\n" + HEAD + CPU, 1, "priorities", "'Low' is no name of a priority"),
        ("priorities: {'5': 5}\n" + HEAD + CPU, 1, "priorities", "'5' is no name of a priority"),
        (
            "priorities: {default: 5}\n" + HEAD + CPU,
            1,
            "priorities",
            "the priority 'default' is 5, but what names none has 0; give that level another name",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    text: str, line: int, field: str, told: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as error:
        topology(path)
    assert f"{path}:{line}: field {field!r}: " in str(error.value), str(error.value)
    assert told in str(error.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        topology(written(tmp_path, "version: 1\nworkers:\n  - {name: A, class: B, queues: [a]}\n"))
    assert "workers[0].name" in str(error.value)
    assert "workers[0].class" in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("version: [1\n", ":2: broken YAML in column"),
        ("", "the file is empty"),
        ("version: 1\nversion: 1\n", ":2: field 'version' is there twice, first in line 1"),
        ("- 1\n", "valid dictionary"),
    ],
)
def test_what_is_no_topology_is_told(text: str, told: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as error:
        topology(path)
    assert str(path) in str(error.value)
    assert told in str(error.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml cannot be read: No such file"):
        topology(tmp_path / "nowhere.yaml")


def test_it_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    first = topology(path)
    assert topology(path) is first
    path.write_text(SMALL.replace("nightly: 7", "nightly: 8"), encoding="utf-8")
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    assert topology(path).level("nightly") == 8


def test_the_environment_names_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, SMALL)
    monkeypatch.setenv("MOSAIC_TOPOLOGY", str(path))
    settings.cache_clear()
    try:
        assert topology_path() == path
        assert level_of("nightly") == 7
    finally:
        settings.cache_clear()


@pytest.mark.parametrize(("priority", "level"), [(0, 0), (9, 9), ("default", 0), ("nightly", 7)])
def test_a_priority_is_a_level_or_its_name(small: Topology, priority: int | str, level: int) -> None:
    assert small.level(priority) == level


@pytest.mark.parametrize("priority", [-1, 10, True, 1.0, None, "9", "soon", ""])
def test_what_is_no_priority_is_told_with_the_names_that_there_are(small: Topology, priority: Any) -> None:
    with pytest.raises(InputError) as error:
        small.level(priority)
    told = f"{priority!r} is no priority; give a whole number from 0, the most urgent, to 9"
    assert str(error.value).startswith(told)
    assert "'default' (0), 'nightly' (7)" in str(error.value)


def test_what_ships_says_what_is_so_without_it() -> None:
    shipped = topology(Path(__file__).resolve().parents[2] / "queues" / "topology.yaml")
    bare = Topology(
        version=1, workers=(WorkerGroup.model_validate({"name": "a", "class": "cpu", "queues": ["a"]}),)
    )
    assert shipped.priorities == bare.priorities
    assert shipped.dead_letter == bare.dead_letter
    assert set(shipped.priorities.values()) <= set(LEVELS)
