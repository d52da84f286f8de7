"""What starting on partial outputs gains, and what it costs.

Three workflows (a chain of agents, the financial and the weekly report) run streaming and as barriers, which is the
same workflow with every edge `final`, on the same engine with the same recorded answers and pace. Then the latency from
chunk to consumer against that of a bare Celery task, the commands a chunk costs, chunks a second, and many readers of
one stream. One server, two workers (and some of few places for the weekly report), one client; what is compared takes
turns. README.md says what is measured how,
`streaming_bound.py` how the lower bound is computed.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from harness import Report, Spread, Target, percentile, ratio, rounded, show_table, shown, worst
from processes import (
    SERVER_OPTIONS,
    BenchmarkError,
    Client,
    Processes,
    Server,
    Started,
    start_worker,
)
from script import run_script
from traffic import Counters, measured, monitored

WORKERS = 2
SLOTS = 80
"""Of each worker: nobody waits for one."""
ASYNC_POOL = "mosaic_tasks.pool:TaskPool"
"""Of the workers of few places: a slot is a call."""
DATABASE = 0
REPORTS = ("weekly", "finance")
SCENARIOS = (*REPORTS, "chain")
PER_S = 200.0
"""The realistic rate of chunks, at which their cost is told."""
PRODUCERS = 8

TARGETS = (
    Target("weekly_stream_over_barrier", 0.5),
    Target("finance_stream_over_barrier", 0.5),
    Target("stream_over_bound", 1.1),
    Target("first_word_ratio", 0.2),
    Target("chunk_to_consumer_p50_over_celery", 1.5),
    Target("commands_per_chunk", 4.0),
    Target("consumer_tasks_per_drain", 1.0),
    Target("readers_lost", 0.0),
)


READ_STREAMS = 2
"""In the chain whose commands are counted, a fold reads the producer's items and another one what it puts out."""


@dataclass(frozen=True)
class Load:
    """So many runs, or senders, at the same time, each with `count` items, one in `period_s`."""

    runs: int
    count: int
    period_s: float


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        speeds: how many times as fast as recorded the answers of each scenario come.
        commits: of each author.
        repeats: of each scenario.
    """

    speeds: Mapping[str, float]
    commits: int
    repeats: Mapping[str, int]
    loads: tuple[Load, ...]
    latency_repeats: int
    chain_items: int
    flood_items: int
    readers: int
    idle_s: float


FULL = Sizes(
    speeds={"weekly": 6.0, "finance": 4.0, "chain": 4.0},
    commits=40,
    repeats={"weekly": 3, "finance": 5, "chain": 5},
    loads=(Load(1, 60, 0.1), Load(10, 30, 0.2), Load(100, 10, 1.0)),
    latency_repeats=3,
    chain_items=1000,
    flood_items=20_000,
    readers=1000,
    idle_s=5.0,
)
QUICK = Sizes(
    speeds={"weekly": 30.0, "finance": 30.0, "chain": 30.0},
    commits=4,
    repeats=dict.fromkeys(SCENARIOS, 1),
    loads=(Load(1, 10, 0.05), Load(10, 5, 0.2)),
    latency_repeats=1,
    chain_items=100,
    flood_items=1000,
    readers=50,
    idle_s=1.0,
)


# -- streaming against barrier -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """A scenario's times, in seconds: to the result and to the first word, streaming and as a barrier."""

    bound_s: float
    stream: Spread
    barrier: Spread
    stream_first: Spread
    barrier_first: Spread

    def told(self) -> dict[str, Any]:
        """Medians and ratios, with all values."""
        sides = {"stream": self.stream, "barrier": self.barrier}
        firsts = {"stream_first": self.stream_first, "barrier_first": self.barrier_first}
        return {
            "bound_s": rounded(self.bound_s),
            **{f"{name}_s": rounded(spread.median) for name, spread in (sides | firsts).items()},
            "stream_over_barrier": rounded(self.stream.median / self.barrier.median),
            "stream_over_bound": rounded(self.stream.median / self.bound_s),
            "first_word_ratio": rounded(self.stream_first.median / self.barrier_first.median),
            "all_s": {name: list(map(rounded, spread.values)) for name, spread in (sides | firsts).items()},
        }


def compare(deployment: Deployment, name: str, sizes: Sizes) -> Compared:
    """Runs a scenario on both sides in turn, after one run each that warms up.

    Raises:
        BenchmarkError: the reports differ.
    """
    print(f"{name} ...", end=" ", flush=True)
    client = deployment.client
    prepared = client.ask("call", "prepare_scenario", name, sizes.speeds[name], sizes.commits)
    with deployment.places(prepared["places"]):
        rounds = [
            [_run(client, name, is_barrier) for is_barrier in (False, True)]
            for _ in range(sizes.repeats[name] + 1)
        ]
    if len(texts := {run["text"] for each in rounds for run in each}) != 1:
        raise BenchmarkError(
            f"{name}: {len(texts)} different reports came of the same answers:\n{_difference(texts)}"
        )
    stream, barrier = zip(*rounds[1:], strict=True)
    spreads = (_spread(side, key) for key in ("seconds", "first_s") for side in (stream, barrier))
    found = Compared(prepared["bound_s"], *spreads)
    print(f"stream {shown(found.stream.median)} s, barrier {shown(found.barrier.median)} s", flush=True)
    return found


def _difference(texts: Iterable[str]) -> str:
    one, other, *_ = (text.splitlines() for text in texts)
    return "\n".join(difflib.unified_diff(one, other, lineterm="", n=0))


def _run(client: Client, name: str, is_barrier: bool) -> dict[str, Any]:
    answer: dict[str, Any] = client.ask("call", "run_scenario", name, is_barrier)
    return answer


def _spread(runs: Sequence[Mapping[str, float]], key: str) -> Spread:
    return Spread(tuple(run[key] for run in runs))


def scenario_figures(found: Mapping[str, Compared]) -> dict[str, float | None]:
    """Ratios of medians. The bound counts in the worst scenario, the first word in the worse of the two reports."""
    by_barrier = {name: ratio(of.stream.median, of.barrier.median) for name, of in found.items()}
    by_bound = {name: ratio(of.stream.median, of.bound_s) for name, of in found.items()}
    first = {name: ratio(of.stream_first.median, of.barrier_first.median) for name, of in found.items()}
    return {
        **{f"{name}_stream_over_barrier": by_barrier.get(name) for name in SCENARIOS},
        "stream_over_bound": worst(by_bound.values()),
        **{f"{name}_stream_over_bound": by_bound.get(name) for name in SCENARIOS},
        "first_word_ratio": worst(first.get(name) for name in REPORTS),
        **{f"{name}_first_word_ratio": first.get(name) for name in SCENARIOS},
    }


# -- latency -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Latencies:
    """From chunk to consumer, and from `send_task` to the body of a bare task, in seconds."""

    load: Load
    chunk: Sequence[float]
    bare: Sequence[float]

    def told(self) -> dict[str, float | None]:
        """Percentiles in milliseconds."""
        return {
            f"{side}_p{percent}_ms": rounded(1e3 * percentile(values, percent))
            for side, values in (("chunk", self.chunk), ("bare", self.bare))
            for percent in (50, 99)
        }

    @property
    def p50_ratio(self) -> float | None:
        """Chunk over bare."""
        return ratio(percentile(self.chunk, 50), percentile(self.bare, 50))


def latencies(client: Client, load: Load, repeats: int) -> Latencies:
    """Both sides in turn, after a short run each that warms up."""
    print(f"latency, {load.runs} runs ...", end=" ", flush=True)
    sides: dict[str, list[float]] = {"bare_latencies": [], "chunk_latencies": []}
    for side in sides:
        client.ask("call", side, load.runs, 2, load.period_s)
    for _ in range(repeats):
        for side, values in sides.items():
            values += client.ask("call", side, load.runs, load.count, load.period_s)
    found = Latencies(load, sides["chunk_latencies"], sides["bare_latencies"])
    print(", ".join(f"{name} {shown(value)}" for name, value in found.told().items()), flush=True)
    return found


def latency_figures(found: Sequence[Latencies]) -> dict[str, float | None]:
    """The ratio in the worst load, and the percentiles of each."""
    return {
        "chunk_to_consumer_p50_over_celery": worst(of.p50_ratio for of in found),
        **{
            f"chunk_to_consumer_{name.removeprefix('chunk_')}_{of.load.runs}": value
            for of in found
            for name, value in of.told().items()
            if name.startswith("chunk_")
        },
    }


# -- cost ----------------------------------------------------------------------------------------------------------


def cost(client: Client, server: Server, items: int, period_s: float, idle: Counters) -> dict[str, Any]:
    """Commands and bytes an item, through two folds: all, less what idle workers cost, and split by MONITOR."""
    run = partial(client.ask, "call", "run_chain", items, period_s)
    run()
    rise = measured(server.client, run).less_idle(idle)
    split = monitored(server.client, DATABASE, run)
    return {
        **rise.per_node(items),
        "sent_by_clients": rounded(split["clients"] / items),
        "inside_scripts": rounded(split["scripts"] / items),
    }


def costs(client: Client, server: Server, sizes: Sizes) -> dict[str, Any]:
    """What chunks cost, at the realistic rate and at full speed."""
    print("cost ...", flush=True)
    idle = measured(server.client, lambda: time.sleep(sizes.idle_s))
    flood = client.ask("call", "flood", PRODUCERS, sizes.flood_items)
    return {
        "paced": cost(client, server, sizes.chain_items, 1 / PER_S, idle),
        "full_speed": cost(client, server, sizes.flood_items, 0.0, idle),
        "consumer": client.ask("call", "consumer_tasks", sizes.chain_items, 1 / PER_S),
        "flood": {**flood, "items": PRODUCERS * sizes.flood_items},
        "idle_commands_per_s": rounded(idle.executed / idle.at_s),
    }


def cost_figures(found: Mapping[str, Any]) -> dict[str, float | None]:
    """The cost at the realistic rate is the one that counts."""
    consumer, flood = found["consumer"], found["flood"]
    return {
        "commands_per_chunk": found["paced"]["commands"] / READ_STREAMS,
        "commands_sent_per_chunk": found["paced"]["sent_by_clients"] / READ_STREAMS,
        "commands_per_chunk_at_full_speed": found["full_speed"]["commands"] / READ_STREAMS,
        "commands_per_item_of_the_first": found["paced"]["commands"],
        "consumer_tasks_per_drain": ratio(consumer["tasks"], consumer["drains"]),
        "drains_per_task": ratio(consumer["drains"], consumer["tasks"]),
        "chunks_per_s": ratio(flood["items"], flood["seconds"]),
        "entries_per_s": ratio(flood["entries"], flood["seconds"]),
    }


# -- all -----------------------------------------------------------------------------------------------------------


class Deployment:
    """The workers that everything runs on, and the client.

    Raises:
        BenchmarkError: they do not come up.
    """

    def __init__(self, processes: Processes, server: Server) -> None:
        self._processes = processes
        self._environment = {
            "MOSAIC_REDIS_URL": server.url(DATABASE),
            "CELERY_CUSTOM_WORKER_POOL": ASYNC_POOL,
        }
        queues = "mosaic.cpu,mosaic.api.replay"
        self._workers = [
            self._worker(f"worker-{number}", queues, "threads", SLOTS) for number in range(WORKERS)
        ]
        self.client = Client(
            processes, "client", "streaming_client", environment=self._environment, workers=self._workers
        )
        self.client.ask("workers", WORKERS)

    def _worker(self, name: str, queues: str, pool: Literal["threads", "custom"], slots: int) -> Started:
        options = ["--queues", queues, "--include", "streaming_tools"]
        return start_worker(
            self._processes,
            name,
            "mosaic_tasks.app",
            environment=self._environment,
            pool=pool,
            concurrency=slots,
            options=options,
        )

    @contextmanager
    def places(self, places: Mapping[str, int]) -> Iterator[None]:
        """With a worker for each of these queues that takes so many calls at once."""
        workers = [self._worker(queue, queue, "custom", count) for queue, count in places.items()]
        self._workers += workers
        self.client.ask("workers", len(self._workers))
        yield
        self._processes.stop(workers)
        self._workers = [worker for worker in self._workers if worker not in workers]

    def stop(self) -> None:
        """Ends all, while the server is still there."""
        self._processes.stop([self.client.started, *self._workers])


def measure(report: Report, sizes: Sizes, processes: Processes, server: Server) -> None:
    """Measures everything and fills the report."""
    deployment = Deployment(processes, server)
    client = deployment.client
    scenarios = {name: compare(deployment, name, sizes) for name in SCENARIOS}
    waited = [latencies(client, load, sizes.latency_repeats) for load in sizes.loads]
    found = costs(client, server, sizes)
    print("readers ...", flush=True)
    readers = client.ask("call", "read_together", sizes.readers)
    deployment.stop()
    report.figures = {
        **scenario_figures(scenarios),
        **latency_figures(waited),
        **cost_figures(found),
        "readers_lost": readers["lost"],
    }
    report.details = {
        "scenarios": {name: of.told() for name, of in scenarios.items()},
        "latency": {of.load.runs: of.told() for of in waited},
        "cost": found,
        "readers": {"readers": sizes.readers, **readers},
        "speeds": sizes.speeds,
        "server_options": SERVER_OPTIONS,
    }


def show(report: Report) -> None:
    """Prints times and latencies, and the figures against their targets."""
    columns = ("bound_s", "stream_s", "barrier_s", "stream_first_s", "barrier_first_s")
    show_table(
        "seconds (median)",
        ("scenario", *columns),
        [
            (name, *(shown(of[column]) for column in columns))
            for name, of in report.details["scenarios"].items()
        ],
    )
    latency = report.details["latency"]
    show_table(
        "latency",
        ("runs at the same time", *next(iter(latency.values()))),
        [(str(runs), *map(shown, of.values())) for runs, of in latency.items()],
    )
    report.show(TARGETS)


if __name__ == "__main__":
    run_script(
        "streaming",
        "Streaming against barriers, and what chunks cost.",
        full=FULL,
        quick=QUICK,
        measure=measure,
        show=show,
    )
