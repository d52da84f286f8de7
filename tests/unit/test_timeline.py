"""When each node waited and ran, as lanes, text and SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import made_runs as made
import pytest

from mosaic_tasks.definition.plan import link
from mosaic_tasks.inspection.timeline import Lane, Loss, Segment, Timeline, draw_svg, draw_text, timeline

SVG = "{http://www.w3.org/2000/svg}"


def chart_of(story: made.Story, *, now_ms: int = 500) -> Timeline:
    return timeline(made.report_plan(), story.events, now_ms=made.START_MS + now_ms, run_id="r")


def lane_of(chart: Timeline, name: str) -> Lane:
    return next(lane for lane in chart.lanes if lane.name == name)


def test_waiting_and_running_are_told_apart() -> None:
    lane = lane_of(chart_of(made.finished()), "tickets")
    assert lane.segments == (
        Segment("wait", made.START_MS, made.START_MS + 210),
        Segment("run", made.START_MS + 210, made.START_MS + 300),
    )
    assert (lane.total_ms("wait"), lane.total_ms("run")) == (210, 90)


def test_a_fan_out_is_one_lane_with_its_count_and_pauses() -> None:
    lane = lane_of(chart_of(made.finished()), "sections")
    assert lane.calls == 3
    assert Segment("pause", made.START_MS + 140, made.START_MS + 175) in lane.segments
    assert all(
        before.end_ms <= after.start_ms
        for before, after in zip(lane.segments, lane.segments[1:], strict=False)
    )


def test_what_is_not_over_reaches_to_now() -> None:
    chart = chart_of(made.opened().tell(5, "claimed", "0", holder="h"), now_ms=80)
    assert chart.end_ms == made.START_MS + 80
    assert lane_of(chart, "commits").segments[-1] == Segment("run", made.START_MS + 5, made.START_MS + 80)


def test_lanes_are_ordered_by_their_start_and_the_unstarted_come_last() -> None:
    names = [lane.name for lane in chart_of(made.opened().run("0", 5, 9).tell(9, "claimed", "1")).lanes]
    assert names == ["commits", "tickets", "people", "sections", "report"]


def test_a_run_without_events_can_be_drawn() -> None:
    chart = timeline(made.report_plan(), [], now_ms=made.START_MS)
    assert "waiting" in draw_text(chart)
    ElementTree.fromstring(draw_svg(chart))


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_no_line_is_wider_than_asked(width: int, ascii_only: bool) -> None:
    lines = draw_text(chart_of(made.finished()), width=width, ascii_only=ascii_only).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 5 + 3 + 1


def test_text_has_a_scale_and_a_bar_a_node() -> None:
    text = draw_text(chart_of(made.finished()), width=80, ascii_only=True)
    first, scale, *lanes, legend, loss = text.splitlines()
    assert first == "weekly-report: done, 400 ms"
    assert scale.strip().startswith("|0")
    assert scale.endswith("400 ms|")
    assert "200 ms" in scale
    assert any(line.startswith("sections x3") and "-" in line for line in lanes)
    assert legend.startswith("# runs")
    assert loss == "x sections x3: process host/2/b died, lost after 120 ms"


def lost_at_once() -> made.Story:
    """A call that another process has again as soon as its first one is known to be dead."""
    story = made.opened().tell(5, "claimed", "0", holder="h/1/a").tell(100, "lost", "0", holder="h/1/a")
    return story.run("0", 100, 200, holder="h/2/b")


def test_a_lost_attempt_and_the_next_are_two_bars_with_the_reason_between() -> None:
    lane = lane_of(chart_of(lost_at_once()), "commits")
    assert lane.segments[1:] == (
        Segment("run", made.START_MS + 5, made.START_MS + 100),
        Segment("wait", made.START_MS + 100, made.START_MS + 100),
        Segment("run", made.START_MS + 100, made.START_MS + 200),
    )
    assert lane.losses == (Loss(made.START_MS + 100, "h/1/a"),)
    text = draw_text(chart_of(lost_at_once()), ascii_only=True)
    assert re.search(r"^commits +\|#+x#+ +\|", text, re.M)
    assert text.endswith("x commits: process h/1/a died, lost after 100 ms")


def test_a_loss_breaks_the_bar_of_a_fan_out_whose_other_items_run_on() -> None:
    story = (
        made.fanned_out()
        .tell(40, "claimed", "2.0", holder="h/1/a")
        .tell(41, "claimed", "2.1", holder="h/2/b")
    )
    lane = lane_of(chart_of(story.tell(60, "lost", "2.0", holder="h/1/a"), now_ms=80), "sections")
    assert lane.segments[-2:] == (
        Segment("run", made.START_MS + 40, made.START_MS + 60),
        Segment("run", made.START_MS + 60, made.START_MS + 80),
    )


def test_a_loss_is_marked_and_told_in_svg() -> None:
    root = ElementTree.fromstring(draw_svg(chart_of(lost_at_once())))
    (mark,) = [bar for bar in root.iter(f"{SVG}rect") if bar.get("class") == "lost"]
    assert mark.findtext(f"{SVG}title") == "process h/1/a died, lost after 100 ms"


def test_a_run_too_short_for_a_column_is_still_seen() -> None:
    story = made.opened().run("0", 1, 2).tell(100_000, "closed", detail="cancelled: enough")
    line = draw_text(chart_of(story), ascii_only=True).splitlines()[2]
    assert line.count("#") == 1


def test_long_names_are_cut() -> None:
    plan = link("long", [made.node("n" * 200)], output=0)
    text = draw_text(timeline(plan, made.Story().run("0", 1, 9).events, now_ms=made.START_MS + 10))
    assert max(map(len, text.splitlines())) <= 80


def test_each_execution_of_a_node_has_a_lane_with_its_epoch_and_its_own_time() -> None:
    lanes = chart_of(made.again()).lanes
    assert [(lane.name, lane.epoch, lane.state) for lane in lanes] == [
        ("commits", 0, "done"),
        ("tickets", 0, "done"),
        ("people", 0, "done"),
        ("sections", 0, "done"),
        ("report", 0, "done"),
        ("sections", 1, "done"),
        ("report", 1, "done"),
    ]
    first, second = (lane for lane in lanes if lane.name == "report")
    assert (first.total_ms("run"), second.total_ms("run")) == (50, 100)
    kept = lane_of(chart_of(made.finished()), "people")
    assert lane_of(chart_of(made.again()), "people") == kept


def test_an_execution_that_was_cut_off_by_the_next_is_shown_as_cancelled() -> None:
    story = made.opened().tell(5, "claimed", "0", holder="h").tell(45, "redo", "0", "1", "2", "4", detail="1")
    chart = chart_of(story.run("0", 50, 60))
    assert [(lane.name, lane.epoch, lane.state, lane.total_ms("run")) for lane in chart.lanes[:3]] == [
        ("commits", 0, "cancelled", 40),
        ("tickets", 0, "ready", 0),
        ("commits", 1, "done", 10),
    ]
    assert [lane.name for lane in chart.lanes].count("report") == 1


def test_epochs_are_told_in_text_and_in_svg() -> None:
    lines = draw_text(chart_of(made.again()), ascii_only=True).splitlines()
    assert any(line.startswith("report (epoch 1) ") and line.endswith("| 100 ms") for line in lines)
    assert any(line.startswith("report  ") and line.endswith("| 50 ms") for line in lines)
    titles = [
        element.text or "" for element in ElementTree.fromstring(draw_svg(chart_of(made.again()))).iter()
    ]
    assert "report (epoch 1): done, ran 100 ms, waited 90 ms" in titles


def test_the_epoch_of_a_long_name_is_not_cut() -> None:
    plan = link("long", [made.node("n" * 200)], output=0)
    story = (
        made.Story()
        .run("0", 1, 9)
        .tell(9, "closed", detail="done")
        .tell(10, "redo", "0", detail="12")
        .run("0", 11, 12)
    )
    lines = draw_text(timeline(plan, story.events, now_ms=made.START_MS + 20)).splitlines()
    assert any(".. (epoch 12) |" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_mailbox_that_waits_for_more_is_idle_not_in_its_queue() -> None:
    story = made.streaming().tell(20, "claimed", "7.m").tell(30, "idle", "7.m").tell(50, "claimed", "7.m")
    chart = timeline(made.stream_plan(), story.events, now_ms=made.START_MS + 60)
    assert lane_of(chart, "tone").segments == (
        Segment("run", made.START_MS + 20, made.START_MS + 30),
        Segment("idle", made.START_MS + 30, made.START_MS + 50),
        Segment("run", made.START_MS + 50, made.START_MS + 60),
    )


def test_svg_is_well_formed_and_refers_to_nothing_outside() -> None:
    svg = draw_svg(chart_of(made.finished()))
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert "prefers-color-scheme: dark" in svg
    assert "href" not in svg
    assert "url(" not in svg
    titles = [element.text or "" for element in root.iter(f"{SVG}title")]
    assert any(title.startswith("sections: done, ran ") for title in titles)


def test_svg_bars_lie_inside_the_chart() -> None:
    root = ElementTree.fromstring(draw_svg(chart_of(made.finished())))
    bars = [bar for bar in root.iter(f"{SVG}rect") if bar.get("class") in ("run", "wait", "pause")]
    assert all(
        float(bar.get("x", 0)) + float(bar.get("width", 0)) <= float(root.get("width", 0)) for bar in bars
    )
    assert all(float(bar.get("width", 0)) > 0 for bar in bars)


def test_svg_escapes_names() -> None:
    chart = Timeline("r", "a<b>", "running", 0, 10, (Lane("x&y", "running", 1, (Segment("run", 0, 10),)),))
    assert ElementTree.fromstring(draw_svg(chart)) is not None
    assert "x&amp;y" in draw_svg(chart)
