"""Layouts of the status page: graphs in layers, graphs that are too large, and the lanes of a run."""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random

import made_mixtures
import pytest
from made_runs import Story, again, fanned_out, finished, node, report_plan, stream_plan, streaming

from mosaic_tasks.definition.plan import Plan, link
from mosaic_tasks.inspection import diagram as diagrams
from mosaic_tasks.inspection.diagram import MOST_BOXES, MOST_WIRES, WIDTH, Box, boxes, diagram
from mosaic_tasks.inspection.gantt import COLUMNS, MOST_LANES, Gantt, gantt
from mosaic_tasks.inspection.layering import Layout, laid_out, layers_of
from mosaic_tasks.inspection.progress import project
from mosaic_tasks.inspection.timeline import Charting, timeline


def random_deps(size: int, seed: int) -> list[tuple[int, ...]]:
    random = Random(seed)
    return [
        tuple(sorted(random.sample(range(place), min(place, random.randrange(4))))) for place in range(size)
    ]


def lies_between(layout: Layout, heights: list[float], link_: tuple[int, int]) -> list[int]:
    """The boxes through whose middle a wire runs."""
    found = []
    for (ax, ay), (bx, by) in pairwise(layout.ways[link_]):
        for number, (place, height) in enumerate(zip(layout.places, heights, strict=True)):
            is_level = ay == by and place.y < ay < place.y + height
            if number not in link_ and is_level and ax < place.x + WIDTH / 2 < bx:
                found.append(number)
    return found


def test_a_node_stands_behind_all_that_it_reads() -> None:
    assert layers_of([(), (0,), (0,), (1, 2), (0, 3), ()]) == [[0, 5], [1, 2], [3], [4]]


@pytest.mark.parametrize("seed", range(5))
def test_boxes_do_not_overlap_and_wires_run_through_none(seed: int) -> None:
    deps = random_deps(30, seed)
    heights = [float(Random(seed).choice([54, 130])) for _ in deps]
    layout = laid_out(heights, deps, width=WIDTH)
    depth = {number: place for place, layer in enumerate(layers_of(deps)) for number in layer}
    for (one, a), (other, b) in combinations(zip(layout.places, heights, strict=True), 2):
        is_apart = one.x != other.x or one.y + a < other.y or other.y + b < one.y
        assert is_apart
    assert layout.ways.keys() == {(dep, number) for number, before in enumerate(deps) for dep in before}
    for source, reader in layout.ways:
        points = layout.ways[source, reader]
        leaves, arrives = layout.places[source], layout.places[reader]
        assert points[0] == pytest.approx((leaves.x + WIDTH, leaves.y + heights[source] / 2))
        assert points[-1] == pytest.approx((arrives.x, arrives.y + heights[reader] / 2))
        assert len(points) == 2 * (
            depth[reader] - depth[source]
        )  # two for each layer that it passes, and its ends
        assert lies_between(layout, heights, (source, reader)) == []
    assert all(0 <= place.y <= layout.height and 0 <= place.x <= layout.width for place in layout.places)


def test_wires_that_need_not_cross_do_not() -> None:
    """a -> d, b -> c: the second layer is turned round."""
    layout = laid_out([54.0] * 4, [(), (), (1,), (0,)], width=WIDTH)
    assert layout.places[3].y < layout.places[2].y


def test_wires_that_pass_a_layer_side_by_side_lie_close() -> None:
    """A chain, and behind it a box that reads all of it, as another one does."""
    deps = [(), (0,), (1,), (2,), (3,), (0, 1, 2, 3, 4), (0, 1, 2, 3, 5)]
    layout = laid_out([54.0] * len(deps), deps, width=WIDTH)
    passing = sorted(layout.ways[number, 6][-2][1] for number in range(4))
    assert min(below - above for above, below in pairwise(passing)) == pytest.approx(8)
    assert layout.height < 200


def shown(plan: Plan, story: Story) -> dict[str, Box]:
    view = project(plan, story.events)
    return {box.title: box for box in boxes(diagram(plan), view.nodes)}


def test_a_fan_out_tells_how_many_items_are_done() -> None:
    found = shown(report_plan(), fanned_out(4).run("2.0", 40, 60))
    assert (found["sections"].note, found["sections"].share) == ("1/4 items", 0.25)
    assert found["sections"].state == "running"
    assert {box.share for title, box in found.items() if title != "sections"} == {None}


def test_a_list_that_grows_says_so() -> None:
    assert shown(stream_plan(), streaming())["each"].note == "0/3+ items"


def test_wires_tell_how_they_read() -> None:
    wires = {(wire.source, wire.reader): (wire.kind, wire.label) for wire in diagram(stream_plan()).wires}
    assert wires[0, 1] == ("for_each", "for_each")
    assert wires[0, 3] == ("stream", "stream")
    assert wires[2, 3] == (None, "")
    assert wires[4, 5] == ("fields", "fields: revenue, risk.level, profit")


def test_whom_a_mixture_asks_stands_in_its_box() -> None:
    plan = made_mixtures.plan()
    found = shown(plan, made_mixtures.over())
    assert list(found) == ["first", "answer", "last"]
    inside = [each.name for each in plan.nodes if each.asked_by is not None]
    assert [row.name for row in found["answer"].rows] == inside
    assert [(wire.source, wire.reader) for wire in diagram(plan).wires] == [(0, 1), (1, 2)]


def test_a_mixture_tells_its_answer() -> None:
    assert shown(made_mixtures.plan(), made_mixtures.over())["answer"].note == "mixture: '18'"
    assert shown(made_mixtures.plan(), made_mixtures.asking())["answer"].note == "mixture"


def test_more_experts_than_a_box_has_room_for_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagrams, "_MOST_ROWS", 2)
    drawn = diagram(made_mixtures.plan())
    assert [len(rows) for rows in drawn.rows] == [0, 2, 0]
    assert drawn.more == (0, 3, 0)


def star(size: int) -> Plan:
    nodes = [
        node("root"),
        *(node(f"leaf{place}", 0) for place in range(size)),
        node("end", *range(1, size + 1)),
    ]
    return link("star", nodes, output=size + 1)


def test_a_graph_that_fits_is_drawn_as_it_is() -> None:
    assert diagram(star(MOST_BOXES - 2)).summary == ""


def test_nodes_with_the_same_neighbours_share_a_box_where_there_are_many() -> None:
    plan = star(1_000)
    drawn = diagram(plan)
    assert [len(each) for each in drawn.members] == [1, 1_000, 1]
    assert drawn.summary.startswith("1,002 nodes in 3 boxes: nodes that read the same")
    story = Story().run("0", 0, 1).tell(2, "claimed", "1", holder="host/1/a").run("2", 2, 3)
    box = list(boxes(drawn, project(plan, story.events).nodes))[1]
    assert (box.title, box.state, box.share) == ("1,000 nodes", "running", 0.001)
    assert box.note == "1 running, 998 waiting, 1 done"


def test_one_failure_of_many_is_seen() -> None:
    plan = star(1_000)
    story = Story().run("0", 0, 1).tell(2, "failed", "7", holder="host/1/a", detail="no")
    assert list(boxes(diagram(plan), project(plan, story.events).nodes))[1].state == "failed"


@pytest.mark.parametrize("size", [500, 5_000])
def test_a_graph_without_twins_is_put_together_by_layers(size: int) -> None:
    nodes = [node(f"n{place}", *deps) for place, deps in enumerate(random_deps(size, 1))]
    drawn = diagram(link("large", nodes, output=size - 1))
    assert len(drawn.members) <= MOST_BOXES
    assert len(drawn.wires) <= MOST_WIRES
    assert sorted(number for each in drawn.members for number in each) == list(range(size))


def test_a_complete_graph_of_few_nodes_has_too_many_wires() -> None:
    nodes = [node(f"n{place}", *range(place)) for place in range(50)]
    drawn = diagram(link("complete", nodes, output=49))
    assert len(drawn.wires) <= MOST_WIRES


def charted(story: Story) -> Gantt:
    return gantt(timeline(report_plan(), story.events, now_ms=500))


def test_lanes_tell_the_same_as_the_timeline() -> None:
    found = charted(finished())
    rows = {row.label.strip(): row for row in found.rows}
    assert [at for at, _ in found.ticks] == [0, 160, 320, 480, COLUMNS]
    assert [words for _, words in found.ticks] == ["0", "100 ms", "200 ms", "300 ms", "400 ms"]
    (mark,) = rows["sections x3"].marks
    assert mark.column == 120 * COLUMNS // 400
    assert "process host/2/b died" in mark.words
    assert mark.words in rows["sections x3"].words
    assert rows["sections x3"].words.startswith("sections: done, ran ")


def test_a_lane_that_failed_is_marked() -> None:
    story = fanned_out().tell(60, "failed", "3", holder="host/1/a", detail="no")
    story.tell(60, "closed", detail="failed: no")
    rows = {row.lane.name: row for row in charted(story).rows}
    assert {row.lane.state for row in rows.values()} >= {"failed", "cancelled"}


def test_of_very_many_lanes_those_are_kept_that_people_want_to_see() -> None:
    plan = star(500)
    story = Story().run("0", 0, 1).tell(2, "failed", "400", holder="host/1/a", detail="no")
    story.run("300", 2, 90)
    found = gantt(timeline(plan, story.events, now_ms=100))
    names = [row.lane.name for row in found.rows]
    assert (len(found.rows), found.hidden) == (MOST_LANES, 502 - MOST_LANES)
    assert {"leaf399"} <= set(names)


def test_a_chart_that_grows_is_that_of_all_events() -> None:
    """... however often it is looked at on the way."""
    plan, events = report_plan(), again().events
    charting = Charting(plan)
    for place, event in enumerate(events, 1):
        charting.apply(event)
        grown = charting.timeline(charting.progress.view(), now_ms=2_000)
        assert grown == timeline(plan, events[:place], now_ms=2_000)
