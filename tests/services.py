"""What integration tests need beside Python: a server, and Celery workers in processes of their own."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, NoReturn, Self

import psutil
import pytest
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.client import PubSub
from redis.exceptions import ResponseError
from redis.retry import Retry

from mosaic_queues.connection import ServerUrls, urls_of
from mosaic_queues.errors import ServerStartError
from mosaic_queues.server import server_binary
from tests.forking import forked

READY_S = 30.0
STOP_S = 15.0
Pool = Literal["solo", "prefork", "threads", "async"]
ASYNC_POOL = "mosaic_tasks.pool:TaskPool"
GIVEN_SERVER = "MOSAIC_TEST_REDIS_URL"
SESSION_VARIABLE = "MOSAIC_TEST_SESSION"


def session_name() -> str:
    """A word for what hides its environment: in the command of a process it says that this session started it."""
    return os.environ[SESSION_VARIABLE].partition(".")[0]


def missing(what: str) -> NoReturn:
    """End the test for want of a service: skipped, but failed in continuous integration (`CI=true`)."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing: {what}", pytrace=False)
    pytest.skip(f"missing: {what}")


@dataclass(frozen=True)
class ServerForTests:
    """A server whose database tests may empty.

    Attributes:
        client: answers bytes; for tests and leak checks alike.
    """

    urls: ServerUrls
    client: Redis


@contextlib.contextmanager
def server_for_tests() -> Iterator[ServerForTests]:
    """The server that `MOSAIC_TEST_REDIS_URL` names, or one of our own that is gone afterwards."""
    given = os.environ.get(GIVEN_SERVER)
    if given is not None and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.fail(
            f"{GIVEN_SERVER} names one database, which each of several processes would empty while the others "
            "use it; run pytest with `-n 0`",
            pytrace=False,
        )
    with _own_server() if given is None else contextlib.nullcontext(given) as url:
        urls = urls_of(url)
        retry = Retry(ConstantBackoff(0.01), 500)
        with Redis.from_url(urls.redis_url, retry=retry) as client:
            if client.dbsize():
                pytest.fail(
                    f"the database of {GIVEN_SERVER} is not empty ({client.dbsize()} keys), and tests "
                    "empty it; name another one, such as redis://localhost:6379/9",
                    pytrace=False,
                )
            yield ServerForTests(urls, client)
            client.flushdb()


@contextlib.contextmanager
def _own_server() -> Iterator[str]:
    try:
        binary = server_binary()
    except ServerStartError as error:
        missing(str(error))
    # Not pytest's own directory: the path of a unix socket must be short.
    directory = tempfile.mkdtemp(prefix=f"mosaic-test-{session_name()}-", dir="/tmp")
    socket = f"{directory}/valkey.sock"
    options = {"port": "0", "unixsocket": socket, "dir": directory, "save": "", "appendonly": "no"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    process = subprocess.Popen([binary, *words], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield f"unix://{socket}?db=0"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory)


@contextlib.contextmanager
def key_events(client: Redis, kinds: str) -> Iterator[Iterator[tuple[str, str]]]:
    """What happens to the server's keys, as it happens: (event, key); ends after `READY_S` of silence.

    Args:
        kinds: classes of events, in the letters of `notify-keyspace-events`.
    """
    option = "notify-keyspace-events"
    try:
        (before,) = client.config_get(option).values()
    except ResponseError as error:
        missing(f"a test server that lets us listen to its keys ({error})")
    with client.pubsub() as heard:
        heard.psubscribe("__keyevent@*__:*")
        heard.get_message(timeout=READY_S)  # the subscription itself
        client.config_set(option, f"E{kinds}")
        try:
            yield _heard(heard)
        finally:
            client.config_set(option, before)


def _heard(subscriber: PubSub) -> Iterator[tuple[str, str]]:
    while (message := subscriber.get_message(timeout=READY_S)) is not None:
        yield message["channel"].decode().rpartition(":")[2], message["data"].decode()


def await_exit(pid: int, timeout_s: float = STOP_S) -> None:
    """Wait until a process ended, ours or not; on Linux one that nobody reaps has. Fail when it does not."""
    try:
        if sys.platform != "linux":
            psutil.Process(pid).wait(timeout_s)
            return
        fd = os.pidfd_open(pid)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return
    try:
        if not select.select([fd], [], [], timeout_s)[0]:
            pytest.fail(f"the process {pid} still runs after {timeout_s:g} s", pytrace=False)
    finally:
        os.close(fd)


class Worker:
    """A Celery worker in a process group of its own.

    Attributes:
        name: its node name, such as `w0@host`.
        pid: its main process, which also leads its group.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str], cwd: Path
    ) -> None:
        self.name = name
        self._lines: list[str] = []
        self._consumes = False
        self._settled = threading.Event()
        self._printed = threading.Condition()
        self._process = forked(command, environment=environment, cwd=cwd) or subprocess.Popen(
            command,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name=f"log of {name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                with self._printed:
                    self._lines.append(line)
                    self._printed.notify_all()
                if line.rstrip().endswith(" ready."):
                    self._consumes = True
                    self._settled.set()
        self._settled.set()

    @property
    def log(self) -> str:
        """All that it has printed."""
        return "".join(self._lines)

    @property
    def children(self) -> list[int]:
        """The processes of its pool."""
        return [child.pid for child in psutil.Process(self.pid).children()]

    @property
    def returncode(self) -> int | None:
        """How it ended, None while it runs."""
        return self._process.poll()

    def wait_ready(self, timeout_s: float = READY_S) -> Self:
        """Wait until it consumes; fail the test when it ended or does not within the time."""
        if not (self._settled.wait(timeout_s) and self._consumes):
            pytest.fail(f"the worker {self.name!r} is not ready; it printed:\n{self.log}", pytrace=False)
        return self

    def wait_said(self, what: str, timeout_s: float = READY_S) -> None:
        """Wait until it has printed something; fail the test when it ended or does not within the time."""
        deadline = time.monotonic() + timeout_s
        with self._printed:
            while what not in self.log:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._reader.is_alive():
                    pytest.fail(f"the worker {self.name!r} did not say {what!r}:\n{self.log}", pytrace=False)
                self._printed.wait(left_s)

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Wait until its main process ended, and answer how."""
        return self._process.wait(timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its main process alone."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it and its pool at once, as when the machine loses power."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Ask it to end, and kill what of it has not ended in time."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self.kill()


class Workers:
    """Starts workers on a server, and stops all of them as a context manager.

    Args:
        urls: of the server, which the workers get as `MOSAIC_REDIS_URL`.
        directory: their working directory and their `MOSAIC_HOME`.
    """

    def __init__(self, urls: ServerUrls, directory: Path) -> None:
        self._urls = urls
        self._directory = directory
        self._started: list[Worker] = []

    def start(
        self,
        app: str,
        queues: Sequence[str],
        *,
        pool: Pool = "solo",
        concurrency: int = 1,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
    ) -> Worker:
        """Start a worker; it is not ready yet (`Worker.wait_ready`), so that several can start side by side.

        Args:
            app: where Celery finds it; modules of tests by their full name (`tests.integration.apps`).
            env: added to this process's environment.
            args: more words for Celery's command line.
        """
        name = f"w{len(self._started)}-{os.getpid()}@localhost"
        command = [sys.executable, "-m", "celery", "-A", app, "worker", "--hostname", name]
        command += [
            "--queues",
            ",".join(queues),
            "--pool",
            "custom" if pool == "async" else pool,
            "--concurrency",
            str(concurrency),
        ]
        command += [
            "--loglevel",
            "INFO",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            *args,
        ]
        worker = Worker(name, command, environment=self._environment(env or {}), cwd=self._directory)
        self._started.append(worker)
        return worker

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        ours = {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONUNBUFFERED": "1",
            "MOSAIC_REDIS_URL": self._urls.redis_url,
            "MOSAIC_HOME": str(self._directory / "home"),
            "CELERY_CUSTOM_WORKER_POOL": ASYNC_POOL,
        }
        return {**os.environ, **ours, **more}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop them all, asking all before waiting for any, and print their logs, which failures show."""
        for worker in self._started:
            worker.signal(signal.SIGTERM)
        for worker in self._started:
            worker.stop()
            print(f"--- log of {worker.name}\n{worker.log}")
        self._started.clear()
