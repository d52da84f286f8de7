"""The queue of one worker: when it looks for calls that wait elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mosaic_routing.targets import Target
from mosaic_tasks.execution.placing import direct
from mosaic_tasks.execution.placing.direct import DirectQueue


def target(worker: str, *, active: int) -> Target:
    return Target(
        name=f"l4/tiny@{worker}",
        deployment="l4/tiny",
        model="tiny",
        engine="vllm:tiny",
        queue=f"mosaic.direct.{worker}",
        slots=1,
        active=active,
        backlog_tokens=100.0 * active,
    )


class Fleets:
    """An idle worker, and a full one."""

    def __init__(self, *_: Any) -> None:
        self.targets = [target("idle", active=0), target("full", active=5)]

    def now(self) -> Fleets:
        return self

    def find(self, name: str) -> Target | None:
        return next((one for one in self.targets if one.name == name), None)


@pytest.mark.parametrize(("policy", "moved"), [("adaptive", 2), ("round-robin", 0)])
def test_an_idle_worker_takes_what_waits_elsewhere_unless_calls_are_to_stay(
    monkeypatch: pytest.MonkeyPatch, policy: str, moved: int
) -> None:
    moves: list[tuple[str, str, int]] = []

    def move(_app: Any, source: str, to: str, *, most: int) -> int:
        moves.append((source, to, most))
        return most

    monkeypatch.setattr(direct, "Fleets", Fleets)
    monkeypatch.setattr(direct, "move_messages", move)
    process: Any = SimpleNamespace(
        app=None,
        client=None,
        guards=None,
        facts=SimpleNamespace(hostname="idle"),
        ledger=SimpleNamespace(keys=None),
        settings=SimpleNamespace(routing_policy=policy),
    )
    assert DirectQueue(process).take_waiting("l4/tiny", most=2) == moved
    assert moves == [("mosaic.direct.full", "mosaic.direct.idle", 2)][:moved]
