"""Plans and events made by hand, for the tests of what reads them."""

from __future__ import annotations

from typing import Any

from mosaic_queues.events import Event, EventKind
from mosaic_tasks.definition.plan import Batch, Edge, NodePlan, Plan, Ref, Retry, link

START_MS = 1_000_000


def node(name: str, *deps: int, **options: Any) -> NodePlan:
    """A tool node on `mosaic.cpu` that waits for `deps`."""
    return NodePlan(name=name, kind="tool", queue=options.pop("queue", "mosaic.cpu"), deps=deps, **options)


def report_plan() -> Plan:
    """commits -> people -> sections (a fan-out, two attempts) -> report; tickets -> report."""
    nodes = [
        node("commits"),
        node("people", 0),
        node("sections", 1, for_each=Ref(1), retry=Retry(attempts=2)),
        node("tickets", queue="mosaic.tickets"),
        node("report", 2, 3),
    ]
    return link("weekly-report", nodes, output=4)


class Story:
    """Events of a run, told in milliseconds after its start."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, at_ms: int, kind: EventKind, *calls: str, **fields: Any) -> Story:
        """Adds the next event."""
        event_id = f"{START_MS + at_ms}-{len(self.events)}/0"
        self.events.append(Event(event_id, START_MS + at_ms, kind, calls, **fields))
        return self

    def run(self, call: str, start_ms: int, end_ms: int, *, holder: str = "host/1/a") -> Story:
        """A call that is claimed and done."""
        return self.tell(start_ms, "claimed", call, holder=holder).tell(end_ms, "done", call, holder=holder)


def opened() -> Story:
    """A run of `report_plan` that has just been opened."""
    story = Story().tell(0, "opened", detail="weekly-report")
    return story.tell(0, "ready", "0", detail="mosaic.cpu").tell(0, "ready", "3", detail="mosaic.tickets")


def fanned_out(items: int = 3) -> Story:
    """... whose fan-out has just been opened, at 30 ms."""
    story = opened().run("0", 5, 10).run("1", 10, 20).tell(20, "claimed", "2", holder="host/1/a")
    story.tell(30, "expanded", "2", holder="host/1/a", detail=str(items))
    return story.tell(30, "ready", *(f"2.{item}" for item in range(items)), detail="mosaic.cpu")


def finished() -> Story:
    """... that came to its end, after a retry of item 1 and a loss of item 2, at 400 ms."""
    story = fanned_out().run("2.0", 40, 60).tell(60, "claimed", "2.1", holder="host/1/a")
    story.tell(70, "retry", "2.1", holder="host/1/a", detail="ToolError: no", pause_ms=100)
    story.tell(80, "claimed", "2.2", holder="host/2/b").tell(120, "lost", "2.2", holder="host/2/b")
    story.run("2.2", 130, 140).run("2.1", 175, 200).tell(200, "ready", "2.c", detail="mosaic.cpu")
    story.run("2.c", 205, 210).run("3", 210, 300).tell(300, "ready", "4", detail="mosaic.cpu")
    return story.run("4", 350, 400).tell(400, "closed", detail="done")


def stream_plan(*, min_items: int = 1) -> Plan:
    """numbers -> each (a fan-out that grows), numbers -> totals (reads the stream, and waits for mark);
    extract -> ratios (reads two fields), extract -> prose -> tone (reads the text)."""
    nodes = [
        node("numbers", publishes="item"),
        node("each", 0, for_each=Ref(0), edges=(Edge(0, "for_each", ((),)),), publishes="item"),
        node("mark"),
        node("totals", 0, 2, edges=(Edge(0, "stream", ((),)),), batch=Batch(min_items=min_items)),
        node("extract"),
        node("ratios", 4, edges=(Edge(4, "fields", (("revenue",), ("risk", "level"), ("profit",))),)),
        node("prose", publishes="text"),
        node("tone", 6, edges=(Edge(6, "stream", ((),)),)),
        node("sums", 1, edges=(Edge(1, "stream", ((),)),)),
    ]
    return link("streams", nodes, output=3)


def streaming() -> Story:
    """A run of `stream_plan` whose fan-out has three items so far, and reads on."""
    story = Story().tell(0, "opened", detail="streams").tell(0, "claimed", "0", "6", holder="host/1/a")
    story.tell(10, "claimed", "1.m", holder="host/1/a").tell(
        11, "expanded", "1.m", detail="3", holder="host/1/a"
    )
    return story.tell(11, "ready", "1.0", "1.1", "1.2", detail="mosaic.cpu")


def again() -> Story:
    """`finished`, then sections and what depends on it run again from 1,000 ms to 1,300 ms, with one item."""
    story = finished().tell(1_000, "redo", "2", "4", holder="host/3/c", detail="1")
    story.tell(1_000, "ready", "2", detail="mosaic.cpu").tell(1_010, "claimed", "2", holder="host/1/a")
    story.tell(1_020, "expanded", "2", holder="host/1/a", detail="1").run("2.0", 1_020, 1_100)
    story.run("2.c", 1_105, 1_110).tell(1_110, "ready", "4", detail="mosaic.cpu")
    return story.run("4", 1_200, 1_300).tell(1_300, "closed", detail="done")
