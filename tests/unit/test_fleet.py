"""The targets that there are: what workers report, put together with the model pool."""

from __future__ import annotations

from typing import Any

import pytest

from mosaic_routing.fleet import Standing, targets
from mosaic_routing.inventory import EngineReport
from mosaic_routing.pool import ModelPool
from mosaic_routing.reports import Aged
from mosaic_routing.router import Policy, route
from mosaic_routing.snapshot import Snapshot
from mosaic_routing.targets import Ask, Target

SPEED = {"prefill_tokens_s": 4_000, "decode_tokens_s": 16}
POOL = ModelPool.model_validate(
    {
        "models": {
            "llama": {
                "capabilities": {"math": 0.85},
                "context_tokens": 8192,
                "price": {"input": 0.1, "output": 0.2},
                "hosting": {"spec": {"model": "/models/llama"}, "classes": {"l4": {"speed": SPEED}}},
                "providers": [{"provider": "groq", "model": "llama-3.1"}],
            }
        }
    }
)


def engine(worker: str = "gpu1@node3", *, age_s: float = 0.0, **facts: Any) -> Aged[EngineReport]:
    plain = {
        "holder": f"{worker}/1/a",
        "queues": ("mosaic.l4.llama", f"mosaic.direct.{worker}"),
        "model": "llama",
        "fingerprint": "f1",
        "gpu_class": "l4",
        "at_ms": 0,
        "slots": 4,
    }
    return Aged(EngineReport(**plain | facts), age_s)


def found(*engines: Aged[EngineReport], **more: Any) -> list[Target]:
    return targets(engines, **{"served": {}, "pool": POOL, "standings": {}} | more)


def test_a_worker_that_hosts_a_deployment_is_a_target() -> None:
    (target,) = found(engine(running=2, waiting=1, age_s=0.5))
    assert (target.name, target.deployment, target.engine) == (
        "l4/llama@gpu1@node3",
        "l4/llama",
        "vllm:llama",
    )
    assert (target.queue, target.machine) == ("mosaic.direct.gpu1@node3", "node3")
    assert (target.slots, target.age_s, target.decode_tokens_s) == (6, 0.5, 16.0)
    assert (target.input_price, target.output_price, target.context_tokens) == (0.1, 0.2, 8192)


def test_what_an_engine_measured_goes_before_what_the_pool_says() -> None:
    (target,) = found(engine(inter_token_s=0.02, prefill_tokens_s=900.0))
    assert (target.decode_tokens_s, target.prefill_tokens_s) == (50.0, 900.0)


@pytest.mark.parametrize(
    "facts",
    [{"state": "loading"}, {"gpu_class": "h100"}, {"model": "qwen"}, {"queues": ("mosaic.l4.llama",)}],
)
def test_what_cannot_take_a_call_is_no_target(facts: dict[str, Any]) -> None:
    assert found(engine(**facts)) == []


def test_a_provider_is_a_target_while_somebody_asks_it() -> None:
    (target,) = found(served={"mosaic.api.groq": 8, "mosaic.cpu": 4})
    assert (target.name, target.queue, target.slots) == ("api.groq/llama", "mosaic.api.groq", 8)
    assert found(served={"mosaic.api.groq": 0}) == []


def test_quality_is_that_of_the_capability_that_is_asked_for() -> None:
    qualities = [found(engine(), capability=name)[0].quality for name in ("", "math", "code")]
    assert qualities == [1.0, 0.85, 0.0]


def test_limits_and_backlog_are_told_of_each_target() -> None:
    standing = Standing(active=3, work_tokens=600.0, is_open=True, ready_in_s=2.0)
    one, other = found(engine("a@node1"), engine("b@node1"), standings={"l4/llama@b@node1": standing})
    assert (one.active, one.backlog_tokens, one.is_open, one.ready_in_s) == (0, 0.0, False, 0.0)
    assert (other.active, other.backlog_tokens, other.is_open, other.ready_in_s) == (3, 600.0, True, 2.0)


def test_of_two_alike_the_one_that_is_nearer_to_the_server_is_chosen() -> None:
    far, near = engine("a@node1", running=1), engine("b@node2", running=1)
    fleet = found(far, near, round_trips={far.report.holder: 0.4, near.report.holder: 0.001})
    assert [target.round_trip_s for target in fleet] == [0.4, 0.001]
    for call in range(8):  # whatever the hash of a call prefers
        ask = Ask(call=f"run/{call}", input_tokens=100.0, output_tokens=20.0)
        decision = route(ask, Snapshot(fleet), policy=Policy())
        assert decision.target == "l4/llama@b@node2"


@pytest.mark.parametrize("is_old_first", [True, False])
def test_a_worker_that_died_and_began_again_is_what_it_says_now(is_old_first: bool) -> None:
    old, new = engine(holder="1", slots=4, age_s=4.0), engine(holder="2", slots=9, age_s=0.1)
    (target,) = found(*((old, new) if is_old_first else (new, old)))
    assert (target.slots, target.age_s) == (9, 0.1)


def test_one_that_began_again_and_loads_is_no_target_whatever_it_said_before() -> None:
    assert found(engine(holder="1", age_s=4.0), engine(holder="2", state="loading")) == []
