"""Workers that host calls, and the invariant of all of them: what is over has given its slots back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from redis import Redis

from mosaic_tasks import Run
from mosaic_tasks.app import app
from tests.integration.stream_runs import run, tool
from tests.services import Worker, Workers

TOOLS = "tests.integration.host_tools"
WAIT_S = 20.0


class Hosts:
    """Starts such workers; in the end each must have all of its slots free."""

    def __init__(self, workers: Workers, client: Redis) -> None:
        self.client = client
        self._workers, self._started = workers, list[Worker]()

    def start(
        self,
        concurrency: int = 300,
        *,
        queues: tuple[str, ...] = ("mosaic.cpu",),
        args: tuple[str, ...] = (),
        include: str = "tests.integration.host_limits",
        **env: str,
    ) -> Worker:
        worker = self._workers.start(
            "mosaic_tasks.app",
            list(queues),
            pool="async",
            concurrency=concurrency,
            env=env,
            args=(*args, "--include", include),
        )
        self._started.append(worker)
        return worker

    def running(self, worker: Worker) -> int:
        """Slots that are taken, by `celery inspect stats`."""
        (answer,) = app.control.inspect(destination=[worker.name], timeout=WAIT_S, limit=1).stats().values()
        return int(answer["pool"]["running"])

    def await_free(self, worker: Worker, within_s: float = WAIT_S) -> None:
        """Waits until no slot is taken."""
        deadline = time.monotonic() + within_s
        while taken := self.running(worker):
            assert time.monotonic() < deadline, f"{taken} slots are still taken:\n{worker.log}"

    def check(self) -> None:
        """The invariant of a host whose runs are over. A message of a worker that was killed waits for kombu."""
        for worker in self._started:
            if worker.returncode is None:
                self.await_free(worker)
            assert "host.error" not in worker.log
            assert "host.failed" not in worker.log
        if all(worker.returncode in (None, 0) for worker in self._started):
            self.await_acknowledged()

    def await_acknowledged(self) -> None:
        """Waits until no message is unacknowledged."""
        deadline = time.monotonic() + WAIT_S
        while unacked := self.client.hlen("unacked"):
            assert time.monotonic() < deadline, f"{unacked} messages are not acknowledged"

    def counted(self, name: str) -> int:
        """What `note` has come to."""
        return int(self.client.get(f"test:count:{name}") or 0)


def hosted(workers: Workers, client: Redis) -> Iterator[Hosts]:
    """The body of a fixture."""
    started = Hosts(workers, client)
    yield started
    try:
        started.check()
    finally:
        workers.stop()


def call(name: str, **options: Any) -> dict[str, Any]:
    """A node that runs a tool of these tests."""
    return tool(name, module=TOOLS, **options)


def fan_out(name: str, n: int, /, *, options: dict[str, Any] | None = None, **arguments: Any) -> Run:
    """Submits a fan-out of a tool over 0..n-1, which comes to the list of what its calls gave."""
    nodes = {
        "numbers": call("count", with_={"n": n}),
        "each": call(name, for_each="${numbers}", with_={"x": "${item}", **arguments}, **(options or {})),
    }
    return run(nodes, "each")
