"""Processes that a benchmark starts: a server, workers, clients. All of them end with it, also on Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from mosaic_queues.server import server_binary

STOP_S = 15.0
LOG_TAIL = 2_000
SERVER_OPTIONS = {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
"""No persistence, for all sides alike: neither snapshots nor an append-only file."""
BENCHMARKS = Path(__file__).resolve().parent
EXAMPLES = BENCHMARKS.parent / "examples"


class BenchmarkError(Exception):
    """A process of the benchmark ended, or answered something else than it should."""


@dataclass
class Started:
    """A process in a session of its own, and the file it logs to."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def told(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]


class Processes:
    """Starts processes and ends them all, as a context manager.

    Attributes:
        directory: a short-lived one, where all of them work and log.
    """

    def __init__(self) -> None:
        self.directory = Path(
            tempfile.mkdtemp(prefix="mosaic-bench-", dir="/tmp")
        )  # short: it holds a socket
        self._started: list[Started] = []
        self._logs: list[IO[str]] = []

    def start(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str], pipes: bool = False
    ) -> Started:
        """Starts a process.

        Args:
            name: for messages and its log.
            environment: added to what every process of the benchmark gets.
            pipes: whether its input and output are ours to write and read; else its output goes to the log.
        """
        path = self.directory / f"{name}.log"
        log = path.open("w", encoding="utf-8")
        self._logs.append(log)
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env={**_environment(), "MOSAIC_HOME": str(self.directory / "home"), **environment},
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        started = Started(name, process, path)
        self._started.append(started)
        return started

    def stop(self, ending: Sequence[Started]) -> None:
        """Asks all of these to end, then waits for each, and kills what has not ended in time."""
        for started in ending:
            if started.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    started.process.stdin.close()
            _signal(started.process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for started in ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(max(0.1, deadline - time.monotonic()))
            _signal(started.process, signal.SIGKILL)
            started.process.wait()
            if started.process.stdout is not None:
                started.process.stdout.close()
            self._started.remove(started)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_error: object) -> None:
        with _undisturbed():
            self.stop(self._started[::-1])  # the server, started first, is asked last
            for log in self._logs:
                log.close()
            shutil.rmtree(self.directory)


def _environment() -> dict[str, str]:
    """This process's environment without settings of ours, and with the modules of the benchmarks and the examples."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MOSAIC_", "CELERY_"))}
    path = os.pathsep.join(filter(None, (str(BENCHMARKS), str(EXAMPLES), kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not keep us from ending what we started."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_on_sigterm() -> None:
    """Makes a SIGTERM unwind this process, so that context managers end what it started."""

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, unwind)


class Server:
    """A server of the benchmark's own, on a unix socket, that keeps nothing on disk.

    Attributes:
        client: of database 0.
    """

    def __init__(self, processes: Processes) -> None:
        self.socket = processes.directory / "server.sock"
        options = {**SERVER_OPTIONS, "unixsocket": str(self.socket), "dir": str(processes.directory)}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.started = processes.start("server", [server_binary(), *words], environment={})
        self.client = self.database(0)
        self.client.ping()

    def database(self, number: int) -> Redis:
        """A client of one of its databases; waits for the server to come up."""
        return Redis(unix_socket_path=str(self.socket), db=number, retry=Retry(ConstantBackoff(0.01), 500))

    def url(self, number: int) -> str:
        """The URL of a database for Celery, as broker and as backend, and for mosaic-tasks."""
        return f"redis+socket://{self.socket}?virtual_host={number}"

    def version(self) -> str:
        """What it is, such as `valkey 9.1.2`."""
        told: dict[str, Any] = self.client.info("server")
        name = told.get("server_name", "redis")
        return f"{name} {told.get(f'{name}_version', told['redis_version'])}"


class Client:
    """A process that does what it is told, a line of JSON at a time; see `client.py`.

    Args:
        module: whose functions it calls.
        workers: whose logs are told too when it ends.
    """

    def __init__(
        self,
        processes: Processes,
        name: str,
        module: str,
        *,
        environment: Mapping[str, str],
        workers: Sequence[Started],
    ) -> None:
        command = [sys.executable, str(BENCHMARKS / "client.py"), module]
        self.started = processes.start(name, command, environment=environment, pipes=True)
        self._workers = workers

    def ask(self, *order: Any) -> Any:
        """Has it do something, and gives its answer.

        Raises:
            BenchmarkError: it ended instead.
        """
        pipe_in, pipe_out = self.started.process.stdin, self.started.process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which reading tells
            pipe_in.write(json.dumps(order) + "\n")
            pipe_in.flush()
        line = pipe_out.readline()
        if not line:
            logs = "\n".join(f"--- {part.name}\n{part.told()}" for part in (self.started, *self._workers))
            raise BenchmarkError(f"{self.started.name!r} ended at {order!r}:\n{logs}")
        return json.loads(line)


def start_worker(
    processes: Processes,
    name: str,
    app: str,
    *,
    environment: Mapping[str, str],
    pool: Literal["solo", "threads", "custom"] = "solo",
    concurrency: int = 1,
    options: Sequence[str] = (),
) -> Started:
    """A Celery worker with task events, started in its cheapest way, the same for all sides."""
    command = [sys.executable, "-m", "celery", "-A", app, "worker", "--hostname", f"{name}@localhost"]
    command += [
        "--pool",
        pool,
        "--concurrency",
        str(concurrency),
        "--task-events",
        "--prefetch-multiplier",
        "1",
    ]
    command += [
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
        "--loglevel",
        "WARNING",
        *options,
    ]
    return processes.start(name, command, environment=environment)
