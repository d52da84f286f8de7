"""Events in, the state of a run and its nodes out."""

from __future__ import annotations

import time

import made_runs as made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_tasks.definition.plan import link
from mosaic_tasks.inspection.progress import NodeView, Progress, RunView, project


def view_of(story: made.Story) -> RunView:
    return project(made.report_plan(), story.events, run_id="r")


def node_of(story: made.Story, name: str) -> NodeView:
    return next(found for found in view_of(story).nodes if found.name == name)


def test_a_run_without_events_waits() -> None:
    view = project(made.report_plan(), [])
    assert (view.status, view.opened_ms, view.closed_ms) == ("running", None, None)
    assert view.counts() == {"waiting": 5}


def test_roots_are_ready_when_the_run_is_opened() -> None:
    view = view_of(made.opened())
    assert view.opened_ms == made.START_MS
    assert [found.state for found in view.nodes] == ["ready", "waiting", "waiting", "ready", "waiting"]


def test_a_claim_starts_a_node_and_names_its_holder() -> None:
    found = node_of(made.opened().tell(7, "claimed", "0", holder="host/9/x"), "commits")
    assert (found.state, found.holder, found.started_ms, found.attempts) == (
        "running",
        "host/9/x",
        made.START_MS + 7,
        1,
    )
    assert found.running_ms(made.START_MS + 20) == 13


def test_a_claim_without_a_ready_event_is_ready_and_running_at_once() -> None:
    found = node_of(made.opened().run("0", 1, 2).tell(2, "claimed", "1", holder="h"), "people")
    assert (found.state, found.ready_ms, found.started_ms) == (
        "running",
        made.START_MS + 2,
        made.START_MS + 2,
    )


def test_a_fan_out_counts_its_items_only() -> None:
    story = made.fanned_out().run("2.0", 40, 50).tell(51, "claimed", "2.1", "2.2", holder="h")
    found = node_of(story, "sections")
    assert (found.state, found.calls, found.calls_done, found.calls_running, found.attempts) == (
        "running",
        3,
        1,
        2,
        3,
    )


def test_a_fan_out_stays_running_between_two_items() -> None:
    assert node_of(made.fanned_out(), "sections").state == "running"
    assert node_of(made.fanned_out().run("2.0", 40, 50), "sections").state == "running"


def test_a_fan_out_over_nothing_is_done_when_it_closes() -> None:
    story = made.fanned_out(0).tell(30, "ready", "2.c", detail="mosaic.cpu").run("2.c", 31, 32)
    found = node_of(story, "sections")
    assert (found.state, found.calls, found.calls_done) == ("done", 0, 0)


def test_a_fan_out_whose_opening_is_skipped_is_over() -> None:
    story = (
        made.opened()
        .run("0", 1, 2)
        .run("1", 2, 3)
        .tell(3, "claimed", "2", holder="h")
        .tell(4, "skipped", "2")
    )
    found = node_of(story, "sections")
    assert (found.state, found.is_over, found.ended_ms) == ("skipped", True, made.START_MS + 4)


def test_skipped_items_are_done_and_counted() -> None:
    story = made.fanned_out().tell(40, "claimed", "2.0", holder="h").tell(50, "skipped", "2.0", holder="h")
    found = node_of(story, "sections")
    assert (found.calls_done, found.calls_skipped) == (1, 1)


def test_a_retry_tells_its_error_and_when_it_is_due() -> None:
    story = made.opened().tell(5, "claimed", "0", holder="h")
    story.tell(9, "retry", "0", detail="ToolError: no", pause_ms=500)
    found = node_of(story, "commits")
    assert (found.state, found.retries, found.error) == ("ready", 1, "ToolError: no")
    assert found.retry_at_ms == made.START_MS + 509
    again = node_of(story.tell(600, "claimed", "0", holder="h"), "commits")
    assert (again.state, again.retry_at_ms, again.attempts) == ("running", None, 2)


def test_a_call_handed_back_is_ready_and_no_attempt() -> None:
    found = node_of(
        made.opened().tell(5, "claimed", "0", holder="h").tell(6, "released", "0", holder="h"), "commits"
    )
    assert (found.state, found.attempts, found.calls_running) == ("ready", 0, 0)


def test_a_lost_call_is_ready_again_and_counted() -> None:
    found = node_of(
        made.opened().tell(5, "claimed", "0", holder="h").tell(6, "lost", "0", holder="h"), "commits"
    )
    assert (found.state, found.losses, found.attempts) == ("ready", 1, 1)


def test_a_failed_run_names_its_node_and_cancels_the_others() -> None:
    story = (
        made.opened()
        .tell(5, "claimed", "0", holder="h")
        .tell(9, "failed", "0", detail="node 'commits': no: none")
    )
    view = view_of(story.tell(9, "closed", detail="failed: node 'commits': no: none"))
    assert (view.status, view.error, view.closed_ms) == (
        "failed",
        "node 'commits': no: none",
        made.START_MS + 9,
    )
    assert view.counts() == {"failed": 1, "cancelled": 4}
    assert view.nodes[0].error == "node 'commits': no: none"
    assert view.nodes[1].ended_ms is None


def test_a_cancelled_run_leaves_nothing_running() -> None:
    story = made.opened().run("0", 1, 2).tell(3, "claimed", "1", holder="h")
    view = view_of(story.tell(9, "closed", detail="cancelled: enough"))
    assert (view.status, view.error) == ("cancelled", "enough")
    assert view.counts() == {"done": 1, "cancelled": 4}
    assert sum(found.calls_running for found in view.nodes) == 0


def test_a_finished_run_is_done_throughout() -> None:
    view = view_of(made.finished())
    assert view.counts() == {"done": 5}
    sections = view.nodes[2]
    assert (sections.calls_done, sections.retries, sections.losses, sections.attempts) == (3, 1, 1, 5)
    assert (sections.started_ms, sections.ended_ms) == (made.START_MS + 20, made.START_MS + 210)


def test_tokens_and_cost_add_up() -> None:
    story = made.opened().tell(5, "claimed", "0", holder="h")
    story.tell(6, "usage", "0", detail="openai:m", tokens=(100, 20), cost_usd=0.5)
    story.tell(7, "usage", "0", detail="openai:n", tokens=(10, 2), cost_usd=None)
    found = node_of(story, "commits")
    assert (found.tokens, found.cost_usd) == ((110, 22), 0.5)


def test_an_event_tells_which_nodes_it_touched() -> None:
    progress = Progress(made.report_plan())
    assert [progress.apply(event) for event in made.opened().events] == [[], [0], [3]]
    [both] = made.Story().tell(5, "claimed", "3", "0", holder="h").events
    assert progress.apply(both) == [3, 0]
    [end] = made.Story().tell(6, "closed", detail="cancelled: enough").events
    assert progress.apply(end) == [0, 1, 2, 3, 4]


def test_events_in_pieces_give_what_all_at_once_gives() -> None:
    progress = Progress(made.report_plan(), run_id="r")
    for event in made.finished().events:
        progress.apply(event)
        progress.view()
    assert progress.view() == view_of(made.finished())


def streamed(story: made.Story, name: str) -> NodeView:
    return next(found for found in project(made.stream_plan(), story.events).nodes if found.name == name)


def test_a_mailbox_runs_from_its_first_reading_to_its_end() -> None:
    story = made.streaming()
    assert streamed(story, "tone").state == "waiting"
    for time_ms, kind in ((20, "claimed"), (21, "idle"), (30, "claimed"), (31, "idle")):
        story.tell(time_ms, kind, "7.m", holder="h")
        found = streamed(story, "tone")
        assert (found.state, found.attempts, found.is_idle) == ("running", 1, kind == "idle")
    story.tell(40, "ready", "7.m", detail="mosaic.cpu")  # its message was lost
    assert streamed(story, "tone").state == "running"
    assert streamed(story.run("7.m", 41, 42), "tone").state == "done"


def test_a_mailbox_that_fails_a_batch_begins_another_attempt() -> None:
    story = made.streaming().tell(20, "claimed", "7.m").tell(21, "idle", "7.m").tell(22, "claimed", "7.m")
    story.tell(23, "retry", "7.m", detail="no", pause_ms=5).tell(28, "claimed", "7.m")
    found = streamed(story, "tone")
    assert (found.attempts, found.retries, found.running_ms(made.START_MS + 30)) == (2, 1, 10)


def test_a_fan_out_grows_until_an_expansion_adds_nothing() -> None:
    story = made.streaming().run("1.0", 12, 13)
    found = streamed(story, "each")
    assert (found.grows, found.calls, found.calls_done, found.calls_running, found.state) == (
        True,
        3,
        1,
        1,
        "running",
    )
    story.tell(14, "idle", "1.m", holder="h").run("1.1", 15, 16).run("1.2", 15, 16)
    assert streamed(story, "each").is_idle
    story.tell(20, "claimed", "1.m", holder="h").tell(21, "expanded", "1.m", detail="4")
    assert not streamed(story.tell(21, "ready", "1.3", detail="mosaic.cpu"), "each").is_idle
    story.tell(22, "expanded", "1.m", detail="4")
    found = streamed(story, "each")
    assert (found.grows, found.calls, found.calls_done, found.calls_running) == (False, 4, 3, 0)


def test_a_fan_out_over_an_empty_stream_is_complete_at_once() -> None:
    story = made.Story().tell(0, "claimed", "1.m").tell(1, "expanded", "1.m", detail="0")
    assert not streamed(story, "each").grows


def test_items_that_are_taken_back_are_counted_no_more() -> None:
    story = (
        made.streaming()
        .run("1.0", 12, 13)
        .run("1.1", 12, 13)
        .tell(14, "skipped", "1.2")
        .tell(15, "claimed", "1.m")
    )
    story.tell(20, "expanded", "1.m", detail="2").tell(20, "ready", "1.1", detail="mosaic.cpu")
    found = streamed(story, "each")
    assert (found.calls, found.calls_done, found.calls_skipped) == (2, 1, 0)
    found = streamed(story.run("1.1", 21, 22).tell(23, "expanded", "1.m", detail="2"), "each")
    assert (found.calls, found.calls_done, found.grows) == (2, 2, False)


def test_a_list_that_grew_to_its_former_size_grows_on_when_its_mailbox_waits() -> None:
    story = (
        made.streaming().tell(20, "expanded", "1.m", detail="3").tell(21, "idle", "1.m")
    )  # one was taken back meanwhile
    assert streamed(story, "each").grows


def test_a_node_that_runs_again_begins_anew_and_the_others_are_kept() -> None:
    story = made.again()
    first, second = (
        project(made.report_plan(), made.finished().events),
        project(made.report_plan(), story.events),
    )
    assert [found.epoch for found in second.nodes] == [0, 0, 1, 0, 1]
    assert [second.nodes[number] for number in (0, 1, 3)] == [first.nodes[number] for number in (0, 1, 3)]
    sections = second.nodes[2]
    assert (sections.calls, sections.attempts, sections.retries, sections.losses) == (1, 1, 0, 0)
    assert sections.running_ms(made.START_MS + 9_999) == 100
    assert (second.status, second.epoch, second.begun_ms, second.closed_ms) == (
        "done",
        1,
        made.START_MS + 1_000,
        made.START_MS + 1_300,
    )


def test_nodes_that_run_again_under_way_do_not_begin_the_run_anew() -> None:
    story = made.opened().run("0", 1, 2).tell(5, "redo", "0", "1", "2", "4", detail="1")
    view = view_of(story)
    assert (view.status, view.begun_ms, view.epoch) == ("running", made.START_MS, 1)
    assert view.nodes[0].state == "waiting"


def test_an_end_that_was_is_no_end_when_nodes_run_again() -> None:
    story = made.opened().tell(5, "failed", "0", detail="no").tell(5, "closed", detail="failed: no")
    view = view_of(story.tell(9, "redo", "0", "1", "2", "4", detail="1"))
    assert (view.status, view.error, view.closed_ms) == ("running", "", None)
    assert view.nodes[0].error == ""


@given(st.integers(0, 60))
def test_at_any_moment_counts_are_consistent(length: int) -> None:
    events = made.again().events[:length]
    for found in project(made.report_plan(), events).nodes:
        assert 0 <= found.calls_done <= max(found.calls, 0)
        assert found.calls_skipped <= found.calls_done
        assert found.calls_running >= 0
        assert found.attempts >= 0
        assert not (found.is_over and found.calls_running)


@pytest.mark.parametrize("size", [100, 10_000])
def test_an_event_costs_the_same_in_small_and_large_plans(size: int) -> None:
    plan = link("wide", [made.node(f"n{number}") for number in range(size)], output=0)
    progress = Progress(plan)
    events = made.Story().run("7", 1, 2).events * 2_000
    begun = time.process_time()
    for event in events:
        progress.apply(event)
    assert time.process_time() - begun < 0.5


def test_a_node_shows_its_tags() -> None:
    assert project(link("w", [made.node("a", tags=("cheap",))], output=0), []).nodes[0].tags == ("cheap",)
