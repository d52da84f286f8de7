"""Events as lines for people."""

from __future__ import annotations

import pytest
from made_runs import START_MS, Story, again, finished, report_plan, stream_plan

from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.inspection.telling import Teller


def lines(story: Story, plan: Plan) -> list[str]:
    teller = Teller(plan, START_MS)
    return [" ".join(line.split()) for event in story.events for line in teller.lines(event)]


def read_often(story: Story, times: int) -> Story:
    """The mailbox of tone reads so often, every 10 ms."""
    for time in range(times):
        story.tell(20 + 10 * time, "claimed", "7.m", holder="h").tell(
            25 + 10 * time, "idle", "7.m", holder="h"
        )
    return story


def test_every_event_of_a_run_without_mailboxes_is_told() -> None:
    assert len(lines(finished(), report_plan())) == len(finished().events)


def test_a_node_that_runs_again_is_told_with_its_epoch() -> None:
    assert "1.0 s redo sections and report again, in epoch 1 [host/3/c]" in lines(again(), report_plan())


def test_a_mailbox_is_told_by_what_it_does() -> None:
    told = lines(read_often(Story(), 1), stream_plan())
    assert told == ["20 ms claimed tone (reads its streams) [h]", "25 ms idle tone (waits for more) [h]"]


def test_of_a_mailbox_the_first_claim_is_told_and_in_the_end_how_many_there_were() -> None:
    told = lines(read_often(Story(), 100).run("7.m", 1_100, 1_110, holder="h"), stream_plan())
    assert told[2:] == ["1.1 s done tone [h] claimed 101 times"]


def test_a_mailbox_is_told_again_after_it_failed_or_ran_again() -> None:
    story = (
        read_often(Story(), 3).tell(100, "claimed", "7.m").tell(101, "retry", "7.m", detail="no", pause_ms=5)
    )
    told = lines(read_often(story, 2), stream_plan())[2:]
    assert [line.split()[2] for line in told] == ["retry", "claimed", "idle"]
    told = lines(read_often(read_often(Story(), 3).tell(100, "redo", "7", detail="1"), 2), stream_plan())[2:]
    assert [line.split()[2] for line in told] == ["redo", "claimed", "idle"]


def test_other_calls_of_the_same_event_are_told() -> None:
    story = read_often(Story(), 2).tell(50, "claimed", "7.m", "2", holder="h")
    assert lines(story, stream_plan())[-1] == "50 ms claimed mark [h]"


def test_what_a_mailbox_spent_is_told_each_time() -> None:
    story = read_often(Story(), 2).tell(50, "usage", "7.m", detail="openai:m", tokens=(9, 2))
    told = lines(story.tell(60, "claimed", "7.m", holder="h"), stream_plan())
    assert told[2:] == ["50 ms usage tone openai:m: 9 tokens in, 2 out"]


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (("3", "4", "6", "6"), ["30 ms expanded each into 6"]),
        (("3", "3"), ["30 ms expanded each into 3"]),
        (("0",), ["30 ms expanded each into 0"]),
        (("3", "4"), []),
    ],
)
def test_of_a_list_that_grows_the_whole_is_told_once(sizes: tuple[str, ...], told: list[str]) -> None:
    story = Story()
    for size in sizes:
        story.tell(30, "expanded", "1.m", detail=size)
    assert lines(story, stream_plan()) == told
