"""What is shown of streams and epochs while a run runs."""

from __future__ import annotations

import io

from made_runs import START_MS, Story, again, finished, report_plan, stream_plan, streaming
from rich.console import Console

from mosaic_tasks.cli.live import Display, Lines, render
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.inspection.progress import Progress


def console() -> Console:
    return Console(file=io.StringIO(), width=200, markup=False, highlight=False)


def text_of(shown: Console) -> list[str]:
    assert isinstance(shown.file, io.StringIO)
    return [line.strip() for line in shown.file.getvalue().splitlines()]


def printed(story: Story, plan: Plan, *, known: int = 0) -> list[str]:
    to = console()
    display: Display = Lines(plan, "r", to)
    for event in story.events[:known]:
        display.know(event)
    for event in story.events[known:]:
        display.show(event)
    return text_of(to)


def board(story: Story, plan: Plan) -> list[str]:
    progress, to = Progress(plan, run_id="r"), console()
    for event in story.events:
        progress.apply(event)
    to.print(render(progress, progress.view().nodes, START_MS + 9_999, 20))
    return text_of(to)


def test_a_fan_out_that_grows_is_shown_with_its_items_so_far() -> None:
    story = streaming().run("1.0", 12, 13)
    assert any("each" in line and "1 of 3+ items" in line for line in board(story, stream_plan()))
    story.tell(14, "expanded", "1.m", detail="3")
    assert any("each" in line and "1/3" in line for line in board(story, stream_plan()))


def test_a_fan_out_that_grows_item_by_item_takes_few_lines() -> None:
    story = Story().tell(0, "opened", detail="streams").tell(0, "claimed", "1.m", holder="h")
    for item in range(1000):
        story.tell(item, "expanded", "1.m", detail=str(item + 1)).run(f"1.{item}", item, item)
    told = [line for line in printed(story, stream_plan()) if "each: " in line]
    assert len(told) < 80
    assert told[-1].endswith("+ items")


def test_a_mailbox_does_not_flicker_between_two_batches() -> None:
    story = streaming()
    for time_ms in range(20, 120, 2):
        story.tell(time_ms, "claimed", "7.m", holder="h").tell(time_ms + 1, "idle", "7.m", holder="h")
    assert [line for line in printed(story, stream_plan()) if "tone" in line] == ["20 ms  tone: running"]


def test_nodes_that_run_again_are_told_from_the_beginning_of_their_epoch() -> None:
    lines = printed(again(), report_plan())
    place = lines.index("0 ms  epoch 1: sections and report run again")
    assert lines[place - 1] == "400 ms  run done"
    assert lines[place + 1] == "0 ms  sections: ready (in queue mosaic.cpu)"
    assert "300 ms  report: done after 100 ms" in lines[place:]


def test_what_is_known_is_not_told_again() -> None:
    lines = printed(again(), report_plan(), known=len(finished().events))
    assert lines[0] == "0 ms  epoch 1: sections and report run again"
    assert lines[-1] == "300 ms  run done"


def test_the_table_names_the_epoch_and_tells_its_time() -> None:
    lines = board(again(), report_plan())
    assert any("report" in line and "100 ms" in line and line.endswith("epoch 1") for line in lines)
    assert any("people" in line and "epoch" not in line for line in lines)
    assert lines[-1] == "weekly-report r: done, 300 ms: 5 done"
