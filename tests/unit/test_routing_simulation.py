"""The policies over simulated machines, on a virtual clock: what the benchmark measures, with made-up calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def simulation(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("routing_simulation")


def conversation(simulation: ModuleType, count: int = 1500) -> list[Any]:
    """Prompts of two lengths, which tell short answers from long ones with a heavy tail."""
    chance, at_s, calls = random.Random(7), 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(1.0)
        prompt, mean = chance.choice([(200, 4.0), (1100, 6.0)])
        calls.append(simulation.Call(at_s, prompt, int(chance.lognormvariate(mean, 0.6)) + 1))
    return calls


def prompts(simulation: ModuleType, count: int = 800) -> list[Any]:
    """Conversations that go on: each call repeats an earlier prompt and adds to it."""
    chance, at_s, new = random.Random(8), 0.0, iter(range(10**6))
    talks: list[tuple[int, ...]] = [tuple(next(new) for _ in range(12)) for _ in range(60)]
    calls = []
    for _ in range(count):
        at_s += chance.expovariate(1.0)
        talk = chance.randrange(len(talks))
        talks[talk] = (*talks[talk], next(new)) if chance.random() < 0.8 else (next(new),) * 12
        calls.append(simulation.Call(at_s, 512 * len(talks[talk]), 100, talks[talk]))
    return calls


def outcome(simulation: ModuleType, speeds: list[float], calls: list[Any], name: str, **values: Any) -> Any:
    setting = simulation.Setting(simulation.Policy(name=name), **values)
    return simulation.Simulation(simulation.fleet(speeds), setting).run(calls)


def test_over_unlike_machines_the_tail_is_much_shorter_than_with_the_usual_policies(
    simulation: ModuleType,
) -> None:
    calls = conversation(simulation)
    ours, least, turns = (
        outcome(simulation, [4, 2, 1], calls, name).p99
        for name in ("adaptive", "least-outstanding", "round-robin")
    )
    assert ours <= 0.6 * least
    assert ours <= 0.4 * turns


def test_several_processes_that_do_not_see_each_other_keep_the_tail_short(simulation: ModuleType) -> None:
    calls = conversation(simulation)
    ours = outcome(simulation, [4, 2, 1], calls, "adaptive", processes=8).p99
    assert ours <= 0.7 * outcome(simulation, [4, 2, 1], calls, "least-outstanding").p99


@pytest.mark.parametrize(("processes", "most"), [(1, 0.55), (8, 0.65)])
def test_prefixes_are_read_once_and_no_target_is_overloaded(
    simulation: ModuleType, processes: int, most: float
) -> None:
    calls = prompts(simulation)
    ours = outcome(simulation, [2.0] * 6, calls, "adaptive", processes=processes)
    assert ours.read_tokens <= most * outcome(simulation, [2.0] * 6, calls, "speed").read_tokens
    assert ours.max_over_mean <= 1.25


def test_every_call_is_answered_with_moves_and_second_times(simulation: ModuleType) -> None:
    calls = conversation(simulation, 600)
    found = outcome(
        simulation, [4, 2, 1], calls, "adaptive", moves=True, hedge_share=0.05, stalls=0.02, processes=4
    )
    assert len(found.latencies_s) == len(calls)
    assert 0 < found.hedged <= 0.05 * len(calls)


def test_second_times_save_the_calls_that_stall(simulation: ModuleType) -> None:
    calls = conversation(simulation)
    saved, stuck = (
        outcome(
            simulation, [4, 2, 1], calls, "adaptive", stalls=0.02, load=0.6, hedge_share=share
        ).latencies_s
        for share in (0.05, 0.0)
    )
    assert max(saved) < 0.7 * max(stuck)
