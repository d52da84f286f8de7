"""Calls that limits held up: where they are not sent again, and for how long."""

from __future__ import annotations

from unittest import mock

from mosaic_routing.guards import Limited
from mosaic_tasks.execution.placing import held_up
from mosaic_tasks.execution.placing.held_up import HeldUp


def limited(wait_s: float) -> Limited:
    return Limited("the rate limit is used up", by="bucket:tenant:acme:requests", wait_s=wait_s)


def test_a_call_is_held_up_where_it_was_until_the_limits_let_it_through() -> None:
    known = HeldUp()
    with mock.patch.object(held_up.time, "monotonic", return_value=100.0) as now:
        known.note("run/0", "here", limited(2.0))
        known.note("run/0", "there", limited(3.0))
        assert (known.targets("run/0"), known.targets("run/1")) == (("here", "there"), ())
        now.return_value = 103.0
        assert known.targets("run/0") == ()
        known.note("run/0", "here", limited(2.0))
        assert known.targets("run/0") == ("here",)
        stop = known.end("run/0")
        assert stop is not None
        assert (stop.left_s, stop.reason) == (2.0, "the rate limit is used up")
        assert (known.targets("run/0"), known.end("run/0")) == ((), None)


def test_only_the_latest_are_kept() -> None:
    known = HeldUp()
    for number in range(held_up.KEPT + 1):
        known.note(f"run/{number}", "here", limited(60.0))
    assert (known.targets("run/0"), known.targets("run/1")) == ((), ("here",))
