"""What `mosaic worker` makes of a group, of a model of the pool, and of the machine that it is on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import standin_nvml
import typer
from typer.testing import CliRunner

from mosaic_queues.documents import dump
from mosaic_queues.settings import settings
from mosaic_routing.queues import hosting_queues
from mosaic_tasks.cli import application, working
from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.cli.working import machine_class
from mosaic_tasks.engines.hosted import HostedSpec
from mosaic_tasks.engines.vllm import gpus
from mosaic_tasks.execution import hosted_models

pytestmark = pytest.mark.integration
GROUPS = [
    {
        "name": "plain",
        "class": "cpu",
        "queues": ["mosaic.cpu", "reports"],
        "pool": "threads",
        "concurrency": 3,
    },
    {
        "name": "llama",
        "class": "h100",
        "models": ["llama"],
        "options": {"block_size": 32, "max_num_batched_tokens": 4},
    },
    {
        "name": "both",
        "class": "h100",
        "models": ["llama", "wide"],
        "queues": ["mosaic.cpu"],
        "concurrency": 8,
    },
    {"name": "wrong", "class": "cpu", "queues": ["mosaic.gpu.llama"]},
    {"name": "routed", "class": "cpu", "queues": ["mosaic.routed"]},
    {"name": "gone", "class": "h100", "models": ["lama"]},
]
MODELS = {
    "llama": {
        "context_tokens": 8192,
        "hosting": {"spec": {"model": "org/llama", "dtype": "bfloat16"}, "classes": {"h100": {}, "cpu": {}}},
    },
    "wide": {
        "context_tokens": 8192,
        "hosting": {"spec": {"model": "org/wide"}, "classes": {"h100": {"tensor_parallel": 2}}},
    },
    "odd": {
        "context_tokens": 8192,
        "hosting": {"spec": {"model": "a/b", "dtyp": "x"}, "classes": {"cpu": {}}},
    },
}


class Started:
    """What would have been started: Celery's command line, and what is hosted."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.specs: list[HostedSpec] = []
        self.gpu_class = ""

    def host(self, _app: Any, specs: list[HostedSpec], *, gpu_class: str) -> None:
        self.specs, self.gpu_class = specs, gpu_class

    def work(self, _app: Any, words: list[str]) -> ExitCode:
        self.words = words
        return ExitCode.OK

    def option(self, name: str) -> str | None:
        return self.words[self.words.index(name) + 1] if name in self.words else None

    @property
    def queues(self) -> list[str]:
        return (self.option("--queues") or "").split(",")


@pytest.fixture
def started(
    tmp_path: Path, redis_url: str, mosaic_process: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Started]:
    """A deployment of some groups, in which no worker is started after all."""
    from mosaic_tasks.app import app

    topology, models = tmp_path / "topology.yaml", tmp_path / "models.yaml"
    topology.write_text(dump({"version": 1, "workers": GROUPS}))
    models.write_text(dump({"models": MODELS}))
    monkeypatch.setenv("MOSAIC_TOPOLOGY", str(topology))
    monkeypatch.setenv("MOSAIC_MODELS", str(models))
    settings.cache_clear()
    found = Started()
    monkeypatch.setattr(hosted_models, "host_models", found.host)
    monkeypatch.setattr(working, "_work", found.work)
    monkeypatch.setattr(working, "_log", lambda *_arguments: None)
    monkeypatch.setattr(gpus, "why_none", lambda: "")
    pool = app.conf.worker_pool
    yield found
    app.conf.worker_pool = pool


def worker(*words: str) -> Any:
    return CliRunner().invoke(application, ["worker", *words])


@pytest.mark.parametrize(
    ("words", "queues", "pool", "concurrency"),
    [
        ((), ["mosaic.cpu", "reports"], "threads", "3"),
        (("--queues", "other, mosaic.cpu"), ["other", "mosaic.cpu"], "threads", "3"),
        (("--pool", "solo", "--concurrency", "1"), ["mosaic.cpu", "reports"], "solo", "1"),
        (("--pool", "async"), ["mosaic.cpu", "reports"], None, "3"),
    ],
)
def test_a_group_says_what_the_command_line_does_not(
    words: tuple[str, ...], queues: list[str], pool: str | None, concurrency: str, started: Started
) -> None:
    answer = worker("--group", "plain", *words)
    assert answer.exit_code == 0, answer.output
    assert (started.queues, started.option("--pool")) == (queues, pool)
    assert started.option("--concurrency") == concurrency
    assert (started.option("--hostname") or "").startswith("plain-")
    assert started.specs == []


def test_a_group_that_hosts_consumes_what_its_models_have_and_no_more(started: Started) -> None:
    assert worker("--group", "llama", "--name", "one").exit_code == 0
    assert (started.queues, started.gpu_class) == (hosting_queues("h100", "llama"), "h100")
    assert (started.option("--concurrency"), started.option("--hostname")) == ("256", "one@%h")
    [spec] = started.specs
    told = spec.model_dump(exclude_defaults=True)
    options = {"block_size": 32, "max_num_batched_tokens": 4}
    assert told == {"alias": "llama", "model": "org/llama", "dtype": "bfloat16", "options": options}


def test_models_of_a_group_share_a_worker(started: Started) -> None:
    assert worker("--group", "both").exit_code == 0
    models = [*hosting_queues("h100", "llama"), *hosting_queues("h100", "wide")]
    assert started.queues == ["mosaic.cpu", *models]
    assert started.option("--concurrency") == "8"
    told = [spec.model_dump(include={"alias", "gpus", "tensor_parallel"}) for spec in started.specs]
    assert told == [
        {"alias": "llama", "gpus": (0,), "tensor_parallel": 1},
        {"alias": "wide", "gpus": (1, 2), "tensor_parallel": 2},
    ]


def test_the_command_line_goes_before_a_group_also_in_class_and_engine(started: Started) -> None:
    assert (
        worker("--group", "llama", "--class", "cpu", "--engine-option", "max_num_batched_tokens=2").exit_code
        == 0
    )
    assert (started.queues, started.gpu_class) == (hosting_queues("cpu", "llama"), "cpu")
    assert started.specs[0].model_dump()["options"] == {"block_size": 32, "max_num_batched_tokens": 2}


def test_other_models_than_a_group_s_may_be_named(started: Started) -> None:
    assert worker("--group", "both", "--model", "llama").exit_code == 0
    assert started.queues == ["mosaic.cpu", *hosting_queues("h100", "llama")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--group", "none"], "no group of workers is called 'none'; the topology has plain, llama, both"),
        (["--group", "wrong"], "this worker would not host the model of 'mosaic.gpu.llama'; start instead"),
        (["--group", "routed"], "no worker takes from 'mosaic.routed', where calls wait for the router"),
        (["--queues", "mosaic.direct.w@h"], "'mosaic.direct.w@h' belongs to one worker"),
        (["--group", "gone"], "the model pool has no model 'lama'; did you mean 'llama'?"),
        (
            ["--group", "llama", "--class", "l4"],
            "does not say that 'llama' may run on 'l4'; it may on h100, cpu",
        ),
        (["--group", "llama", "--pool", "threads"], "a model is hosted in the async pool, not in threads"),
        (["--group", "plain", "--class", "l4"], "--class: it is for a worker that hosts a model"),
        (
            ["--class", "cpu", "--model", "odd"],
            "odd of the model pool', field 'dtyp': there is no such field",
        ),
    ],
)
def test_what_cannot_be_is_told(words: list[str], told: str, started: Started) -> None:
    answer = worker(*words)
    assert answer.exit_code == ExitCode.USAGE, answer.output
    assert told in " ".join(answer.stderr.split()), answer.stderr
    assert started.words == []


@pytest.mark.parametrize("option", ["--class", "--gpu"])
def test_a_model_of_the_pool_is_hosted_by_its_name(option: str, started: Started) -> None:
    assert worker(option, "h100", "--model", "wide").exit_code == 0
    assert started.queues == hosting_queues("h100", "wide")
    assert started.specs[0].model_dump(exclude_defaults=True) == {
        "alias": "wide",
        "model": "org/wide",
        "tensor_parallel": 2,
    }


def test_a_folder_goes_before_a_model_of_the_pool(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama").mkdir()
    assert worker("--class", "cpu", "--model", "llama").exit_code == 0
    assert started.specs[0].model_dump()["model"] == "llama"


def test_a_simulated_gpu_is_on_a_machine_without_one(started: Started, tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text(json.dumps({"text": "a", "match": [""]}) + "\n")
    told = {"simulated": True, "alias": "s", "recordings": str(tmp_path / "answers.jsonl")}
    (tmp_path / "s.yaml").write_text(dump(told))
    assert worker("--model", str(tmp_path / "s.yaml")).exit_code == 0
    assert (started.gpu_class, started.queues) == ("cpu", hosting_queues("cpu", "s"))


class TestClassOfTheMachine:
    """The default of `--class`."""

    @pytest.fixture
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any], str], None]:
        """Sets the GPUs of this machine, and why the driver finds none."""

        def made(found: list[Any], why: str = "") -> None:
            monkeypatch.setitem(sys.modules, "pynvml", standin_nvml.StandinNvml(found))
            monkeypatch.setattr(gpus, "why_none", lambda: why)

        return made

    def test_is_that_of_its_first_gpu(self, machine: Callable[..., None]) -> None:
        machine(standin_nvml.h100s())
        assert machine_class() == "h100"
        machine([*standin_nvml.l4s(), *standin_nvml.h100s()])
        assert machine_class() == "l4"

    def test_is_cpu_without_one(self, machine: Callable[..., None]) -> None:
        machine([], "its driver is not installed")
        assert machine_class() == "cpu"

    def test_is_asked_for_where_a_gpu_is_not_known(self, machine: Callable[..., None]) -> None:
        machine([])
        with pytest.raises(typer.BadParameter, match=r"this machine's GPU is not known: .*finds no GPU"):
            machine_class()

    def test_decides_on_queues(self, machine: Callable[..., None], started: Started) -> None:
        machine(standin_nvml.h100s())
        assert worker("--model", "llama").exit_code == 0
        assert (started.gpu_class, started.queues) == ("h100", hosting_queues("h100", "llama"))


def test_a_topology_that_contradicts_itself_starts_nobody(started: Started, tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text("version: 1\nworkers: []\n")
    answer = worker("--group", "plain")
    assert answer.exit_code == ExitCode.USAGE
    assert "topology.yaml:2: field 'workers'" in answer.stderr
