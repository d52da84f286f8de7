"""What stands in docker/: against the schemas of those who read it, and against the command that it starts."""

from __future__ import annotations

import copy
import fnmatch
import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import promql_parser
import pytest
import yaml
from helm_rendering import render
from honcho.environ import parse_procfile
from packaging.requirements import Requirement
from prometheus_client.parser import text_string_to_metric_families
from test_manifests import FILES, GROUPS, of
from test_packaging import PROJECT, pins
from typer.main import get_command

from mosaic_queues.queue_ages import QueueAge, QueueAges
from mosaic_queues.work import Work
from mosaic_routing.inventory import EngineReport
from mosaic_routing.manifests.compose import compose
from mosaic_routing.manifests.helm import helm_values
from mosaic_routing.pool import pool
from mosaic_tasks.cli import application
from mosaic_tasks.gateway.metrics import Meter
from mosaic_tasks.observability.exposition import exposition
from mosaic_tasks.observability.figures import FIGURES
from mosaic_tasks.observability.gathering import Budget, Figures
from mosaic_tasks.observability.tallies import SUM, Tally

ROOT = Path(__file__).parent.parent.parent
DOCKER = ROOT / "docker"
CHART = DOCKER / "helm" / "mosaic-tasks"
IMAGES = ("Dockerfile", "gpu.Dockerfile")
OLDEST, NEWEST = "1.25", "1.37"
SCALED = {"workers": {"cpu": {"scaling": {"enabled": True}}}}
SCALED_OBJECT = {
    # After the reference of KEDA 2: https://keda.sh/docs/latest/reference/scaledobject-spec/
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "spec": {
            "type": "object",
            "required": ["scaleTargetRef", "triggers"],
            "additionalProperties": False,
            "properties": {
                "scaleTargetRef": {"type": "object", "required": ["name"]},
                "minReplicaCount": {"type": "integer", "minimum": 0},
                "maxReplicaCount": {"type": "integer", "minimum": 1},
                "pollingInterval": {"type": "integer", "minimum": 1},
                "cooldownPeriod": {"type": "integer", "minimum": 0},
                "fallback": {
                    "type": "object",
                    "required": ["failureThreshold", "replicas"],
                    "properties": {"failureThreshold": {"type": "integer"}, "replicas": {"type": "integer"}},
                },
                "triggers": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/trigger"}},
            },
        },
    },
    "$defs": {
        "trigger": {
            "type": "object",
            "required": ["type", "metadata"],
            "properties": {
                "type": {"const": "metrics-api"},
                "metadata": {
                    "type": "object",
                    "required": ["url", "valueLocation", "targetValue"],
                    "additionalProperties": {"type": "string"},
                },
            },
        }
    },
}


@cache
def rendered() -> list[dict[str, Any]]:
    """Of the values in the tree, with GPU workers beside, and all that may be left out put in."""
    made = yaml.safe_load(helm_values(of(*GROUPS), pool(), version="1"))
    workers = {
        name: {**worker, "scaling": {**worker["scaling"], "enabled": True}}
        for name, worker in made["workers"].items()
    }
    more = {
        "environment": {"MOSAIC_OBJECT_STORE": "s3://a/b"},
        "models": "version: 1\n",
        "modelsClaim": "models",
    }
    return render(CHART, {**more, "providers": {"secret": "keys"}, "workers": workers})


def kinds(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, deployment in kinds(rendered(), "Deployment").items():
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            yield name, container


def validate(document: Mapping[str, Any], version: str) -> None:
    if document["kind"] == "ScaledObject":
        jsonschema.validate(document, SCALED_OBJECT)
    else:
        kubernetes_validate.validate(document, version, strict=True)


# -- Helm --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_all_that_the_chart_makes_is_valid_in_kubernetes(version: str) -> None:
    for document in [*rendered(), *render(CHART), *render(CHART, {"networkPolicy": {"enabled": False}})]:
        validate(document, version)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "replica"), 1),
        ("Deployment", ("spec", "template", "spec", "terminationGracePeriodSeconds"), "150s"),
        ("NetworkPolicy", ("spec", "policyTypes"), "All"),
        ("ScaledObject", ("spec", "triggers", 0, "metadata", "targetValue"), 4),
    ],
)
def test_what_is_wrong_would_be_found(kind: str, path: tuple[Any, ...], value: Any) -> None:
    document = copy.deepcopy(next(iter(kinds(rendered(), kind).values())))
    *parents, last = path
    inner: Any = document
    for part in parents:
        inner = inner[part]
    inner[last] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate(document, NEWEST)


@pytest.mark.parametrize(
    "values",
    [
        {"workers": {"cpu": {"replicas": -1}}},
        {"workers": {"cpu": {"replica": 1}}},
        {"workers": {"No Name": {}}},
        {"workers": {"beat": yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))["workers"]["cpu"]}},
        {"beat": {"replicas": -1}},
        {"beat": {"command": []}},
        {"beat": {"schedule": {}}},
        {"server": {"port": 70000}},
        {"topology": "text"},
        {"unknown": 1},
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        render(CHART, values)


def test_each_group_has_a_deployment_a_disruption_budget_and_a_scaling_that_belong_together() -> None:
    names = {"demo-cpu", "demo-llama-h100", "demo-large", "demo-api"}
    deployments = kinds(rendered(), "Deployment")
    assert set(deployments) == {*names, "demo-beat", "demo-metrics"}
    budgets, scalings = kinds(rendered(), "PodDisruptionBudget"), kinds(rendered(), "ScaledObject")
    assert (set(budgets), set(scalings)) == (names, names - {"demo-api"})
    for name in names:
        pod = deployments[name]["spec"]["template"]["metadata"]["labels"]
        for document in (deployments[name], budgets[name]):
            assert document["spec"]["selector"]["matchLabels"].items() <= pod.items()
    for name, scaling in scalings.items():
        assert scaling["spec"]["scaleTargetRef"]["name"] == name
        assert "replicas" not in deployments[name]["spec"]  # two would decide
    assert deployments["demo-api"]["spec"]["replicas"] == 1


def test_a_worker_has_the_time_to_drain() -> None:
    for name, container in containers():
        if name not in ("demo-beat", "demo-metrics"):
            pod = kinds(rendered(), "Deployment")[name]["spec"]["template"]["spec"]
            drain = container["lifecycle"]["preStop"]["exec"]["command"]
            assert float(drain[-1]) < pod["terminationGracePeriodSeconds"]


def test_pods_have_no_rights_that_they_do_not_need() -> None:
    assert [
        each["automountServiceAccountToken"] for each in kinds(rendered(), "ServiceAccount").values()
    ] == [False]
    for deployment in kinds(rendered(), "Deployment").values():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
    for _name, container in containers():
        context = container["securityContext"]
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
        assert context["capabilities"] == {"drop": ["ALL"]}
        (url,) = (each for each in container["env"] if each["name"] == "MOSAIC_REDIS_URL")
        assert set(url) == {"name", "valueFrom"}  # of a Secret, never in the open


def test_keys_of_providers_reach_only_the_workers_that_ask_them() -> None:
    assert [name for name, container in containers() if "envFrom" in container] == ["demo-api"]


def test_what_scales_asks_the_service_of_the_figures_for_a_group() -> None:
    service = kinds(rendered(), "Service")["demo-metrics"]
    port = service["spec"]["ports"][0]["port"]
    (trigger,) = kinds(rendered(), "ScaledObject")["demo-llama-h100"]["spec"]["triggers"]
    assert trigger["metadata"]["url"] == f"http://demo-metrics.default.svc:{port}/work/llama.h100"
    assert trigger["metadata"]["valueLocation"] in Work._fields or hasattr(
        Work, trigger["metadata"]["valueLocation"]
    )


def test_the_values_of_the_documentation_are_taken() -> None:
    text = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    (block,) = re.findall(r"^```yaml\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    deployments = kinds(render(CHART, yaml.safe_load(block)), "Deployment")
    assert deployments["demo-cpu"]["spec"]["replicas"] == 4


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    assert values["images"]["cpu"].partition(":")[2] == chart["appVersion"]


# -- compose, Prometheus, Grafana --------------------------------------------------------------------------------------


def test_the_compose_files_are_valid(tmp_path: Path) -> None:
    made = tmp_path / "compose.yaml"
    made.write_text(compose(of(*GROUPS), pool(), files=FILES), "utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    answer = subprocess.run(
        [*command, made, DOCKER / "compose.yaml"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout


def composed() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
    return found


def test_services_configs_and_volumes_that_the_compose_file_names_exist() -> None:
    found = composed()
    for name, service in found["services"].items():
        assert set(service.get("depends_on", {})) <= found["services"].keys(), name
        assert {each["source"] for each in service.get("configs", [])} <= found["configs"].keys(), name
        named = {each.partition(":")[0] for each in service.get("volumes", []) if not each.startswith("${")}
        assert named <= found["volumes"].keys(), name
    for each in found["configs"].values():
        assert (DOCKER / each["file"]).is_file(), each


def test_what_the_compose_file_starts_in_our_images_is_installed_there() -> None:
    scripts = {script.name for script in importlib.metadata.entry_points(group="console_scripts")}
    words = [service["entrypoint"] for service in composed()["services"].values() if "entrypoint" in service]
    assert {each[0] for each in words} == {"celery"}
    assert {"celery", "mosaic"} <= scripts
    extras = re.findall(r"'\.\[(.+)\]'$", (DOCKER / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert extras == ["cron,reports,tracing", "cron,flower,gateway,reports,tracing"]


def test_the_compose_file_publishes_ports_on_loopback_only() -> None:
    ports = [port for service in composed()["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_server_keeps_what_it_has_and_evicts_nothing() -> None:
    words = composed()["services"]["server"]["command"]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert (options["--appendonly"], options["--maxmemory-policy"]) == ("yes", "noeviction")


def test_the_gateway_serves_workflows_that_are_there_to_those_who_have_a_key() -> None:
    service = composed()["services"]["gateway"]
    (served,) = [each for each in service["volumes"] if each.startswith("${")]
    folder = re.fullmatch(r"\$\{MOSAIC_WORKFLOWS:-(.+)\}:(.+):ro", served)
    assert folder is not None
    assert list((DOCKER / folder[1]).glob("*.yaml"))
    assert folder[2] in service["command"]
    assert "--require-key" in service["command"]


def test_the_chart_has_a_gateway_where_there_are_workflows() -> None:
    assert "demo-gateway" not in kinds(rendered(), "Deployment")
    made = render(CHART, {"gateway": {"workflows": {"hi.yaml": "name: hi\n"}}})
    assert kinds(made, "ConfigMap")["demo-workflows"]["data"] == {"hi.yaml": "name: hi\n"}
    (container,) = kinds(made, "Deployment")["demo-gateway"]["spec"]["template"]["spec"]["containers"]
    assert "--require-key" in container["args"]
    policy = kinds(made, "NetworkPolicy")["demo-mosaic"]["spec"]["ingress"]
    assert {"protocol": "TCP", "port": 8000} in [port for rule in policy for port in rule.get("ports", [])]
    for document in made:
        validate(document, NEWEST)


def test_prometheus_asks_what_answers() -> None:
    read = yaml.safe_load((DOCKER / "prometheus.yml").read_text("utf-8"))
    (target,) = read["scrape_configs"][0]["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert port in composed()["services"][name]["command"]


def board() -> dict[str, Any]:
    return dict(json.loads((DOCKER / "grafana" / "mosaic.json").read_text("utf-8")))


def panels() -> list[dict[str, Any]]:
    return [panel for panel in board()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DOCKER / "alerts.yml").read_text("utf-8"))["groups"]
    return list(group["rules"])


def queries() -> list[str]:
    """All that is asked of Prometheus."""
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*(text.replace("$__rate_interval", "5m") for text in shown), *(rule["expr"] for rule in rules())]


def labels_of(name: str) -> set[str]:
    """The labels of a series, with those that a histogram has beside."""
    return labels_by_series()[name]


@cache
def labels_by_series() -> dict[str, set[str]]:
    """What is exposed where everything has happened once."""
    tallies = [
        Tally(figure.name, tuple("x" for _ in figure.labels), place, 1.0)
        for figure in FIGURES.values()
        for place in ((0, SUM) if figure.buckets else (0,))
    ]
    report = EngineReport(
        holder="h",
        queues=(),
        engine="vllm",
        model="m",
        fingerprint="f",
        gpu_class="l4",
        at_ms=0,
        state="ready",
    )
    ages = QueueAges(1, {"q": QueueAge()})
    figures = Figures({"q": Work(1, 2)}, {"g": Work(1, 2)}, {"q": 1}, [report], tallies, ages, {"d": "open"})
    figures = figures._replace(budgets={"all": Budget(1.0, 0.5)})
    meter = Meter()
    meter.answered({"method": "GET", "type": "http"}, 401, 0.1)
    page = exposition(figures) + meter.text().decode()
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    found: dict[str, set[str]] = {}
    for sample in samples:
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_query_can_be_read_and_asks_for_figures_that_exist() -> None:
    for query in queries():
        promql_parser.parse(query)
        names = re.findall(r"\bmosaic_\w+", query)
        assert names, query
        assert [name for name in names if name not in labels_by_series()] == []


def test_what_queries_are_told_apart_by_is_a_label_of_what_they_ask_for() -> None:
    for query in queries():
        named = {word for found in re.findall(r"(?:by|on) \(([^)]*)\)", query) for word in found.split(", ")}
        known = set().union(*map(labels_of, re.findall(r"\bmosaic_\w+", query)))
        assert named <= known, query


@pytest.mark.parametrize("query", ["sum by (le) rate(mosaic_x[5m])", "rate(mosaic_x)"])
def test_a_query_that_is_wrong_would_be_found(query: str) -> None:
    with pytest.raises(ValueError):
        promql_parser.parse(query)


def test_the_dashboard_has_each_figure_once_in_rows_from_the_source_that_exists() -> None:
    (source,) = yaml.safe_load((DOCKER / "grafana" / "datasources.yaml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    rows = [panel["title"] for panel in board()["panels"] if panel["type"] == "row"]
    assert rows == [
        "Runs",
        "Queues",
        "Calls",
        "Streams",
        "Engines and GPUs",
        "Mixtures",
        "Limits and breakers",
        "Gateway",
    ]
    numbers = [panel["id"] for panel in board()["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in panels():
        assert panel["datasource"]["uid"] == source["uid"]
        assert {"title", "fieldConfig", "gridPos"} <= panel.keys()
        for target in panel["targets"]:
            known = set().union(*map(labels_of, re.findall(r"\bmosaic_\w+", target["expr"])))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, target


def test_no_two_panels_lie_on_one_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board()["panels"]:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= own


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    headings = re.findall(
        r"^### (\w+)$", (ROOT / "docs" / "observability.md").read_text("utf-8"), re.MULTILINE
    )
    for rule in rules():
        assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()
        assert rule["annotations"]["runbook_url"] == f"docs/observability.md#{rule['alert'].lower()}"
        assert rule["alert"] in headings
        assert rule["labels"]["severity"] in ("warning", "critical")
        words = " ".join(rule["annotations"].values())
        known = set().union(*map(labels_of, re.findall(r"\bmosaic_\w+", rule["expr"])))
        assert set(re.findall(r"\$labels\.(\w+)", words)) <= known


def test_prometheus_reads_the_alerts_that_compose_gives_it() -> None:
    read = yaml.safe_load((DOCKER / "prometheus.yml").read_text("utf-8"))
    given = {each["target"] for each in composed()["services"]["prometheus"]["configs"]}
    assert {f"/etc/prometheus/{name}" for name in read["rule_files"]} <= given


def test_the_chart_gives_alerts_and_dashboard_to_those_who_ask() -> None:
    made = render(CHART, {"metrics": {"rules": True, "dashboard": True}})
    (rule,) = kinds(made, "PrometheusRule").values()
    assert rule["spec"]["groups"][0]["rules"] == rules()
    assert json.loads(kinds(made, "ConfigMap")["demo-mosaic-dashboard"]["data"]["mosaic.json"]) == board()
    assert not kinds(render(CHART), "PrometheusRule")


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_pinned_has_no_root_and_says_how_it_is(name: str) -> None:
    text = (DOCKER / name).read_text("utf-8")
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["mosaic"]
    assert re.search(r"^HEALTHCHECK ", text, re.MULTILINE)
    for command in re.findall(r"^RUN (pip install .+)$", text, re.MULTILINE):
        assert re.search(r" -[cr] requirements/(lock|gpu)\.txt", command), command


def test_the_gpu_image_has_the_packages_of_the_lock_where_it_has_the_same() -> None:
    locked, pinned = pins("lock.txt"), pins("gpu.txt")
    assert {name: pinned[name] for name in locked.keys() & pinned} == {
        name: locked[name] for name in locked.keys() & pinned
    }
    for requirement in map(Requirement, PROJECT["project"]["optional-dependencies"]["vllm"]):
        assert pinned[requirement.name] in requirement.specifier


@pytest.mark.parametrize("name", IMAGES)
def test_what_an_image_copies_exists_and_is_let_through(name: str) -> None:
    allowed = [
        line[1:] for line in (DOCKER / f"{name}.dockerignore").read_text().split() if line.startswith("!")
    ]
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", (DOCKER / name).read_text("utf-8"), re.MULTILINE)
    for path in (path for found in sources for path in found.split()):
        assert (ROOT / path).exists(), path
        assert any(fnmatch.fnmatch(path, each) for each in allowed), (
            f"{path} is left out by {name}.dockerignore"
        )


@pytest.mark.parametrize("name", IMAGES)
def test_the_stages_of_an_image_exist_and_so_do_the_targets_that_others_name(name: str) -> None:
    text = (DOCKER / name).read_text("utf-8")
    stages = re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)
    assert set(re.findall(r"--from=(\S+)", text)) <= set(stages)
    made = yaml.safe_load(compose(of(*GROUPS), pool(), files=FILES))
    builds = [service["build"] for service in made["services"].values() if "build" in service]
    targets = {build["target"] for build in builds if build["dockerfile"] == f"docker/{name}"}
    assert targets
    assert targets <= set(stages)


# -- command lines -----------------------------------------------------------------------------------------------------


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """All that start with `mosaic`, in every file, without that word."""
    for name, line in parse_procfile((ROOT / "Procfile").read_text("utf-8")).processes.items():
        program, *words = shlex.split(line)
        if program == "mosaic":
            yield f"Procfile {name}", words
    for name, service in composed()["services"].items():
        if "build" in service and "entrypoint" not in service:
            yield f"compose {name}", service["command"]
    for name, container in containers():
        if "command" not in container:
            yield f"chart {name}", container["args"]
        executed = [
            container.get(probe, {}).get("exec")
            for probe in ("startupProbe", "readinessProbe", "livenessProbe")
        ]
        executed.append(container.get("lifecycle", {}).get("preStop", {}).get("exec"))
        lines = (each["command"] for each in executed if each)
        yield from ((f"chart {name}", words) for program, *words in lines if program == "mosaic")
    for name in IMAGES:
        for words in re.findall(r"CMD (\[.+\])$", (DOCKER / name).read_text("utf-8"), re.MULTILINE):
            if (line := json.loads(words))[0] != "python":
                yield name, line[1:] if line[0] == "mosaic" else line
    notes = (CHART / "templates" / "NOTES.txt").read_text("utf-8")
    yield "notes", notes.partition("-- mosaic ")[2].split()


def test_every_command_line_is_one_that_the_command_understands() -> None:
    group = get_command(application)
    lines = list(command_lines())
    assert {line[0] for _, line in lines} == {"worker", "metrics", "probe", "drain", "doctor", "serve"}
    for where, words in lines:
        command = group.commands[words[0]]  # type: ignore[attr-defined]
        with command.make_context(words[0], list(words[1:])) as context:
            assert not context.args, where
