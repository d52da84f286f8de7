"""How many calls are sent to where a limit lets few run at once, and when the others have their turn."""

from __future__ import annotations

import pytest

from mosaic_routing.ceilings import LONGEST_S, Ceiling, predicted_s, room, turn_s
from mosaic_routing.router import route
from mosaic_routing.snapshot import Snapshot
from mosaic_routing.targets import Ask, Target


@pytest.mark.parametrize(
    ("limit", "active", "service_s", "more"),
    [(1, 0, 30.0, 1), (1, 1, 30.0, 0), (1, 0, 0.05, 21), (4, 10, 0.5, 2), (4, 90, 0.5, 0), (1, 0, 0.0, 1001)],
)
def test_as_many_are_sent_as_have_their_turn_within_a_second(
    limit: int, active: int, service_s: float, more: int
) -> None:
    assert Ceiling(limit, active).room(service_s) == more


def test_the_others_wait_one_behind_the_other() -> None:
    ceiling = Ceiling(2, 0)
    while ceiling.room(0.5):
        ceiling.sent()
    assert [ceiling.turn_s(0.5) for _ in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.25])
    assert Ceiling(1, 10_000).turn_s(60.0) == LONGEST_S


def test_of_several_limits_the_tightest_counts() -> None:
    ceilings = [Ceiling(8, 0), Ceiling(1, 1)]
    assert room(ceilings, 2.0) == 0
    assert turn_s(ceilings, 2.0) == pytest.approx(1.0)


def test_a_target_that_is_full_is_left_out_and_may_be_tried_later() -> None:
    target = Target(name="t", deployment="l4/sage", model="sage", engine="vllm:sage", queue="q")
    ask = Ask(call="r/0", output_tokens=100.0, full=("t",))
    decision = route(ask, Snapshot([target]))
    assert (decision.target, decision.wait_s > 0) == ("", True)
    assert decision.reasons == (
        "no target is open now",
        "t: it has as many calls as its limits let run soon",
    )
    assert predicted_s(target, ask) == pytest.approx(2.0)
