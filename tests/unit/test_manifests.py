"""Manifests that are made from a topology, and those in the tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from honcho.environ import parse_procfile
from typer.testing import CliRunner

from mosaic_queues.errors import ConfigurationError
from mosaic_queues.topology import Topology
from mosaic_routing.manifests.compose import Files, compose
from mosaic_routing.manifests.helm import helm_values
from mosaic_routing.manifests.procfile import procfile
from mosaic_routing.manifests.services import BEAT, METRICS_PORT, services
from mosaic_routing.pool import pool
from mosaic_tasks.cli import application, metrics, working

ROOT = Path(__file__).parent.parent.parent
FILES = Files("./topology.yaml", "./models.yaml")
IN_TREE = {
    "procfile": "Procfile",
    "compose": "docker/compose.yaml",
    "helm": "docker/helm/mosaic-tasks/values.yaml",
}
GROUPS: list[dict[str, Any]] = [
    {"name": "cpu", "class": "cpu", "queues": ["mosaic.cpu"], "concurrency": 3, "replicas": 2},
    {"name": "llama.h100", "class": "h100", "models": ["llama-3.1-8b"], "replicas": 3},
    {"name": "large", "class": "h100", "models": ["llama-3.1-70b"], "concurrency": 64},
]


def of(*groups: dict[str, Any]) -> Topology:
    return Topology.model_validate({"version": 1, "workers": list(groups)})


def workers_of(text: str) -> dict[str, Any]:
    found = yaml.safe_load(text)["services"]
    return {name: service for name, service in found.items() if name.startswith("worker-")}


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command goes by the topology and the pool in the tree, and names things as seen from its root."""
    monkeypatch.delenv("MOSAIC_TOPOLOGY", raising=False)
    monkeypatch.delenv("MOSAIC_MODELS", raising=False)
    monkeypatch.chdir(ROOT)


# -- the files in the tree ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(("kind", "file"), IN_TREE.items())
def test_the_file_in_the_tree_is_what_the_topology_says(kind: str, file: str) -> None:
    answer = CliRunner().invoke(application, ["manifests", kind, "--check", file])
    assert answer.exit_code == 0, answer.stderr


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("kind", IN_TREE)
def test_a_file_that_differs_is_told_with_the_command_that_mends_it(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "made"
    command = ["manifests", kind, "--out", str(file)]
    for made in ("nothing", "something else"):
        if made != "nothing":
            file.write_text(made)
        answer = CliRunner().invoke(application, ["manifests", kind, "--check", str(file)])
        assert answer.exit_code == 1
        assert f"mosaic {' '.join(command)}" in answer.stderr
    assert CliRunner().invoke(application, command).exit_code == 0
    assert CliRunner().invoke(application, ["manifests", kind, "--check", str(file)]).exit_code == 0


@pytest.mark.usefixtures("ours")
def test_check_and_out_exclude_each_other(tmp_path: Path) -> None:
    answer = CliRunner().invoke(application, ["manifests", "helm", "--out", "a", "--check", "b"])
    assert (answer.exit_code, (ROOT / "a").exists()) == (2, False)


# -- each group --------------------------------------------------------------------------------------------------------


def test_the_procfile_has_a_line_for_each_worker() -> None:
    processes = parse_procfile(procfile(of(*GROUPS), pool())).processes
    assert processes == {
        "cpu-1": "mosaic worker --group cpu",
        "cpu-2": "mosaic worker --group cpu",
        "llama-h100-1": "mosaic worker --group llama.h100",
        "llama-h100-2": "mosaic worker --group llama.h100",
        "llama-h100-3": "mosaic worker --group llama.h100",
        "large-1": "mosaic worker --group large",
        "beat": " ".join(BEAT),
    }


def test_a_group_of_no_workers_has_no_line() -> None:
    assert set(parse_procfile(procfile(of({**GROUPS[0], "replicas": 0}), pool())).processes) == {"beat"}


def test_beat_is_started_once_and_asked_alike_whatever_starts_it() -> None:
    made = yaml.safe_load(compose(of(*GROUPS), pool(), files=FILES))["services"]["beat"]
    values = yaml.safe_load(helm_values(of(*GROUPS), pool(), version="1"))["beat"]
    assert [*made["entrypoint"], *made["command"]] == values["command"] == list(BEAT)
    assert ("deploy" in made, values["replicas"]) == (False, 1)
    assert made["healthcheck"]["test"] == ["CMD", *values["probe"]]
    assert (made["read_only"], made["volumes"]) == (True, [])  # it writes no file


def test_the_compose_file_has_a_service_for_each_group_with_its_gpus() -> None:
    made = workers_of(compose(of(*GROUPS), pool(), files=FILES))
    assert {name: service["command"] for name, service in made.items()} == {
        "worker-cpu": ["worker", "--group", "cpu"],
        "worker-llama-h100": ["worker", "--group", "llama.h100"],
        "worker-large": ["worker", "--group", "large"],
    }
    assert [service["deploy"]["replicas"] for service in made.values()] == [2, 3, 1]
    assert [service["build"]["target"] for service in made.values()] == ["worker", "gpu", "gpu"]
    gpus = [service["deploy"].get("resources") for service in made.values()]
    counts = [each and each["reservations"]["devices"][0]["count"] for each in gpus]
    assert counts == [None, 1, pool().model("llama-3.1-70b").hosting.classes["h100"].tensor_parallel]  # type: ignore[union-attr]


def test_keys_of_providers_reach_only_the_workers_that_ask_them() -> None:
    api = {"name": "api", "class": "cpu", "queues": ["mosaic.api.openai"], "pool": "async"}
    made = workers_of(compose(of(GROUPS[0], api), pool(), files=FILES))
    assert [name for name, service in made.items() if "OPENAI_API_KEY" in service["environment"]] == [
        "worker-api"
    ]


def test_the_values_ask_for_gpus_of_the_class_and_for_no_more_processes_than_the_pod_may_have() -> None:
    text = helm_values(of({**GROUPS[0], "concurrency": None}, GROUPS[1]), pool(), version="1.2.3")
    values = yaml.safe_load(text)
    cpu, llama = values["workers"]["cpu"], values["workers"]["llama-h100"]
    assert cpu["args"] == ["worker", "--group", "cpu", "--concurrency", "4"]
    assert (cpu["nodeSelector"], cpu["tolerations"], cpu["resources"]["requests"]["cpu"]) == ({}, [], "4")
    assert llama["nodeSelector"] == {"mosaic-gpu-class": "h100"}
    assert llama["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert llama["scaling"] == {"enabled": False, "group": "llama.h100", "min": 1, "max": 12, "target": 256}
    assert values["images"]["gpu"] == "mosaic-tasks-gpu:1.2.3"


def test_the_topology_of_the_values_is_the_topology() -> None:
    topology = of(*GROUPS)
    assert (
        Topology.model_validate(yaml.safe_load(helm_values(topology, pool(), version="1"))["topology"])
        == topology
    )


def test_a_path_is_named_as_it_is_whatever_stands_in_it() -> None:
    odd = '../a: "b" #c/topology.yaml'
    made = yaml.safe_load(compose(of(GROUPS[0]), pool(), files=Files(odd, "./models.yaml")))
    assert made["configs"]["topology"] == {"file": odd}


def test_numbers_that_the_manifests_know_are_those_of_the_commands() -> None:
    (service,) = services(of({"name": "a", "class": "cpu", "queues": ["q"], "pool": "async"}), pool())
    assert service.slots == working.SLOTS
    assert metrics.PORT == METRICS_PORT


# -- what cannot be deployed -------------------------------------------------------------------------------------------


def test_names_that_become_one_are_refused() -> None:
    twins = [{**GROUPS[0], "name": name} for name in ("a.b", "a-b")]
    with pytest.raises(ConfigurationError, match=r"'a\.b' and 'a-b' would both be called 'a-b'"):
        procfile(of(*twins), pool())


@pytest.mark.parametrize("name", ["beat", "metrics"])
def test_a_group_with_the_name_of_another_deployment_of_the_chart_is_refused_there(name: str) -> None:
    topology = of({**GROUPS[0], "name": name})
    with pytest.raises(
        ConfigurationError, match=f"the group '{name}' would have the name of the chart's own"
    ):
        helm_values(topology, pool(), version="1")
    assert f"worker-{name}" in workers_of(compose(topology, pool(), files=FILES))


@pytest.mark.parametrize("make", [procfile, lambda topology, models: compose(topology, models, files=FILES)])
def test_a_topology_that_contradicts_the_pool_is_refused(make: Any) -> None:
    wrong = {"name": "a", "class": "h100", "models": ["no-such-model"]}
    with pytest.raises(ConfigurationError, match=r"cannot be deployed: group 'a': .*no-such-model"):
        make(of(wrong), pool())


@pytest.mark.parametrize("name", ["cpu", "mi300x"])
def test_models_on_a_class_that_no_image_is_for_are_refused_in_containers_alone(name: str) -> None:
    topology = of({"name": "small", "class": name, "models": ["smollm2-135m"]})
    with pytest.raises(ConfigurationError, match="no image for the group 'small'"):
        compose(topology, pool(), files=FILES)
    with pytest.raises(ConfigurationError, match="no image for the group 'small'"):
        helm_values(topology, pool(), version="1")
    assert "small-1: mosaic worker --group small" in procfile(topology, pool())
