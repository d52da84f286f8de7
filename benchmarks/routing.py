"""What the router does to a real deployment whose GPUs are simulated: real server, real workers, calls of real traces.

Each policy gets the same calls at the same times, the one after the other, through the production path: a process
submits runs, its router places each call in the queue of one worker, the worker asks the simulated GPU that it hosts.
README.md says what is measured how.
"""

from __future__ import annotations

import json
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from harness import Report, Target, percentile, ratio, rounded, show_table, shown
from processes import BenchmarkError, Client, Processes, Server
from routing_fleet import PREFILL, Fleet, Machine, Model, machines, prompt, stretch, write_answers
from routing_simulation import decision_us
from routing_traces import TRACES, Call, azure, conversations, mooncake, scaled
from script import run_script

PLAIN = "round-robin"
"""The policy of workers that leave a call where it was sent; with `adaptive` they take what waits elsewhere."""
BUSY = 0.7
"""A process that is busier than this much of its time makes times that are not the fleet's."""
LATE_MS = 250.0
"""Where the submitter is later, the machine does something else meanwhile."""
TARGETS = (
    Target("p99_over_least_outstanding", most=0.6),
    Target("p99_over_round_robin", most=0.4),
    Target("prefill_tokens_ratio", most=0.55),
    Target("max_over_mean_load", most=1.25),
    Target("decision_us_p50", most=100.0),
    Target("dispatch_over_call", most=0.01),
    Target("worker_cpu_most", most=BUSY),
    Target("client_cpu_most", most=BUSY),
    Target("late_p99_ms_most", most=LATE_MS),
)


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        learn: calls before those that are reported; lengths are learned of them, and caches filled.
        calls: of a trace, that are reported.
        one_of: of the conversations of the trace with prefixes.
        speeds: of the machines.
        policies: of each scenario, by its name.
    """

    learn: int
    calls: int
    one_of: int
    speeds: Sequence[float]
    model_calls: int
    policies: Mapping[str, Sequence[str]]


ONE_MODEL = (
    "round-robin",
    "least-outstanding",
    "two-choices",
    "backlog",
    "speed",
    "adaptive",
)
FULL = Sizes(
    learn=300,
    calls=1_400,
    one_of=5,
    speeds=(4.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0),
    model_calls=240,
    policies={
        "speeds": ONE_MODEL,
        "binding": ("adaptive",),
        "prefixes": ("speed", "affinity", "adaptive"),
        "models": ("least-outstanding", "price", "quality", "adaptive"),
    },
)
QUICK = Sizes(
    learn=20,
    calls=60,
    one_of=40,
    speeds=(4.0, 2.0, 1.0),
    model_calls=0,
    policies={"speeds": ("least-outstanding",), "binding": ("adaptive",)},
)


@dataclass(frozen=True)
class Scenario:
    """A fleet, and what is asked of it.

    Attributes:
        worker_policy: see `Fleet.policy`.
        agent: how calls name what they need.
        within_s: the time within which a call shall be answered.
        learn: so many calls come before those that are reported.
    """

    name: str
    title: str
    fleet: Sequence[Machine]
    models: Sequence[Model]
    calls: Sequence[Call]
    agent: Mapping[str, Any]
    load: float
    learn: int
    worker_policy: str = PLAIN
    objectives: Sequence[str] = ("latency",)

    @property
    def stretch(self) -> float:
        """See `stretch`."""
        return stretch(self.fleet, self.calls, load=self.load)

    @property
    def within_s(self) -> float:
        """Twice what a call of mean length takes on the middle one of the machines, where nothing else runs."""
        speed = statistics.median(machine.decode_tokens_s for machine in self.fleet)
        work = statistics.mean(call.output_tokens + call.input_tokens / PREFILL for call in self.calls)
        return 2 * work / speed


@dataclass(frozen=True)
class Outcome:
    """What one policy did."""

    latencies_s: Sequence[float]
    within: float
    dollars: float
    cached: float
    read_tokens: float
    max_over_mean: float
    quality: float
    told: Mapping[str, Any]

    @property
    def p50(self) -> float:
        """Of the times from when calls were due to their answers."""
        return statistics.median(self.latencies_s)

    @property
    def p99(self) -> float:
        """The same."""
        return percentile(self.latencies_s, 99)


@dataclass
class Playing:
    """Plays scenarios, a fleet at a time."""

    processes: Processes
    server: Server
    answers: Path
    sizes: Sizes
    _fleets: int = 0
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)

    def play(self, scenario: Scenario) -> None:
        """All policies of a scenario."""
        self._fleets += 1
        fleet = Fleet(
            self.processes,
            self.server,
            name=scenario.name,
            database=self._fleets,
            machines=scenario.fleet,
            models=scenario.models,
            policy=scenario.worker_policy,
        )
        fleet.start(self.answers)
        found: dict[str, Outcome] = {}
        for policy in self.sizes.policies[scenario.name]:
            for objective in scenario.objectives if policy == "adaptive" else ("latency",):
                label = policy if objective == "latency" else f"{policy}, {objective}"
                found[label] = self._turn(scenario, fleet, policy, objective)
                print(f"{scenario.name}: {label}: p99 {shown(found[label].p99)} s", flush=True)
        fleet.stop()
        self.outcomes[scenario.name] = found

    def _turn(self, scenario: Scenario, fleet: Fleet, policy: str, objective: str) -> Outcome:
        name = f"{scenario.name}-{policy}-{objective}"
        client = Client(
            self.processes,
            f"client-{name}",
            "routing_client",
            environment=fleet.environment(policy),
            workers=fleet.workers,
        )
        client.ask("workers", len(fleet.machines))
        path, before_s = self._write(scenario, name), fleet.cpu_s()
        told = client.ask("call", "play", str(path), name, dict(scenario.agent), objective)
        spent_s = [after - before for after, before in zip(fleet.cpu_s(), before_s, strict=True)]
        self.processes.stop([client.started])
        busy = {"worker_cpu": max(spent_s) / told["seconds"], "workers_cpu": sum(spent_s) / told["seconds"]}
        return outcome(scenario, told | busy)

    def _write(self, scenario: Scenario, name: str) -> Path:
        """The calls of one turn, in whose prompts nothing is as in those of another."""
        salt = f"{crc32(name.encode()):08x}"
        calls = scaled(scenario.calls, scenario.stretch)
        path = self.processes.directory / f"{name}.json"
        lines = [(call.at_s, prompt(number, call, salt=salt)) for number, call in enumerate(calls)]
        path.write_text(json.dumps(lines))
        return path


def outcome(scenario: Scenario, told: Mapping[str, Any]) -> Outcome:
    """What the calls tell, without those that came first."""
    calls = told["calls"][scenario.learn :]
    latencies = [call["latency_s"] for call in calls]
    read = sum(call["input_tokens"] - call["cached_tokens"] for call in calls)
    loads = loads_of(scenario.fleet, calls)
    model = {machine.name: machine.model for machine in scenario.fleet}
    quality = {model.name: model.quality for model in scenario.models}
    return Outcome(
        latencies_s=latencies,
        within=sum(one <= scenario.within_s for one in latencies) / len(latencies),
        dollars=sum(call["cost_usd"] for call in calls),
        cached=1 - read / sum(call["input_tokens"] for call in calls),
        read_tokens=read,
        max_over_mean=max(loads) / statistics.mean(loads),
        quality=statistics.mean(quality[model[call["machine"]]] for call in calls),
        told={key: value for key, value in told.items() if key != "calls"},
    )


def loads_of(fleet: Sequence[Machine], calls: Sequence[Mapping[str, Any]]) -> list[float]:
    """Work that each machine did, for what it can do in a second."""
    work: dict[str, float] = defaultdict(float)
    for call in calls:
        unread = call["input_tokens"] - call["cached_tokens"]
        work[call["machine"]] += call["output_tokens"] + unread / PREFILL
    return [work[machine.name] / machine.capacity_tokens_s for machine in fleet]


# -- scenarios -----------------------------------------------------------------------------------------------------


EQUAL = (2.0,) * 7
CHAT = Model("chat", quality=0.9, dollars=0.2)
LARGE, SMALL = Model("large", quality=0.93, dollars=0.6), Model("small", quality=0.85, dollars=0.1)


def scenarios(sizes: Sizes) -> list[Scenario]:
    """Those of which a policy is asked for."""
    if TRACES.exists():
        told, talk = "Azure conversation", window(azure(), sizes.learn, sizes.calls)
    else:
        told, talk = "made-up calls", made(sizes.learn + sizes.calls)
    speeds = Scenario(
        name="speeds",
        title=f"speeds 4:2:1, {told}; calls stay where they were sent",
        fleet=machines(sizes.speeds, ["chat"] * len(sizes.speeds)),
        models=(CHAT,),
        calls=talk,
        agent={"model": "pool:chat"},
        load=0.8,
        learn=sizes.learn,
    )
    binding = replace(
        speeds,
        name="binding",
        title="the same, and idle workers take calls that wait elsewhere",
        worker_policy="adaptive",
    )
    models = replace(
        speeds,
        name="models",
        title="unlike models: large on the three fast ones, small on the four slow ones",
        fleet=machines(sizes.speeds, ["large" if speed > 1 else "small" for speed in sizes.speeds]),
        models=(LARGE, SMALL),
        calls=talk[: sizes.model_calls],
        agent={"requires": {"capability": "answers"}},
        load=0.4,
        learn=sizes.model_calls // 4,
        objectives=("latency", "throughput", "cost"),
    )
    return [one for one in (speeds, binding, prefixes(speeds, sizes), models) if one.name in sizes.policies]


def prefixes(like: Scenario, sizes: Sizes) -> Scenario:
    """Prompts that share their beginnings."""
    calls = conversations(mooncake(), one_of=sizes.one_of) if TRACES.exists() else []
    return replace(
        like,
        name="prefixes",
        title=f"{len(EQUAL)} equal machines, Mooncake with prefixes",
        fleet=machines(EQUAL, ["chat"] * len(EQUAL)),
        calls=calls,
        learn=0,
        worker_policy="adaptive",
    )


def window(calls: Sequence[Call], learn: int, reported: int) -> list[Call]:
    """So many before the middle of a trace, and so many from there on."""
    middle = len(calls) // 2
    found = calls[middle - learn : middle + reported]
    return [replace(call, at_s=call.at_s - found[0].at_s) for call in found]


def made(count: int) -> list[Call]:
    """Calls that nobody ever made, where the traces are not here."""
    chance, at_s, calls = random.Random(1), 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(5.0)
        calls.append(
            Call(at_s, chance.randint(100, 3_000), min(300, int(chance.lognormvariate(5.0, 0.8)) + 1))
        )
    return calls


# -- all -----------------------------------------------------------------------------------------------------------


def figures(found: Mapping[str, Mapping[str, Outcome]], took_us: Sequence[float]) -> dict[str, float | None]:
    """Those that the targets are of, and what tells whether they can be trusted."""
    speeds, shared = found.get("speeds", {}), found.get("prefixes", {})
    ours, known = found["binding"]["adaptive"], shared.get("adaptive")
    played = [one for outcomes in found.values() for one in outcomes.values()]

    def p99(policy: str) -> float | None:
        return speeds[policy].p99 if policy in speeds else None

    return {
        "p99_over_least_outstanding": ratio(ours.p99, p99("least-outstanding")),
        "p99_over_round_robin": ratio(ours.p99, p99("round-robin")),
        "p99_over_least_outstanding_without_binding": ratio(p99("adaptive"), p99("least-outstanding")),
        "prefill_tokens_ratio": ratio(known.read_tokens, shared["speed"].read_tokens) if known else None,
        "max_over_mean_load": known.max_over_mean if known else None,
        "decision_us_p50": statistics.median(took_us),
        "decision_us_p50_in_place": ours.told["decision_us_p50"],
        "dispatch_over_call": ours.told["dispatch_us_p50"] / 1e6 / ours.p50,
        "dispatch_ms_p50": ours.told["dispatch_us_p50"] / 1e3,
        "worker_cpu_most": max(one.told["worker_cpu"] for one in played),
        "client_cpu_most": max(one.told["cpu"] for one in played),
        "late_p99_ms_most": 1e3 * max(one.told["late_p99_s"] for one in played),
    }


def measure(report: Report, sizes: Sizes, processes: Processes, server: Server) -> None:
    """Plays every scenario and fills the report."""
    if not TRACES.exists():
        print(
            f"no traces at {TRACES}: made-up calls take their place, whose figures tell nothing", flush=True
        )
    if not TRACES.exists() and not report.quick:
        raise BenchmarkError(f"the full sizes need the traces; TRACES names their folder, now {TRACES}")
    all_ = scenarios(sizes)
    answers = processes.directory / "answers.jsonl"
    write_answers(answers, [call for scenario in all_ for call in scenario.calls])
    playing = Playing(processes, server, answers, sizes)
    for scenario in all_:
        playing.play(scenario)
    report.figures = figures(playing.outcomes, decision_us())
    report.details = {
        "simulated": True,
        "scenarios": {one.name: told_of(one, playing.outcomes[one.name]) for one in all_},
    }


def told_of(scenario: Scenario, found: Mapping[str, Outcome]) -> dict[str, Any]:
    """For the details."""
    base = next(iter(found.values()))
    return {
        "title": scenario.title,
        "calls": len(scenario.calls) - scenario.learn,
        "load": scenario.load,
        "calls_s": rounded(len(scenario.calls) / (scenario.calls[-1].at_s * scenario.stretch)),
        "capacity_calls_s": rounded(sum(one.calls_s(scenario.calls) for one in scenario.fleet)),
        "stretch": rounded(scenario.stretch),
        "within_s": rounded(scenario.within_s),
        "policies": {
            name: {
                "p50_s": rounded(one.p50),
                "p99_s": rounded(one.p99),
                "within": rounded(one.within),
                "dollars_per_1000": rounded(1e3 * one.dollars / len(one.latencies_s)),
                "cache_hits": rounded(one.cached),
                "read_ratio": rounded(one.read_tokens / base.read_tokens),
                "max_over_mean": rounded(one.max_over_mean),
                "quality": rounded(one.quality),
                **{key: rounded(value) for key, value in one.told.items()},
            }
            for name, one in found.items()
        },
    }


COLUMNS: Mapping[str, str] = {
    "p50 s": "p50_s",
    "p99 s": "p99_s",
    "within": "within",
    "$/1000": "dollars_per_1000",
    "hits": "cache_hits",
    "read": "read_ratio",
    "max/mean": "max_over_mean",
    "quality": "quality",
    "workers": "workers_cpu",
}


def show(report: Report) -> None:
    """Prints each scenario, and the figures against their targets."""
    for told in report.details["scenarios"].values():
        title = (
            f"simulated GPUs: {told['title']}\n{told['calls']} calls, {told['calls_s']} a second, "
            f"{told['load']:.0%} of what the fleet can do ({told['capacity_calls_s']}); in time: {told['within_s']} s"
        )
        rows = [
            (name, *(shown(of[key]) for key in COLUMNS.values())) for name, of in told["policies"].items()
        ]
        show_table(title, ("policy", *COLUMNS), rows)
    report.show(TARGETS)


if __name__ == "__main__":
    run_script(
        "routing",
        "Routing policies over a deployment whose GPUs are simulated.",
        full=FULL,
        quick=QUICK,
        measure=measure,
        show=show,
    )
