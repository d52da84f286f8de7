"""A real gateway for tests: `mosaic serve` in a process of its own, on a free port of the loopback."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.forking import forked
from tests.services import READY_S, STOP_S


class Told(NamedTuple):
    """A server-sent event; a comment has the kind `:`, and its text as data."""

    id: str
    kind: str
    data: Any


def told(answer: httpx2.Response) -> Iterator[Told]:
    """The server-sent events of an answer, as they come."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        name, _, value = line.partition(":")
        if line and not name:
            yield Told("", ":", value.strip())
        elif line:
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield Told(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"]))
            fields = {}


class GatewayProcess:
    """A running gateway.

    Attributes:
        url: where it answers, `http://127.0.0.1:PORT`.
        pid: its process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = forked(
                command, environment=environment, cwd=Path.cwd(), stderr=errors.fileno()
            ) or subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        self.pid = self._process.pid
        self.url = self._read_url()

    def _read_url(self) -> str:
        assert self._process.stdout is not None
        is_there = select.select([self._process.stdout], [], [], READY_S)[0]
        line = self._process.stdout.readline() if is_there else ""
        told = json.loads(line) if line else {}
        if "url" not in told:
            self.kill()
            pytest.fail(f"the gateway did not start; it said: {told}\n{self.log}", pytrace=False)
        return str(told["url"])

    @property
    def log(self) -> str:
        """What it wrote to stderr."""
        return self._log.read_text(errors="replace")

    def wait_said(self, what: str, timeout_s: float = READY_S) -> None:
        """Waits until it has logged something; fails the test when it does not within the time."""
        deadline = time.monotonic() + timeout_s
        while what not in self.log:
            if time.monotonic() > deadline:
                pytest.fail(f"the gateway did not say {what!r}:\n{self.log}", pytrace=False)
            time.sleep(0.02)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    def client(self, key: str | None = None, **options: object) -> httpx2.Client:
        """An HTTP client of it; `key`: an API key, or another bearer token."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=READY_S, trust_env=False, **options)  # type: ignore[arg-type]

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Waits for its end, and answers how it ended."""
        try:
            return self._process.wait(timeout_s)
        finally:
            self._close()

    def stop(self, timeout_s: float = STOP_S) -> int:
        """Asks it to end, and answers how it did; one that does not in time is killed, and the test fails."""
        self._process.terminate()
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"the gateway did not stop in {timeout_s:g} s; it said:\n{self.log}", pytrace=False)

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        if self._process.poll() is not None and self._process.stdout is not None:
            self._process.stdout.close()


@contextlib.contextmanager
def gateway(
    *paths: Path,
    redis_url: str,
    home: Path,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    port: int = 0,
) -> Iterator[GatewayProcess]:
    """A gateway that serves workflow files and folders; stopped afterwards, its log printed.

    Args:
        redis_url: the test server's (fixture `redis_url`).
        home: a directory of the test (`tmp_path`): working directory, `MOSAIC_HOME`, and its log.
        args: more words for `mosaic serve`.
        env: more of the environment.
        port: 0: any that is free.
    """
    ours = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONUNBUFFERED": "1",
        "MOSAIC_REDIS_URL": redis_url,
        "MOSAIC_HOME": str(home / "home"),
    }
    words = ["serve", *map(str, paths), "--port", str(port), "--json", *args]
    command = [sys.executable, "-m", "mosaic_tasks.cli", *words]
    running = GatewayProcess(command, {**os.environ, **ours, **(env or {})}, home / "gateway.log")
    try:
        yield running
    finally:
        if running._process.poll() is None:
            running.stop()
        print(f"--- log of the gateway\n{running.log}")
