"""Which of the calls that wait for their turn go first where there is room."""

from __future__ import annotations

from mosaic_tasks.execution.placing.turns import Queued, chosen, in_turn


def test_tenants_take_turns_and_the_runs_of_each_and_urgent_ones_go_first() -> None:
    queued = [
        Queued("a1", 5, "acme", ["0", "1", "2"]),
        Queued("a2", 5, "acme", ["0"]),
        Queued("u1", 5, "umbrella", ["0", "1"]),
        Queued("batch", 9, "umbrella", ["0"]),
        Queued("now", 0, "acme", ["0"]),
    ]
    assert list(in_turn(queued)) == [
        ("now", "0"),
        *[("a1", "0"), ("u1", "0"), ("a2", "0"), ("u1", "1"), ("a1", "1"), ("a1", "2")],
        ("batch", "0"),
    ]


def test_as_many_go_as_there_is_room_for_where_they_want_to() -> None:
    candidates = [("r", "0"), ("r", "1"), ("s", "0"), ("s", "1")]
    wanted = {
        ("r", "0"): ("here",),
        ("r", "1"): ("here", "there"),
        ("s", "0"): ("nowhere",),
        ("s", "1"): ("there",),
    }
    assert chosen(candidates, wanted, {"here": 1, "there": 2}) == {"r": ["0", "1"], "s": ["1"]}
    assert chosen(candidates, wanted, {"here": 0}) == {}
