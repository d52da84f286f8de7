"""The command lines of the manifests on a real server: workers come up, are probed, tell their figures, and drain."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml
from json_worker import COMMAND
from redis import Redis
from typer.testing import CliRunner

from mosaic_queues.documents import dump
from mosaic_queues.server import server_binary
from mosaic_queues.settings import Settings, settings
from mosaic_queues.topology import topology
from mosaic_routing.manifests.helm import helm_values
from mosaic_routing.pool import pool
from mosaic_tasks import Workflow, submit
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from tests.services import Worker

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
DOCKER = HERE.parent.parent / "docker"
GROUPS: dict[str, Any] = yaml.safe_load((DOCKER / "helm/mosaic-tasks/values.yaml").read_text("utf-8"))[
    "workers"
]
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))["services"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("started", "go"):
        os.mkfifo(tmp_path / name)
    return tmp_path


@pytest.fixture
def environment(mosaic_process: Settings, place: Path) -> dict[str, str]:
    return {
        **os.environ,
        "MOSAIC_REDIS_URL": mosaic_process.redis_url or "",
        "MOSAIC_HOME": str(place / "home"),
        "PYTHONPATH": str(HERE),
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def workers(environment: dict[str, str], place: Path) -> Iterator[Callable[[], list[Worker]]]:
    """Starts one worker of each group, with the arguments that the chart gives it."""
    with ExitStack() as stack:

        def start() -> list[Worker]:
            started = []
            for name, group in GROUPS.items():
                worker = Worker(name, [*COMMAND, *group["args"]], environment=environment, cwd=place)
                stack.callback(print, worker.log)
                stack.callback(worker.stop)
                started.append(worker)
            return [worker.wait_ready() for worker in started]

        yield start


@pytest.fixture
def figures(environment: dict[str, str], place: Path) -> Iterator[Callable[[str], str]]:
    """`mosaic metrics`, and what it answers."""
    process = subprocess.Popen(
        [*COMMAND, "metrics", "--json", "--port", "0"],
        env=environment,
        cwd=place,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    root = json.loads(process.stdout.readline())["url"].removesuffix("/metrics")

    def ask(path: str) -> str:
        with urlopen(f"{root}{path}", timeout=20) as answer:
            return str(answer.read().decode())

    yield ask
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0


def mosaic(*words: str) -> int:
    return CliRunner().invoke(application, list(words)).exit_code


def test_workers_of_all_groups_come_up_are_probed_and_drain(
    workers: Callable[[], list[Worker]], figures: Callable[[str], str], place: Path
) -> None:
    pipes = {name: str(place / name) for name in ("started", "go")}
    node = {"tool": "deployed_tools:meet", "with": pipes}
    run = submit(Workflow.model_validate({"name": "meet", "nodes": {"meeting": node}, "output": "meeting"}))
    assert json.loads(figures("/work/cpu")) == {"waiting": 1, "running": 0, "work": 1}
    assert [mosaic("probe", "live"), mosaic("probe", "ready")] == [ExitCode.FAILED] * 2

    started = workers()
    Path(pipes["started"]).read_text()  # the call runs
    assert [mosaic("probe", "live"), mosaic("probe", "ready")] == [ExitCode.OK] * 2
    assert json.loads(figures("/work/cpu")) == {"waiting": 0, "running": 1, "work": 1}
    assert json.loads(figures("/work/api")) == {"waiting": 0, "running": 0, "work": 0}
    told = figures("/metrics")
    assert 'mosaic_queue_workers{queue="mosaic.cpu"} 1.0' in told
    assert 'mosaic_group_work{group="cpu"} 1.0' in told
    assert "# TYPE mosaic_engine_running gauge" in told
    with pytest.raises(HTTPError, match="404"):
        figures("/work/none")

    assert mosaic("drain", "--timeout", "0") == ExitCode.TIMEOUT
    Path(pipes["go"]).write_text("done")
    assert mosaic("drain", "--timeout", "30") == ExitCode.OK
    assert run.result(10) == "done"
    assert [worker.wait() for worker in started] == [0, 0]
    assert mosaic("probe", "live") == ExitCode.FAILED
    assert mosaic("drain") == ExitCode.OK


@pytest.fixture
def deployment(place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A model of the pool for GPUs, a group that hosts it, and a spec of GPUs that are simulated: the variables."""
    hosting = {"spec": {"model": "org/teller"}, "classes": {"h100": {}}}
    group = {"name": "teller.h100", "class": "h100", "models": ["teller"]}
    spec = {"simulated": True, "alias": "teller", "recordings": str(place / "answers.jsonl")}
    (place / "answers.jsonl").write_text(json.dumps({"text": "It flows.", "match": [""]}) + "\n")
    files = {
        "models": {"models": {"teller": {"context_tokens": 4096, "hosting": hosting}}},
        "topology": {"version": 1, "workers": [group]},
        "simulated": spec,
    }
    for name, document in files.items():
        (place / f"{name}.yaml").write_text(dump(document))
    variables = {f"MOSAIC_{name.upper()}": str(place / f"{name}.yaml") for name in ("models", "topology")}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    return variables


def test_a_group_with_gpus_answers_where_its_gpus_are_simulated(
    deployment: dict[str, str], environment: dict[str, str], place: Path
) -> None:
    """The chart's command line of the group; what it adds answers in the place of the engine."""
    values = yaml.safe_load(helm_values(topology(), pool(), version="1"))
    command = [*COMMAND, *values["workers"]["teller-h100"]["args"], "--model", str(place / "simulated.yaml")]
    agent = {"agent": {"prompt": "Tell of a river.", "model": "pool:teller"}}
    with ExitStack() as stack:
        worker = Worker("teller", command, environment={**environment, **deployment}, cwd=place)
        stack.callback(worker.stop)
        worker.wait_ready()
        run = submit(Workflow.from_data({"name": "asks", "nodes": {"answer": agent}, "output": "answer"}))
        assert run.result(30) == "It flows."
        target = [event.target for event in run.events() if event.kind == "routed"][-1]
        assert target.startswith("h100/teller@teller.h100-")
        assert mosaic("probe", "ready") == ExitCode.OK
        assert mosaic("drain", "--timeout", "30") == ExitCode.OK
        assert worker.wait() == 0


def test_a_server_that_is_away_makes_no_worker_restart(
    mosaic_process: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_REDIS_URL", "redis://127.0.0.1:1/0")
    settings.cache_clear()
    answer = CliRunner().invoke(application, ["probe", "live", "--json"])
    assert (answer.exit_code, json.loads(answer.stdout)["is_well"]) == (ExitCode.OK, None)
    assert mosaic("probe", "ready") == ExitCode.SERVER
    assert mosaic("drain") == ExitCode.SERVER


# -- what else the compose file starts ---------------------------------------------------------------------------------


def test_the_server_of_the_compose_file_takes_its_options(tmp_path: Path) -> None:
    path = f"{tempfile.mkdtemp(prefix='mosaic-test-', dir='/tmp')}/s"  # its path must be short
    words = COMPOSE["server"]["command"][1:]
    place = ["--dir", str(tmp_path), "--port", "0", "--unixsocket", path]
    with subprocess.Popen([server_binary(), *words, *place], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("Ready to accept connections" in line for line in process.stdout)
        with Redis(unix_socket_path=path, decode_responses=True) as client:
            told = client.config_get("appendonly", "appendfsync", "save", "maxmemory-policy")
        process.terminate()
        process.stdout.read()
    shutil.rmtree(Path(path).parent)
    assert told == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    }


def test_flower_of_the_compose_file_starts_and_is_well(environment: dict[str, str], place: Path) -> None:
    flower = COMPOSE["flower"]
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    program, *words = [*flower["entrypoint"], *flower["command"], "--address=127.0.0.1", f"--port={port}"]
    command = [sys.executable, "-m", program, *words]
    with subprocess.Popen(command, env=environment, cwd=place, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("Visit me at" in line for line in process.stderr)
        _cmd, _python, *check = flower["healthcheck"]["test"]
        asked = subprocess.run(
            [sys.executable, *[word.replace("5555", str(port)) for word in check]], check=False
        )
        process.terminate()
        process.stderr.read()
    assert asked.returncode == 0
