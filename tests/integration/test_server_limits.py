"""A server that is full or forbids something: what users are told, and that no run is lost."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from json_worker import COMMAND, JsonWorker
from redis import Redis
from typer.testing import CliRunner

from mosaic_queues.connection import connect
from mosaic_queues.errors import ServerFull
from mosaic_queues.server import EmbeddedServer
from mosaic_queues.settings import settings
from mosaic_tasks import install, list_runs, submit
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.definition.workflow import Workflow
from mosaic_tasks.execution.process import close_all
from tests.services import key_events

pytestmark = pytest.mark.integration

WORKFLOW = """
name: gated
inputs: {path: {}}
nodes:
  read: {tool: "limit_tools:read", with: {path: "${inputs.path}"}}
output: read
"""
Mosaic = Callable[..., Any]


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that these tests may limit."""
    server = EmbeddedServer(tmp_path_factory.mktemp("own")).start()
    yield server
    server.stop(wait_s=15)


@pytest.fixture
def admin(own_server: EmbeddedServer) -> Iterator[Redis]:
    """Empties the server after the test, and takes its limit away."""
    with connect(own_server.redis_url) as client:
        yield client
        client.config_set("maxmemory", 0)
        client.flushall()


@pytest.fixture
def name_server(
    own_server: EmbeddedServer, admin: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], None]]:
    """Names the server of this process by another URL; it is that server's without a user at first."""

    def name(url: str) -> None:
        monkeypatch.setenv("MOSAIC_REDIS_URL", url)
        settings.cache_clear()

    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    name(own_server.redis_url)
    yield name
    close_all()
    settings.cache_clear()


@pytest.fixture
def app(own_server: EmbeddedServer, name_server: Callable[[str], None]) -> Iterator[Celery]:
    """An app that publishes to that server."""
    made = install(Celery("limits", broker=own_server.url, set_as_current=False))
    yield made
    made.close()


@pytest.fixture
def mosaic(name_server: Callable[[str], None], tmp_path: Path) -> Mosaic:
    """Runs the command in this process."""
    (tmp_path / "gated.yaml").write_text(WORKFLOW)

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(application, list(arguments), catch_exceptions=False)

    return run


@contextmanager
def full(admin: Redis) -> Iterator[None]:
    """The server takes nothing more inside."""
    admin.config_set("maxmemory", 1)
    yield
    admin.config_set("maxmemory", 0)


def levels(answer: Any) -> dict[str, str]:
    return {check["name"]: check["level"] for check in json.loads(answer.stdout)["checks"]}


# -- a full server -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "stored"])
def test_a_full_server_takes_no_run_and_says_so(admin: Redis, app: Celery, size: int) -> None:
    workflow = Workflow.from_yaml("{name: w, inputs: {x: {}}, nodes: {n: {task: t}}, output: n}")
    inputs = {"x": secrets.token_bytes(size)}
    with full(admin), pytest.raises(ServerFull, match=r"is full: .*raise maxmemory"):
        submit(workflow, inputs, app=app, key="once")
    assert list_runs(app=app) == []
    run = submit(workflow, inputs, app=app, key="once")
    assert [record.run_id for record in list_runs(app=app)] == [run.id]


def test_the_command_tells_a_full_server(admin: Redis, mosaic: Mosaic) -> None:
    with full(admin):
        answer = mosaic("run", "gated.yaml", "--input", "path=x")
        document = mosaic("run", "gated.yaml", "--input", "path=x", "--json")
        doctor = mosaic("doctor", "--json")
    assert answer.exit_code == document.exit_code == ExitCode.SERVER
    assert "is full" in answer.stderr
    assert json.loads(document.stdout)["error"]["type"] == "ServerFull"
    assert (doctor.exit_code, levels(doctor)["memory"]) == (ExitCode.SERVER, "fail")
    assert levels(mosaic("doctor", "--json"))["memory"] == "ok"


def test_a_worker_that_cannot_start_says_so_by_its_exit_code(
    admin: Redis, mosaic: Mosaic, tmp_path: Path
) -> None:
    with full(admin):
        command = [*COMMAND, "worker", "--pool", "solo"]
        answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == ExitCode.FAILED
    assert "maxmemory" in answer.stderr


def test_a_run_outlives_that_the_server_was_full(
    admin: Redis, app: Celery, mosaic: Mosaic, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with JsonWorker("--pool", "solo", environment=environment, cwd=tmp_path) as worker:
        run = submit("gated.yaml", {"path": str(gate)}, app=app)
        with gate.open("w") as opened, full(admin):  # opens once the tool reads
            opened.write("lost")
            opened.close()
            assert "maxmemory" in worker.await_event("drive.lost")["error"]
        gate.write_text("kept")
        assert run.result(60) == "kept"


def test_a_process_that_was_silent_meanwhile_claims_only_once_it_counts_as_alive(
    admin: Redis, app: Celery, mosaic: Mosaic, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    timing = {"MOSAIC_LIVENESS_S": "2", "MOSAIC_SWEEP_S": "0.05"}
    environment = {**os.environ, **timing, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = ("--pool", "threads", "--concurrency", "4")
    with (
        JsonWorker(*arguments, environment=environment, cwd=tmp_path) as worker,
        key_events(admin, "$x") as events,
    ):
        run = submit("gated.yaml", {"path": str(gate)}, app=app)
        with gate.open("w"):  # opens once the tool reads, and keeps it there
            key = f"mosaic:holder:{run.live_calls()[0].holder}"
            with full(admin):
                assert ("expired", key) in events
            worker.await_event("sweeper.lost")
            assert ("set", key) in events
            assert ("set", key) in events
            assert [call.losses for call in run.live_calls()] == [1]
        assert run.result(60) == ""


# -- a user without a right --------------------------------------------------------------------------------


@pytest.fixture
def restrict(
    own_server: EmbeddedServer, admin: Redis, name_server: Callable[[str], None]
) -> Iterator[Callable[..., None]]:
    """Makes this process a user of the server with these rules."""

    def restrict(*rules: str) -> None:
        admin.execute_command("ACL", "SETUSER", "guest", "on", ">secret", "~*", "&*", "+@all", *rules)
        name_server(own_server.redis_url.replace("unix://", "unix://guest:secret@"))

    yield restrict
    admin.execute_command("ACL", "DELUSER", "guest")


@pytest.mark.parametrize(
    ("rules", "right", "unknown"),
    [
        (["-info"], "+info", {"server", "eviction", "memory", "persistence"}),
        (["-time"], "+time", {"clock"}),
        (["-zrange"], "+zrange", {"workers", "queues", "engines"}),
        (["resetkeys", "~other:*"], "~PATTERN", {"workers", "queues", "engines"}),
    ],
)
def test_doctor_names_a_missing_right_and_goes_on(
    mosaic: Mosaic, restrict: Callable[..., None], rules: list[str], right: str, unknown: set[str]
) -> None:
    everything = levels(mosaic("doctor", "--json")).keys()
    restrict(*rules)
    answer = mosaic("doctor", "--json")
    found = levels(answer)
    assert answer.exit_code == ExitCode.FAILED
    assert found.keys() == everything - unknown | {"rights"}
    refused = [check for check in json.loads(answer.stdout)["checks"] if check["name"] == "rights"]
    assert all(check["level"] == "fail" and right in check["advice"] for check in refused)


@pytest.mark.parametrize("rule", ["-ping", "-time", "-evalsha", "-hset"])
def test_the_command_tells_a_missing_right(mosaic: Mosaic, restrict: Callable[..., None], rule: str) -> None:
    restrict(rule)
    answer = mosaic("run", "gated.yaml", "--input", "path=x")
    assert answer.exit_code == ExitCode.SERVER
    assert f"no permissions to run the '{rule[1:]}' command" in answer.stderr
    assert "does not answer" not in answer.stderr
    assert "secret" not in answer.stderr
