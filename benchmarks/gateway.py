"""What the gateway adds to the first token, a thousand readers of one stream, and two hundred submissions a second.

One server, one gateway process that asks for an API key, a worker of the async pool for texts and a solo one for what
was submitted; clients in processes of their own. README.md says what is measured how.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil
from harness import Report, Spread, Target, percentile, rounded, show_table, shown
from processes import (
    BENCHMARKS,
    SERVER_OPTIONS,
    BenchmarkError,
    Client,
    Processes,
    Server,
    Started,
    start_worker,
)
from script import run_script

DATABASE = 0
TEXTS = "mosaic.api.replay"
TOOLS = "mosaic.cpu"
SLOTS = 64
SAMPLE_S = 0.1
SAMPLES_READ = 8
"""Readers of the run that warms up."""

TARGETS = (
    Target("added_first_token_ms_p50", 30.0),
    Target("sse_readers_dropped", 0.0),
    Target("kb_per_reader", 100.0),
    Target("submits_per_s", least=200.0),
    Target("submit_p99_ms", 250.0),
    Target("runs_lost", 0.0),
)


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        firsts: runs whose first token is timed.
        readers: of one stream, at once; it is written for `stream_s`.
        users: who submit, `rate` a second together, for `load_s`.
    """

    firsts: int
    readers: int
    stream_s: float
    users: int
    rate: float
    load_s: float


FULL = Sizes(firsts=40, readers=1000, stream_s=40.0, users=50, rate=205.0, load_s=60.0)
QUICK = Sizes(firsts=5, readers=50, stream_s=4.0, users=5, rate=20.0, load_s=3.0)


class Deployment:
    """Everything that runs.

    Attributes:
        url: of the gateway.
        processes: of which time and memory are told.
        near: a client at the worker's side of the gateway.
        far: one that reads through it.
    """

    def __init__(self, processes: Processes, server: Server, sizes: Sizes) -> None:
        self._processes = processes
        environment = {"MOSAIC_REDIS_URL": server.url(DATABASE)}
        pool = {"CELERY_CUSTOM_WORKER_POOL": "mosaic_tasks.pool:TaskPool"}
        app = "mosaic_tasks.app"
        texts, tools = ["--queues", TEXTS], ["--queues", TOOLS]
        workers = [
            start_worker(
                processes,
                "texts",
                app,
                environment=environment | pool,
                pool="custom",
                concurrency=SLOTS,
                options=texts,
            ),
            start_worker(processes, "tools", app, environment=environment, options=tools),
        ]
        self.near, self.far = (
            Client(processes, name, "gateway_client", environment=environment, workers=workers)
            for name in ("near", "far")
        )
        self.near.ask("workers", len(workers))
        self.key: str = self.near.ask("call", "make_key")
        folder: str = self.near.ask("call", "make_workflows", sizes.stream_s)
        self._gateway = _gateway(processes, folder, environment)
        self.url = _url(self._gateway)
        watched = {"gateway": self._gateway, "worker": workers[1], "server": server.started}
        self.processes = {name: psutil.Process(each.process.pid) for name, each in watched.items()}
        self._all = [self._gateway, self.near.started, self.far.started, *workers]

    def start_text(self, workflow: str) -> str:
        """A run of a workflow that writes a text; its id."""
        run_id: str = self.near.ask("call", "start", workflow)
        return run_id

    def cpu_s(self) -> dict[str, float]:
        """The time that each of these processes has worked."""
        return {name: sum(process.cpu_times()[:2]) for name, process in self.processes.items()}

    def stop(self) -> None:
        """Ends all, while the server is still there."""
        self._processes.stop(self._all)


def _gateway(processes: Processes, folder: str, environment: dict[str, str]) -> Started:
    command = [sys.executable, "-m", "mosaic_tasks.cli", "serve", folder, "--port", "0", "--json"]
    return processes.start("gateway", command, environment=environment, pipes=True)


def _url(gateway: Started) -> str:
    assert gateway.process.stdout is not None
    line = gateway.process.stdout.readline()
    if not line:
        raise BenchmarkError(f"the gateway did not start:\n{gateway.told()}")
    return str(json.loads(line)["url"])


# -- the first token -------------------------------------------------------------------------------------------------


def first_tokens(deployment: Deployment, count: int) -> list[float]:
    """How much later the first word of a run comes through the gateway than at the worker, in seconds; one a run."""
    print("first tokens ...", flush=True)
    _added_s(deployment)
    return [_added_s(deployment) for _ in range(count)]


def _added_s(deployment: Deployment) -> float:
    run_id = deployment.start_text("brief")
    with ThreadPoolExecutor(2) as both:
        far = both.submit(deployment.far.ask, "call", "heard_at", deployment.url, deployment.key, run_id)
        near = both.submit(deployment.near.ask, "call", "said_at", run_id)
        return float(far.result()) - float(near.result())


# -- readers ---------------------------------------------------------------------------------------------------------


class Peak:
    """The most memory that a process has while this is open, in bytes, and what it had before."""

    def __init__(self, process: psutil.Process) -> None:
        self._process, self._over = process, threading.Event()
        self.before = self.most = process.memory_info().rss
        self._thread = threading.Thread(target=self._sample, name="memory")

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.most = max(self.most, self._process.memory_info().rss)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()


def readers(deployment: Deployment, count: int) -> dict[str, Any]:
    """Many readers of one run, from before its first words; what they read, and the memory that they took.

    Raises:
        BenchmarkError: they did not read at the same time.
    """
    print(f"{count} readers ...", flush=True)
    _read(deployment, "brief", SAMPLES_READ)
    with Peak(deployment.processes["gateway"]) as peak:
        found = _read(deployment, "long", count)
    if found["last_came_s"] >= found["first_left_s"]:
        raise BenchmarkError(f"the last reader came when the first had left: {found!r}")
    memory = {"kb_before": peak.before / 1024, "kb_more": (peak.most - peak.before) / 1024}
    return {"readers": count, **found, **memory}


def _read(deployment: Deployment, workflow: str, count: int) -> dict[str, Any]:
    run_id = deployment.start_text(workflow)
    found: dict[str, Any] = deployment.far.ask(
        "call", "read_together", deployment.url, deployment.key, run_id, count
    )
    return found


# -- submissions -----------------------------------------------------------------------------------------------------


def submissions(deployment: Deployment, processes: Processes, sizes: Sizes) -> dict[str, Any]:
    """What `gateway_load.py` did to the gateway, and how many of the runs did not come to their end."""
    print(f"{sizes.rate:g} submissions a second, {sizes.load_s:g} s ...", flush=True)
    out = processes.directory / "load.json"
    words = [deployment.url, deployment.key, str(sizes.users), str(sizes.rate), str(sizes.load_s), str(out)]
    before = deployment.cpu_s()
    load = processes.start(
        "load", [sys.executable, str(BENCHMARKS / "gateway_load.py"), *words], environment={}
    )
    if load.process.wait() != 0:
        raise BenchmarkError(f"the load ended with an error:\n{load.told()}")
    found = json.loads(out.read_text())
    ended: dict[str, Any] = deployment.near.ask("call", "count_ended", str(out))
    worked_s = {name: after - before[name] for name, after in deployment.cpu_s().items()}
    each_ms = {
        name: 1e3 * spent_s / len(found["runs"])
        for name, spent_s in {**worked_s, "client": found["cpu_s"]}.items()
    }
    return {**found, **ended, "cpu_ms": each_ms}


def figures(
    added: Sequence[float], read: Mapping[str, Any], load: Mapping[str, Any]
) -> dict[str, float | None]:
    """Of what was submitted, the rate is of what was accepted; what of that is not done is lost."""
    latencies: Sequence[float] = load["latencies_ms"]
    accepted = len(load["runs"])
    return {
        "added_first_token_ms_p50": 1e3 * Spread(tuple(added)).median,
        "added_first_token_ms_p99": 1e3 * percentile(added, 99),
        "sse_readers_dropped": read["dropped"],
        "kb_per_reader": read["kb_more"] / read["readers"],
        "submits_per_s": accepted / load["seconds"],
        "submit_p50_ms": percentile(latencies, 50),
        "submit_p99_ms": percentile(latencies, 99),
        "submits_refused": len(load["refused"]),
        "runs_lost": accepted - load["done"],
    }


# -- all -------------------------------------------------------------------------------------------------------------


def measure(report: Report, sizes: Sizes, processes: Processes, server: Server) -> None:
    """Measures everything and fills the report."""
    deployment = Deployment(processes, server, sizes)
    added = first_tokens(deployment, sizes.firsts)
    read = readers(deployment, sizes.readers)
    load = submissions(deployment, processes, sizes)
    deployment.stop()
    report.figures = figures(added, read, load)
    report.details = {
        "added_ms": [rounded(1e3 * value) for value in added],
        "readers": {name: rounded(value) for name, value in read.items()},
        "load": {
            "users": sizes.users,
            "rate": sizes.rate,
            "seconds": rounded(load["seconds"]),
            "drained_s": rounded(load["drained_s"]),
            "refused": load["refused"][:5],
            **{f"{name}_cpu_ms": rounded(spent) for name, spent in load["cpu_ms"].items()},
            **{
                f"p{percent}_ms": rounded(percentile(load["latencies_ms"], percent))
                for percent in (50, 90, 95, 99, 100)
            },
        },
        "server_options": SERVER_OPTIONS,
    }


def show(report: Report) -> None:
    """Prints what readers and submissions took, and the figures against their targets."""
    for name in ("readers", "load"):
        rows = [
            (key, shown(value)) for key, value in report.details[name].items() if not isinstance(value, list)
        ]
        show_table(name, ("", "value"), rows)
    report.show(TARGETS)


if __name__ == "__main__":
    run_script(
        "gateway",
        "What the gateway adds to runs, and what it holds out.",
        full=FULL,
        quick=QUICK,
        measure=measure,
        show=show,
        packages=("fastapi", "starlette", "uvicorn", "locust"),
    )
