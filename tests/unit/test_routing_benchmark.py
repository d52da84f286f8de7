"""The pure parts of the benchmark of routing: load, prompts, and what it makes of what calls tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mosaic_routing.affinity import fingerprints
from mosaic_tasks.engines.protocol import EngineRequest, Message
from mosaic_tasks.engines.recordings import find
from mosaic_tasks.engines.simulated import SimulatedSpec


@pytest.fixture(scope="module")
def routing(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("routing")


@pytest.fixture(scope="module")
def fleet(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("routing_fleet")


def machine(fleet: ModuleType, speed: float = 1.0) -> Any:
    return fleet.Machine("machine-0", speed, "chat")


def call(routing: ModuleType, *, at_s: float = 0.0, read: int = 0, write: int = 100, prefix: Any = ()) -> Any:
    return routing.Call(at_s, read, write, tuple(prefix))


def test_slots_bound_what_a_machine_can_do_and_reading_does_where_prompts_are_long(
    routing: ModuleType, fleet: ModuleType
) -> None:
    one = machine(fleet)
    per_s = fleet.TOKENS_S * fleet.PREFILL
    short = call(routing, read=int(per_s) // 10, write=100)
    assert one.calls_s([short]) == pytest.approx(fleet.SLOTS / (0.1 + 100 / fleet.TOKENS_S))
    assert one.calls_s([call(routing, read=int(per_s), write=100)]) == pytest.approx(1.0)
    assert machine(fleet, 4.0).calls_s([short]) == pytest.approx(4 * one.calls_s([short]))


def test_arrivals_are_stretched_to_the_load(routing: ModuleType, fleet: ModuleType) -> None:
    calls = [call(routing, at_s=float(number), read=1, write=100) for number in range(101)]
    machines = fleet.machines((2.0, 1.0), ["chat"] * 2)
    factor = fleet.stretch(machines, calls, load=0.5)
    arriving_s = len(calls) / (factor * calls[-1].at_s)
    assert arriving_s == pytest.approx(0.5 * sum(one.calls_s(calls) for one in machines))


def test_prompts_share_the_blocks_that_their_calls_share(routing: ModuleType, fleet: ModuleType) -> None:
    def blocks(prefix: list[int], salt: str = "aa") -> tuple[int, ...]:
        asked = call(routing, read=512 * len(prefix) + 200, prefix=prefix)
        return fingerprints(fleet.prompt(7, asked, salt=salt), block_chars=fleet.BLOCK_CHARS)

    first, second = blocks([1, 2, 3]), blocks([1, 2, 4])
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert not set(first) & set(blocks([1, 2, 3], salt="bb"))


@pytest.mark.parametrize("read", [1, 80, 500, 1024, 20_000])
def test_a_prompt_has_the_length_of_its_call(routing: ModuleType, fleet: ModuleType, read: int) -> None:
    text = fleet.prompt(7, call(routing, read=read, prefix=range(-(-read // 512))), salt="aa")
    assert abs(len(text) * fleet.CHAR_TOKENS - max(read, 96)) < fleet.CHAR_TOKENS


def test_each_prompt_is_answered_at_the_length_of_its_call(
    routing: ModuleType, fleet: ModuleType, tmp_path: Path
) -> None:
    calls = [call(routing, read=900, write=tokens) for tokens in (1, 11, 111, 1110)]
    path = tmp_path / "answers.jsonl"
    fleet.write_answers(path, calls)
    for number, one in enumerate(calls):
        request = EngineRequest((Message("user", fleet.prompt(number, one, salt="aa")),))
        usage = find(str(path), request).usage
        assert usage is not None
        assert usage.output_tokens == one.output_tokens


def test_its_machines_are_specs_of_simulated_gpus(fleet: ModuleType, tmp_path: Path) -> None:
    spec = SimulatedSpec.model_validate(fleet.spec_of(machine(fleet, 4.0), tmp_path / "answers.jsonl"))
    assert (spec.decode_tokens_s, spec.slots) == (4 * fleet.TOKENS_S, fleet.SLOTS)


class TestOutcome:
    def scenario(self, routing: ModuleType, fleet: ModuleType, learn: int) -> Any:
        return routing.Scenario(
            name="made",
            title="made",
            fleet=fleet.machines((2.0, 1.0), ["large", "small"]),
            models=(routing.LARGE, routing.SMALL),
            calls=[call(routing, read=0, write=150)] * 4,
            agent={},
            load=0.8,
            learn=learn,
        )

    def told(self, machine: str, *, latency_s: float, read: int = 1000, cached: int = 0) -> dict[str, Any]:
        return {
            "latency_s": latency_s,
            "machine": machine,
            "input_tokens": read,
            "cached_tokens": cached,
            "output_tokens": 100,
            "cost_usd": 0.5,
        }

    def test_what_came_first_is_left_out(self, routing: ModuleType, fleet: ModuleType) -> None:
        calls = [
            self.told("machine-0", latency_s=9.0),
            self.told("machine-0", latency_s=1.0, cached=500),
            self.told("machine-0", latency_s=1.0, cached=1000),
            self.told("machine-1", latency_s=3.0, read=0),
        ]
        found = routing.outcome(self.scenario(routing, fleet, 1), {"calls": calls, "seconds": 1.0})
        assert (found.p50, found.p99, found.dollars) == (1.0, 3.0, 1.5)
        assert found.within == pytest.approx(2 / 3)  # 2 * 150 tokens at 150 a second
        assert (found.read_tokens, found.cached) == (500, 0.75)
        assert found.quality == pytest.approx((0.93 + 0.93 + 0.85) / 3)
        loads = [(200 + 500 / fleet.PREFILL) / 2, 100]
        assert found.max_over_mean == pytest.approx(max(loads) / (sum(loads) / 2))


def test_figures_are_those_of_what_was_played(routing: ModuleType) -> None:
    def played(latency_s: float, read: float = 100.0) -> Any:
        told = {
            "cpu": 0.1,
            "worker_cpu": 0.2,
            "late_p99_s": 0.01,
            "decision_us_p50": 50.0,
            "dispatch_us_p50": 1e3,
        }
        return routing.Outcome([latency_s], 1.0, 0.0, 0.0, read, 1.1, 0.9, told)

    found = {
        "speeds": {"least-outstanding": played(4.0)},
        "binding": {"adaptive": played(2.0)},
        "prefixes": {"speed": played(1.0), "adaptive": played(1.0, read=40.0)},
    }
    figures = routing.figures(found, [60.0])
    assert figures["p99_over_least_outstanding"] == 0.5
    assert figures["p99_over_round_robin"] is None
    assert (figures["prefill_tokens_ratio"], figures["max_over_mean_load"]) == (0.4, 1.1)
    assert figures["dispatch_over_call"] == pytest.approx(0.0005)


def test_a_window_begins_at_zero_and_has_what_is_learned_before_the_middle(routing: ModuleType) -> None:
    calls = [call(routing, at_s=float(number), write=number) for number in range(10)]
    found = routing.window(calls, 2, 3)
    assert [one.output_tokens for one in found] == [3, 4, 5, 6, 7]
    assert (found[0].at_s, found[-1].at_s) == (0.0, 4.0)
