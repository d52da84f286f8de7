"""What mosaic-tasks costs beside the work itself, against canvases written by hand with plain Celery.

One run, one server, bodies that do nothing. Three sides, each with two solo workers, a client process and a database
of its own: `stock` (plain Celery and its Redis backend), `ours`, and `plain` (ours, continuation and batching off).
The sides take turns at every repetition, so that a disturbance of the machine meets all of them. README.md beside
this file says what is measured how.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from harness import Report, Spread, Target, ratio, rounded, show_table, shown, worst
from processes import (
    SERVER_OPTIONS,
    BenchmarkError,
    Client,
    Processes,
    Server,
    start_worker,
)
from redis import Redis
from script import run_script
from traffic import Counters, measured, monitored

SideName = Literal["stock", "ours", "plain"]
SIDES: tuple[SideName, ...] = ("stock", "ours", "plain")
WORKERS = 2
PLAIN = {"MOSAIC_CONTINUATION_CALLS": "0", "MOSAIC_BATCH_CALLS": "1"}
BRIEF = {"MOSAIC_RETENTION_S": "1", "MOSAIC_MAX_RUN_S": "6"}
"""Settings under which everything of a run is to be gone within seconds."""
BRIEF_S = 1.0 + 6.0
BRIEF_MARGIN_S = 5.0
BRIEF_DATABASE = len(SIDES)
BROKER_KEYS = b"_kombu."
"""Kombu's lists of queues, a few keys in all, which it never deletes."""

TARGETS = (
    Target("layers_time_ratio", 0.4),
    Target("chord1000_time_ratio", 0.3),
    Target("chord5000_time_ratio", 0.3),
    Target("chain_time_ratio", 0.5),
    Target("worst_plain_ratio", 1.0),
    Target("commands_per_node", 8.0),
    Target("bytes_per_node", 2048.0),
    Target("growth_10000_over_100", 1.2),
    Target("keys_left", 0.0),
)


@dataclass(frozen=True)
class Shape:
    """A piece of work, and how often it is repeated."""

    kind: Literal["chain", "chord", "layers", "dag"]
    size: int
    repeats: int

    @property
    def name(self) -> str:
        """As in the figures: `chain`, `chord1000`, `layers`, `dag10000`."""
        return self.kind if self.kind in ("chain", "layers") else f"{self.kind}{self.size}"

    @property
    def nodes(self) -> int:
        """What costs are divided by; the join of a chord or a layer counts for nothing."""
        return self.size * self.size if self.kind == "layers" else self.size

    @property
    def result(self) -> int | None:
        """What it must come to; None where that depends on chance."""
        return None if self.kind == "dag" else self.size


@dataclass(frozen=True)
class Sizes:
    """What is measured: `compared` on all sides, `growing` on ours, `traffic_runs` runs for each count."""

    compared: tuple[Shape, ...]
    growing: tuple[Shape, ...]
    traffic: tuple[str, ...]
    traffic_runs: int
    idle_s: float


FULL = Sizes(
    compared=(
        Shape("chain", 100, 9),
        Shape("chord", 10, 9),
        Shape("chord", 100, 9),
        Shape("chord", 1000, 5),
        Shape("chord", 5000, 3),
        Shape("layers", 10, 9),
    ),
    growing=(Shape("dag", 100, 15), Shape("dag", 1000, 9), Shape("dag", 10_000, 5)),
    traffic=("chain", "layers", "chord1000"),
    traffic_runs=3,
    idle_s=5.0,
)
QUICK = Sizes(
    compared=(Shape("chain", 20, 3), Shape("chord", 10, 3), Shape("chord", 100, 3), Shape("layers", 4, 3)),
    growing=(Shape("dag", 100, 3), Shape("dag", 500, 3)),
    traffic=("chain", "layers", "chord100"),
    traffic_runs=3,
    idle_s=4.0,
)


class Side:
    """The workers and the client of one side."""

    def __init__(
        self,
        processes: Processes,
        server: Server,
        name: str,
        *,
        module: Literal["stock_app", "ours"],
        database: int,
        settings: Mapping[str, str],
    ) -> None:
        self.name, self.database = name, database
        app = "stock_app" if module == "stock_app" else "mosaic_tasks.app"
        url = server.url(database)
        environment = {"BENCH_URL": url, "MOSAIC_REDIS_URL": url, **settings}
        self._processes = processes
        self._workers = [
            start_worker(processes, f"{name}-{number}", app, environment=environment)
            for number in range(WORKERS)
        ]
        self._client = Client(
            processes, f"{name}-client", module, environment=environment, workers=self._workers
        )

    def run(self, shape: Shape) -> dict[str, Any]:
        """Runs a shape once: `seconds`, `define_s`, `result`.

        Raises:
            BenchmarkError: the result is wrong.
        """
        answer: dict[str, Any] = self._client.ask("run", shape.kind, shape.size)
        if shape.result is not None and answer["result"] != shape.result:
            raise BenchmarkError(
                f"side {self.name!r}, {shape.name}: the result is {answer['result']!r}, not {shape.result!r}"
            )
        return answer

    def wait(self) -> None:
        """Waits for all workers."""
        self._client.ask("workers", WORKERS)

    def stop(self) -> None:
        """Ends workers and client."""
        self._processes.stop([self._client.started, *self._workers])


@contextmanager
def three_sides(processes: Processes, server: Server) -> Iterator[dict[SideName, Side]]:
    """All sides, up and running."""
    settings: dict[SideName, Mapping[str, str]] = {"stock": {}, "ours": {}, "plain": PLAIN}
    sides = {
        name: Side(
            processes,
            server,
            name,
            module="stock_app" if name == "stock" else "ours",
            database=number,
            settings=settings[name],
        )
        for number, name in enumerate(SIDES)
    }
    for side in sides.values():
        side.wait()
    yield sides
    for side in sides.values():
        side.stop()


@dataclass(frozen=True)
class Times:
    """How long a shape took on one side: the first time, and the repetitions after it."""

    shape: Shape
    first_s: float
    define_s: float
    spread: Spread

    @property
    def node_ms(self) -> float:
        """What figures are made of: the median, in milliseconds a node."""
        return 1e3 * self.spread.median / self.shape.nodes

    def told(self) -> dict[str, Any]:
        """In milliseconds a node."""
        per_node = 1e3 / self.shape.nodes
        return {
            **self.spread.per(self.shape.nodes),
            "first_ms": rounded(per_node * self.first_s),
            "define_ms": rounded(per_node * self.define_s),
        }


def in_turn(jobs: Mapping[str, tuple[Side, Shape]]) -> dict[str, Times]:
    """Runs all jobs in turn, each as often as its shape is to be repeated, after one run each that warms up."""
    first = {name: side.run(shape) for name, (side, shape) in jobs.items()}
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for repetition in range(max(shape.repeats for _, shape in jobs.values())):
        for name, (side, shape) in jobs.items():
            if repetition < shape.repeats:
                taken[name].append(side.run(shape)["seconds"])
    return {
        name: Times(shape, first[name]["seconds"], first[name]["define_s"], Spread(tuple(taken[name])))
        for name, (_, shape) in jobs.items()
    }


def compare(sides: Mapping[SideName, Side], shapes: Sequence[Shape]) -> dict[str, dict[str, Times]]:
    """Each shape on all sides; says what is going on, since a full run takes minutes."""
    found = {}
    for shape in shapes:
        print(f"{shape.name} ...", end=" ", flush=True)
        times = found[shape.name] = in_turn({name: (side, shape) for name, side in sides.items()})
        told = (f"{side} {shown(1e3 * of.spread.median)} ms" for side, of in times.items())
        print(", ".join(told), flush=True)
    return found


def traffic_of(side: Side, server: Server, shape: Shape, idle: Counters, runs: int) -> dict[str, Any]:
    """Commands and bytes a node: from the counters, less what idle workers cost, and split by MONITOR."""

    def work() -> None:
        for _ in range(runs):
            side.run(shape)

    rise = measured(server.client, work).less_idle(idle)
    split = monitored(server.client, side.database, lambda: side.run(shape))
    return {
        **rise.per_node(runs * shape.nodes),
        "commands_sent_by_clients": rounded(split["clients"] / shape.nodes),
        "commands_inside_scripts": rounded(split["scripts"] / shape.nodes),
    }


def keys_left(processes: Processes, server: Server, shapes: Sequence[Shape]) -> dict[str, Any]:
    """Runs shapes under a short retention, stops the workers, and waits until no key is left or time is over."""
    side = Side(processes, server, "brief", module="ours", database=BRIEF_DATABASE, settings=BRIEF)
    side.wait()
    for shape in shapes:
        side.run(shape)
    with server.database(BRIEF_DATABASE) as client:
        ended, right_after = time.monotonic(), len(_keys(client))
        side.stop()
        while (left := _keys(client)) and time.monotonic() < ended + BRIEF_S + BRIEF_MARGIN_S:
            time.sleep(0.1)
        return {
            "right_after": right_after,
            "left": sorted(key.decode() for key in left),
            "gone_after_s": round(time.monotonic() - ended, 1),
        }


def _keys(client: Redis) -> list[bytes]:
    """All keys but the broker's own lists, and the sums of what was counted, which expire long after."""
    kept = (BROKER_KEYS, b"mosaic:{tallies}")
    return [key for key in client.scan_iter(count=1000) if not key.startswith(kept)]


def time_figures(times: Mapping[str, Mapping[str, Times]]) -> dict[str, float | None]:
    """Time ratios by shape, ours and plain against stock; None for a shape that was not measured."""
    names = ("layers", "chord1000", "chord5000", "chain", "chord10", "chord100")
    ours, plain = (
        {name: ratio(of[side].node_ms, of["stock"].node_ms) for name, of in times.items()}
        for side in ("ours", "plain")
    )
    return {
        **{f"{name}_time_ratio": ours.get(name) for name in names},
        "worst_plain_ratio": worst(plain.values()),
        **{f"plain_{name}_time_ratio": plain.get(name) for name in names},
    }


def traffic_figures(traffic: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """The worst shape's commands and bytes a node."""
    return {
        "commands_per_node": worst(of["commands"] for of in traffic.values()),
        "bytes_per_node": worst(of["bytes_in"] for of in traffic.values()),
        "commands_sent_per_node": worst(of["commands_sent_by_clients"] for of in traffic.values()),
        "commands_inside_scripts_per_node": worst(of["commands_inside_scripts"] for of in traffic.values()),
    }


def growth_figures(grown: Sequence[Times]) -> dict[str, float | None]:
    """Cost of a node in the largest graph over that in the smallest, and each in milliseconds."""
    costs = {times.shape.size: times.node_ms for times in grown}
    sizes = sorted({100, 1000, 10_000} | costs.keys())
    return {
        "growth_10000_over_100": ratio(costs.get(10_000), costs.get(100)),
        f"growth_{max(costs)}_over_100": ratio(costs[max(costs)], costs.get(100)),
        **{f"dag{size}_ms_per_node": costs.get(size) for size in sizes},
    }


def measure(report: Report, sizes: Sizes, processes: Processes, server: Server) -> None:
    """Measures everything and fills the report."""
    by_name = {shape.name: shape for shape in sizes.compared}
    with three_sides(processes, server) as sides:
        idle = measured(server.client, lambda: time.sleep(sizes.idle_s))
        times = compare(sides, sizes.compared)
        grown = in_turn({shape.name: (sides["ours"], shape) for shape in sizes.growing})
        traffic = {
            name: {
                shape: traffic_of(side, server, by_name[shape], idle, sizes.traffic_runs)
                for shape in sizes.traffic
            }
            for name, side in sides.items()
        }
    keys = keys_left(processes, server, [shape for shape in sizes.compared if shape.size <= 100])
    report.figures = {
        **time_figures(times),
        **traffic_figures(traffic["ours"]),
        **growth_figures(list(grown.values())),
        "keys_left": len(keys["left"]),
    }
    report.details = {
        "ms_per_node": {name: {side: t.told() for side, t in of.items()} for name, of in times.items()},
        "growth": {name: of.told() for name, of in grown.items()},
        "traffic_per_node": traffic,
        "idle_commands_per_s": rounded(idle.executed / idle.at_s),
        "keys": keys,
        "server_options": SERVER_OPTIONS,
    }


def show(report: Report) -> None:
    """Prints costs a node, traffic, and the figures against their targets."""
    show_table(
        "ms a node (median)",
        ("shape", *SIDES, "ours / stock", "plain / stock"),
        [_time_row(name, of) for name, of in report.details["ms_per_node"].items()],
    )
    show_table(
        "traffic a node",
        ("side, shape", "commands", "sent by clients", "inside scripts", "bytes in", "bytes out"),
        [
            (f"{side}, {shape}", *(shown(of[column]) for column in _TRAFFIC_COLUMNS))
            for side, shapes in report.details["traffic_per_node"].items()
            for shape, of in shapes.items()
        ],
    )
    report.show(TARGETS)


_TRAFFIC_COLUMNS = (
    "commands",
    "commands_sent_by_clients",
    "commands_inside_scripts",
    "bytes_in",
    "bytes_out",
)


def _time_row(name: str, of: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    medians = [of[side]["median_ms"] for side in SIDES]
    ratios = [ratio(median, medians[0]) for median in medians[1:]]
    return (name, *map(shown, (*medians, *ratios)))


if __name__ == "__main__":
    run_script(
        "overhead",
        "Overhead of mosaic-tasks against plain Celery.",
        full=FULL,
        quick=QUICK,
        measure=measure,
        show=show,
    )
