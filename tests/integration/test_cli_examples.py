"""Each example of the command line runs as docs/reference/cli.md shows it, in that order, in one site."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from redis import Redis

from mosaic_queues.errors import Unauthenticated
from mosaic_queues.topology import topology
from mosaic_tasks.access.audit import Deed, audit_of
from mosaic_tasks.app import app
from tests.integration import quick_mosaic
from tests.integration.buckets import s3
from tests.integration.cli_site import BEFORE, furnish
from tests.integration.elsewhere import COMMANDS
from tests.integration.guides import ROOT, Shell, free_ports, lines_of, with_ports
from tests.services import READY_S, Worker, key_events

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
_SECTION = re.compile(r"^##+ (mosaic.*?)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_EXAMPLES = re.compile(r"^```sh examples\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_GOES_ON = re.compile(r"mosaic (?:worker|serve|metrics)\b|mosaic (?:engines|infra|keys audit) .*--follow")
_READY = {
    "mosaic worker --json": '"queues"',
    "mosaic worker": " ready.",
    "mosaic serve": "http://",
    "mosaic metrics": "http://",
    "mosaic infra": "server",
    "mosaic engines": "no worker hosts",
    "mosaic keys": "refused",
}
"""What they print when they are ready, by the words with which commands begin; the first that fit count."""
_WORKS = "mosaic worker --pool async --queues mosaic.cpu,mosaic.api.replay"
ENDED_BY_CTRL_C = {0, 130, -signal.SIGINT}


def examples() -> Iterator[tuple[str, list[str]]]:
    """The examples of each command that can run here."""
    for name, text in [("mosaic", PAGE.partition("\n## ")[0]), *_SECTION.findall(PAGE)]:
        lines = [line for block in _EXAMPLES.findall(text) for line in lines_of(block)]
        yield name, [line for line in lines if line not in COMMANDS]


class Site:
    """The site, with a worker.

    Args:
        environment: of all that it starts.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], client: Redis) -> None:
        self._folder, self._environment, self._client = folder, environment, client
        self._ports = free_ports()
        self._started: list[tuple[str, Worker]] = []
        self._worker = self._start(_WORKS)

    def follow(self, shell: Shell, name: str, lines: Sequence[str]) -> None:
        """Does what the examples of a command say; what goes on is ended by Ctrl-C behind the last of them."""
        if self._worker.returncode is not None:  # as after `mosaic drain`
            self._worker = self._start(_WORKS)
        self._worker.wait_ready()
        if name in BEFORE:
            shell.run(BEFORE[name])
        for line in lines:
            if _GOES_ON.match(line):
                self._started.append((line, self._start(line)))
            else:
                self._wait_ready()
                shell.run(with_ports(line, self._ports))
        self._wait_ready()
        self._end()

    def close(self) -> None:
        """Ends what still runs."""
        for _, process in [*self._started, ("", self._worker)]:
            process.stop()

    def _start(self, command: str) -> Worker:
        words = command if "|" in command else f"exec {command}"
        shell = ["bash", "-c", with_ports(words, self._ports)]
        return Worker(command, shell, environment=self._environment, cwd=self._folder)

    def _wait_ready(self) -> None:
        for line, process in self._started:
            process.wait_said(next(said for start, said in _READY.items() if line.startswith(start)), READY_S)

    def _end(self) -> None:
        for _, process in self._started:
            os.killpg(process.pid, signal.SIGINT)
        for line, process in self._started:
            assert process.wait(READY_S) in ENDED_BY_CTRL_C, f"{line}\n{process.log}"
            process.kill()
        self._started.clear()


@contextlib.contextmanager
def quick(environment: Mapping[str, str], folder: Path) -> Iterator[dict[str, str]]:
    """The environment, with a `mosaic` that starts at once."""
    with tempfile.TemporaryDirectory(prefix="mosaic-quick-", dir="/tmp") as made:
        socket, script = f"{made}/socket", Path(made) / "mosaic"
        runs = [sys.executable, "-I", "-S", quick_mosaic.__file__, "run", socket]
        script.write_text(f'#!/bin/sh\nexec {" ".join(runs)} "$@"\n', "utf-8")
        script.chmod(0o755)
        serves = [sys.executable, quick_mosaic.__file__, "serve", socket]
        server = Worker("quick mosaic", serves, environment=environment, cwd=folder)
        try:
            server.wait_said("ready")
            yield {**environment, "PATH": f"{made}{os.pathsep}{environment['PATH']}"}
        finally:
            server.kill()


def test_each_command_has_examples() -> None:
    without = {name for name, lines in examples() if not lines}
    assert without == {"mosaic schedule", "mosaic keys", "mosaic dead"}  # which have commands of their own


def send_unknown(client: Redis) -> None:
    """Has the worker bury messages."""
    with key_events(client, "z") as events:
        for _ in range(4):
            app.send_task("mosaic.forgotten", queue="mosaic.cpu")
        buried = (key for event, key in events if (event, key) == ("zadd", topology().dead_letter))
        assert [next(buried) for _ in range(4)]


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.leaves("keys", reason="API keys and schedules stay until somebody removes them")
@pytest.mark.usefixtures("mosaic_process")
def test_each_example_works(
    redis_url: str, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(tmp_path)
    with s3(monkeypatch), contextlib.ExitStack() as stack:
        paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
        environment = {**os.environ, "PATH": os.pathsep.join(paths), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
        environment |= {"MOSAIC_REDIS_URL": redis_url, "MOSAIC_HOME": str(tmp_path / ".mosaic")}
        environment |= {"PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'examples'}"}
        site = stack.enter_context(contextlib.closing(Site(tmp_path, environment, redis_client)))
        shell = stack.enter_context(Shell.opened(tmp_path, stack.enter_context(quick(environment, tmp_path))))
        audit_of(app).refused(None, Deed("GET /v1/runs"), Unauthenticated("no key was shown"))
        for name, lines in examples():
            if name in ("mosaic dead", "mosaic dead drop"):
                send_unknown(redis_client)
            site.follow(shell, name, lines)
