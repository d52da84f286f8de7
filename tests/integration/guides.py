"""Pages of documentation as tests run them: their files are written, their commands run in order, in one shell.

What a fenced block is, its first line says:

    ```sh              commands, run as they stand; variables last to the end of the page
    ```sh background   commands that go on (a worker, a server), one a line; what follows waits until they are ready
    ```sh examples     of a help text; `test_cli_examples.py` runs them, line by line
    ```sh elsewhere    needs what tests have not (a cluster, a GPU): `test_guides.py` lists these, each with the reason;
                       checked for syntax and unknown options
    ```python, ```yaml, ```json, ...   with `# NAME` in its first line the file NAME; else an excerpt
    ```console, ```text                a transcript

Ports that pages name are replaced by free ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_queues.liveness import live_processes
from tests.services import READY_S, Worker, key_events

ROOT = Path(__file__).resolve().parents[2]
PORTS = ("5555", "8000", "8001", "9464")
"""Of Flower, the gateway, the examples, and `mosaic metrics`."""
BLOCK_S = 180
_FENCE = re.compile(r"^```(\w+) ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"(?:#|//|--|<!--) (\S+\.\w+)(?: -->)?\n")
_MARK = "--- end of block"


class Block(NamedTuple):
    """A fenced block."""

    language: str
    mark: str
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file that it is."""
        found = _NAMED.match(self.text)
        return found[1] if found and self.language != "sh" else None


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(*found) for found in _FENCE.findall(page.read_text("utf-8"))]


class Guide:
    """A page that is followed.

    Args:
        environment: of all that it starts.
        directory: where its files are written and its commands run.
    """

    def __init__(self, page: Path, *, environment: Mapping[str, str], directory: Path, client: Redis) -> None:
        self._blocks = blocks_of(page)
        self._directory, self._client = directory, client
        self._ports = free_ports()
        paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
        self._environment = {**os.environ, **environment, "PATH": os.pathsep.join(paths), "NO_COLOR": "1"}
        self._environment |= {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(directory)}

    def follow(self) -> dict[str, str]:
        """Does what the page says, and stops what it started; what each block printed, by its text.

        A test fails where a command does, or where what goes on does not become ready.
        """
        printed: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            shell = stack.enter_context(Shell.opened(self._directory, self._environment))
            for block in self._blocks:
                text = with_ports(block.text, self._ports)
                if block.file is not None:
                    self._write(block.file, text)
                elif block.language == "sh" and block.mark == "background":
                    for command in lines_of(text):
                        stack.enter_context(self._running(command))
                elif block.language == "sh" and not block.mark:
                    printed[block.text] = shell.run(text)
        return printed

    def _write(self, name: str, text: str) -> None:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    @contextlib.contextmanager
    def _running(self, command: str) -> Iterator[None]:
        """What goes on, once it is ready; it is stopped after the block."""
        before = self._workers()
        with key_events(self._client, "z") as events:
            words = ["bash", "-c", f"exec env {command}"]
            process = Worker(command, words, environment=self._environment, cwd=self._directory)
            try:
                if re.search(r"(?:mosaic|mosaic_tasks\.app) worker", command):
                    if not any(key.endswith(":holders") and self._workers() != before for _, key in events):
                        pytest.fail(
                            f"{command}: the worker did not announce itself; it printed:\n{process.log}"
                        )
                else:
                    process.wait_said(_said_when_ready(command), READY_S)
                yield
            finally:
                process.stop()

    def _workers(self) -> set[str]:
        processes = live_processes(self._client, Keys("mosaic"))
        return {process.name for process in processes if process.queues}


def _said_when_ready(command: str) -> str:
    told = {" beat": "beat: Starting", " flower": "Visit me at", " worker": " ready."}
    return next((words for name, words in told.items() if name in command), "http://")


def lines_of(block: str) -> list[str]:
    """The commands of a block that has one a line, without comments."""
    lines = (re.sub(r"(^|  )# .*$", "", line).rstrip() for line in block.replace("\\\n", " ").splitlines())
    return [line for line in lines if line]


class Shell:
    """A bash that runs block after block, and ends at the first command that fails."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextlib.contextmanager
    def opened(cls, directory: Path, environment: Mapping[str, str]) -> Iterator[Shell]:
        """One that is gone after the block."""
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail"],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield cls(process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.communicate()

    def run(self, block: str) -> str:
        """What the commands printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{{\n{block}\n}} </dev/null\necho '{_MARK}'\n")
        self._process.stdin.flush()
        lines: list[str] = []
        alarm = threading.Timer(BLOCK_S, os.killpg, (self._process.pid, 9))
        alarm.start()
        try:
            for line in iter(self._process.stdout.readline, ""):
                if line.rstrip("\n").endswith(_MARK):
                    return "".join([*lines, line.removesuffix(f"{_MARK}\n")])
                lines.append(line)
        finally:
            alarm.cancel()
            alarm.join()
        pytest.fail(
            f"this failed, or took longer than {BLOCK_S} s:\n{block}\nIt printed:\n{''.join(lines)}",
            pytrace=False,
        )


def free_ports() -> dict[str, str]:
    """A free port for each that pages name."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        return {port: str(each.getsockname()[1]) for port, each in zip(PORTS, listeners, strict=True)}


def with_ports(text: str, ports: Mapping[str, str]) -> str:
    """A text of a page with ports that are free."""
    return re.sub(rf"\b({'|'.join(ports)})\b", lambda found: ports[found[1]], text)


def mosaic_lines(block: str) -> list[list[str]]:
    """The words of each `mosaic` command of a block, without what it is piped into."""
    joined = block.replace("\\\n", " ")
    found = re.findall(r"(?:^|[|(;&] *|^(?:[A-Z_]+=\S+ )+)mosaic ([^\n|;&>)]*)", joined, re.MULTILINE)
    return [shlex.split(words, comments=True) for words in found]
