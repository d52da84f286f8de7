"""Calls that are asked a second time: how they are named, and what is told of them."""

from __future__ import annotations

import made_runs as made
import pytest

from mosaic_queues.liveness import LiveProcess
from mosaic_queues.transitions import LiveCall, is_shadow, shadow_of, shadowed
from mosaic_tasks.definition.plan import link
from mosaic_tasks.execution.prepared import CallId, PreparedPlan
from mosaic_tasks.inspection.explaining import explain
from mosaic_tasks.inspection.progress import project
from mosaic_tasks.inspection.telling import Teller
from mosaic_tasks.inspection.timeline import draw_svg, draw_text, timeline

PLAN = made.report_plan()
THERE = "h100/sage@gpu2@node"


@pytest.mark.parametrize(("call", "node", "item"), [("2", 2, None), ("2.13", 2, 13)])
def test_a_shadow_is_the_same_call_under_another_name(call: str, node: int, item: int | None) -> None:
    named = CallId(shadow_of(call))
    assert (named.node, named.item, named.own, named.is_shadow) == (node, item, call, True)
    assert (named.reads, named.closes, CallId(call).is_shadow) == (False, False, False)
    assert (is_shadow(shadow_of(call)), is_shadow(call)) == (True, False)
    assert shadowed(shadow_of(call)) == shadowed(call) == call
    assert PreparedPlan("p", PLAN).knows(shadow_of(call))


def test_the_plan_says_whether_its_calls_may_be_recalled() -> None:
    routed = link("asks", [made.node("asks", queue="mosaic.routed")], output=0)
    assert PreparedPlan("p", routed).has_recalls
    assert not PreparedPlan("p", PLAN).has_recalls


def hedged(*, overtakes: bool) -> made.Story:
    """The first of three items takes long."""
    story = made.fanned_out().tell(60, "claimed", "2.0", "2.1", "2.2", holder="slow")
    story.tell(3_000, "hedged", "2.0.~", holder="slow", target=THERE, detail="its answer is there in 1 s")
    story.tell(3_010, "claimed", "2.0.~", holder="quick")
    if overtakes:
        story.tell(4_000, "overtaken", "2.0", holder="quick")
    else:
        story.tell(4_000, "lost", "2.0.~", holder="quick")
    return story.tell(4_010, "usage", "2.0.~", tokens=(3, 4), cost_usd=0.5)


@pytest.mark.parametrize("overtakes", [False, True])
def test_a_shadow_counts_neither_as_a_call_nor_as_an_attempt_nor_as_a_loss(*, overtakes: bool) -> None:
    found = project(PLAN, hedged(overtakes=overtakes).events).nodes[2]
    assert (found.calls, found.calls_running, found.attempts, found.losses) == (3, 3, 3, 0)
    assert (found.hedges, found.hedge, found.overtakes) == (1, THERE, int(overtakes))
    assert found.holder == ("quick" if overtakes else "slow")
    assert (found.tokens, found.cost_usd) == ((3, 4), 0.5)


def test_what_happened_is_told_event_by_event() -> None:
    teller = Teller(PLAN, made.START_MS)
    told = [
        " ".join(line.split()) for event in hedged(overtakes=True).events[-4:] for line in teller.lines(event)
    ]
    assert told[:3] == [
        "3.0 s hedged sections[0] (again) to its answer is there in 1 s [slow]",
        "3.0 s claimed sections[0] (again) [quick]",
        "4.0 s overtaken sections[0] answered first where it was asked again [quick]",
    ]


@pytest.mark.parametrize("overtakes", [False, True])
def test_explain_says_what_is_asked_a_second_time_and_who_was_first(*, overtakes: bool) -> None:
    processes = [LiveProcess(name, "host", 1, 0) for name in ("slow", "quick")]
    calls = [_claimed("2.1", "slow")] + ([] if overtakes else [_claimed("2.0.~", "quick")])
    view = project(PLAN, hedged(overtakes=overtakes).events)
    (text,) = [
        each.text
        for each in explain(PLAN, view, calls, processes, now_ms=made.START_MS + 5_000)
        if each.node == "sections"
    ]
    assert "1 item runs in process slow" in text
    assert f"a call was asked a second time, last at {THERE}" in text
    assert ("of these 1 goes on, since 2.0 s" in text) == (not overtakes)
    assert ("and one answered first there" in text) == overtakes


def _claimed(call: str, holder: str) -> LiveCall:
    return LiveCall(call, "claimed", 1, 0, 0, "mosaic.cpu", made.START_MS + 3_000, holder)


def test_the_timeline_tells_it_of_its_lane() -> None:
    chart = timeline(PLAN, hedged(overtakes=True).events, now_ms=made.START_MS + 5_000)
    told = f"a call was asked a second time, last at {THERE}, and one answered first there"
    assert f"sections x3: {told}" in draw_text(chart, width=140)
    assert told in draw_svg(chart)
