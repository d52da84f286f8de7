"""Mixtures on the whole real path: adaptive against asking everybody, cancelling, and what a mixture costs by itself.

One server, a worker that runs the mixtures, one of few places for each simulated GPU, and one client. Experts answer
with recordings, at the pace of such GPUs. What is compared takes turns. README.md says what is measured how.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from aggregation_models import GPU
from aggregation_recordings import ANSWERS
from harness import Report, Target, percentile, ratio, rounded, show_table, shown
from mixtures_scenario import AGGREGATOR_QUEUE, CPU_QUEUE, POOL_QUEUE
from processes import SERVER_OPTIONS, BenchmarkError, Client, Processes, Server, Started, start_worker
from script import run_script
from traffic import Counters, measured, monitored

Pool = Literal["solo", "prefork", "threads", "custom"]
ASYNC_POOL = "mosaic_tasks.pool:TaskPool"
DATABASE = 0
GPU_PLACES = 8
"""Of each simulated GPU: what its engine takes at once."""
CPU_SLOTS = 64
SIDES = ("adaptive", "full")
ASYNC: tuple[Pool, int] = ("custom", 16)
OTHER_POOLS: Mapping[str, tuple[Pool, int]] = {
    "prefork": ("prefork", 4),
    "threads": ("threads", 16),
    "solo": ("solo", 1),
}
"""In which agents may run too, with their slots."""

TARGETS = (
    Target("latency_ratio", 0.5),
    Target("latency_ratio_mean", 0.5),
    Target("cancel_ms_p99", 100.0),
    *(Target(f"cancel_ms_p99_{name}", 100.0) for name in OTHER_POOLS),
)


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        made: questions to be made up where there are no recordings; 0: they must be there.
        speed: of the recordings and their engines, in multiples of real time.
        slice: the sides take turns after so many questions.
        in_flight: questions at the same time.
        cuts: mixtures in each pool.
    """

    made: int
    speed: float
    questions: int
    slice: int
    in_flight: int
    cuts: int
    repeats: int
    idle_s: float


FULL = Sizes(made=0, speed=2.0, questions=100, slice=20, in_flight=4, cuts=40, repeats=60, idle_s=5.0)
QUICK = Sizes(made=60, speed=8.0, questions=12, slice=6, in_flight=4, cuts=6, repeats=5, idle_s=1.0)


class Deployment:
    """The workers that everything runs on, and the client.

    Raises:
        BenchmarkError: they do not come up.
    """

    def __init__(self, processes: Processes, server: Server, sizes: Sizes) -> None:
        self._processes = processes
        self._environment = {
            "MOSAIC_REDIS_URL": server.url(DATABASE),
            "CELERY_CUSTOM_WORKER_POOL": ASYNC_POOL,
            "MOSAIC_REPLAY_SPEED": str(sizes.speed),
        }
        self._workers: list[Started] = []
        self.client = Client(
            processes, "client", "mixtures_client", environment=self._environment, workers=self._workers
        )
        self.prepared = self.client.ask("call", "prepare", sizes.made, sizes.questions)
        self._start("cpu", CPU_QUEUE, "custom", CPU_SLOTS)
        for queue in self.prepared["places"]:
            self._start(f"gpu-{queue}", queue, "custom", GPU_PLACES)
        self._await()

    def _start(self, name: str, queue: str, pool: Pool, slots: int) -> None:
        worker = start_worker(
            self._processes,
            name,
            "mosaic_tasks.app",
            environment=self._environment,
            pool=pool,
            concurrency=slots,
            options=["--queues", queue, "--include", "mixtures_tools"],
        )
        self._workers.append(worker)

    def _await(self) -> None:
        self.client.ask("workers", len(self._workers))

    @contextmanager
    def pool(self, name: str) -> Iterator[None]:
        """With one more worker, of this pool."""
        self._start(f"pool-{name}", POOL_QUEUE, *({"": ASYNC} | OTHER_POOLS)[name])
        self._await()
        yield
        self._processes.stop([self._workers.pop()])

    def stop(self) -> None:
        """Ends all, while the server is still there."""
        self._processes.stop([self.client.started, *self._workers])


# -- adaptive against full -----------------------------------------------------------------------------------------


def compare(client: Client, sizes: Sizes) -> dict[str, list[dict[str, Any]]]:
    """What each question came to on either side, which take turns, after one that warms up."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for side in SIDES:
        client.ask("call", "ask", side, 0, 1, 1)
    for first in range(0, sizes.questions, sizes.slice):
        for side in SIDES if first // sizes.slice % 2 == 0 else SIDES[::-1]:
            print(f"{side} {first} ...", end=" ", flush=True)
            found[side] += client.ask("call", "ask", side, first, sizes.slice, sizes.in_flight)
    print(flush=True)
    return found


def summary(answered: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """One side's means and percentiles."""

    def mean(name: str) -> float:
        return statistics.fmean(float(one[name]) for one in answered)

    seconds = [one["seconds"] for one in answered]
    return {
        "latency_p50_s": percentile(seconds, 50),
        "latency_p99_s": percentile(seconds, 99),
        "latency_mean_s": mean("seconds"),
        "right_percent": 100 * mean("right"),
        "experts": mean("experts"),
        "aggregated": mean("aggregated"),
        "expert_tokens": mean("expert_tokens"),
        "aggregator_tokens": mean("aggregator_tokens"),
        "cut": mean("cut"),
    }


def compared_figures(found: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """Adaptive beside full; the ratio of means of latency is what a queue of questions sees."""
    ours, theirs = found["adaptive"], found["full"]
    return {
        "latency_ratio": ratio(ours["latency_p50_s"], theirs["latency_p50_s"]),
        "latency_ratio_p99": ratio(ours["latency_p99_s"], theirs["latency_p99_s"]),
        "latency_ratio_mean": ratio(ours["latency_mean_s"], theirs["latency_mean_s"]),
        "expert_tokens_share": ratio(ours["expert_tokens"], theirs["expert_tokens"]),
        "aggregator_share": ratio(ours["aggregated"], theirs["aggregated"]),
        "accuracy_delta_points": ours["right_percent"] - theirs["right_percent"],
    }


# -- cancelling ----------------------------------------------------------------------------------------------------


def cuts(deployment: Deployment, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Experts that are cut off while they write, in each pool; without a name: in that of GPU workers."""
    found = {}
    for name in ("", *OTHER_POOLS):
        print(f"cut {name} ...", end=" ", flush=True)
        with deployment.pool(name):
            deployment.client.ask("call", "cut", 1, 1)
            found[name] = deployment.client.ask("call", "cut", sizes.cuts, 2)
    print(flush=True)
    return found


def cancel_figures(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """From the cut to the end of the engine's stream; None where nobody wrote at that time."""
    figures: dict[str, float | None] = {}
    for name, of in found.items():
        took, end = of["cancel_ms"], f"_{name}" if name else ""
        for percent in (50, 99):
            figures[f"cancel_ms_p{percent}{end}"] = percentile(took, percent) if took else None
        figures[f"cut_while_writing{end}"] = len(took)
        figures[f"cut{end}"] = of["cut"]
    return figures


# -- what a mixture costs ------------------------------------------------------------------------------------------


def costs(client: Client, server: Server, sizes: Sizes) -> dict[str, Any]:
    """A mixture of three experts that answer at once, and the same graph made by hand, in turn."""
    print("cost ...", flush=True)
    sides = ("instant", "by_hand")
    for side in sides:
        client.ask("call", "repeat", side, 3)
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(sizes.repeats):
        for side in sides:
            seconds[side] += client.ask("call", "repeat", side, 1)
    idle = measured(server.client, lambda: time.sleep(sizes.idle_s))
    return {side: _cost(client, server, sizes, side, idle) | {"seconds": seconds[side]} for side in sides}


def _cost(client: Client, server: Server, sizes: Sizes, side: str, idle: Counters) -> dict[str, Any]:
    run = partial(client.ask, "call", "repeat", side, sizes.repeats)
    rise = measured(server.client, run).less_idle(idle)
    split = monitored(server.client, DATABASE, run)
    return {**rise.per_node(sizes.repeats), "sent_by_clients": rounded(split["clients"] / sizes.repeats)}


def cost_figures(found: Mapping[str, Any]) -> dict[str, float | None]:
    """Medians, and their difference."""
    ours, theirs = (1e3 * statistics.median(found[side]["seconds"]) for side in ("instant", "by_hand"))
    return {
        "mixture_ms": ours,
        "by_hand_ms": theirs,
        "mixture_overhead_ms": ours - theirs,
        "commands_per_mixture": found["instant"]["commands"],
        "commands_by_hand": found["by_hand"]["commands"],
        "commands_sent_per_mixture": found["instant"]["sent_by_clients"],
        "commands_sent_by_hand": found["by_hand"]["sent_by_clients"],
    }


# -- all -----------------------------------------------------------------------------------------------------------


def measure(report: Report, sizes: Sizes, processes: Processes, server: Server) -> None:
    """Measures everything and fills the report.

    Raises:
        BenchmarkError: there are no answers to be repeated.
    """
    if not (sizes.made or ANSWERS.exists()):
        raise BenchmarkError(
            f"there are no recorded answers in {ANSWERS}; ANSWERS=FILE names others, and QUICK=1 makes some up"
        )
    deployment = Deployment(processes, server, sizes)
    answered = compare(deployment.client, sizes)
    sides = {side: summary(answered[side]) for side in SIDES}
    found = costs(deployment.client, server, sizes)
    cancelled = cuts(deployment, sizes)
    for one in answered["adaptive"]:
        cancelled[""]["cut"] += one["cut"]
        cancelled[""]["cancel_ms"] += one["cancel_ms"]
    deployment.stop()
    report.figures = {
        **compared_figures(sides),
        **{f"{name}_{side}": value for side in SIDES for name, value in sides[side].items()},
        **cancel_figures(cancelled),
        **cost_figures(found),
    }
    report.details = {
        **deployment.prepared,
        "gpu": GPU,
        "gpu_places": GPU_PLACES,
        "aggregator_queue": AGGREGATOR_QUEUE,
        "speed": sizes.speed,
        "in_flight": sizes.in_flight,
        "cancel_ms": {name or "async": sorted(of["cancel_ms"]) for name, of in cancelled.items()},
        "cost": found,
        "server_options": SERVER_OPTIONS,
    }


def show(report: Report) -> None:
    """Prints both sides, and the figures against their targets."""
    names = [name.removesuffix("_full") for name in report.figures if name.endswith("_full")]
    rows = [(name, *(shown(report.figures[f"{name}_{side}"]) for side in SIDES)) for name in names]
    told = report.details
    title = f"{told['questions']} questions, {told['speed']:g} x pace"
    show_table(title, ("", *SIDES), rows)
    report.show(TARGETS)


if __name__ == "__main__":
    run_script(
        "mixtures",
        "Mixtures on the whole real path.",
        full=FULL,
        quick=QUICK,
        measure=measure,
        show=show,
    )
