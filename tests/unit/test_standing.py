"""What a reader is told that comes late, or goes on: what stands of what is there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.errors import WaitTimeout
from mosaic_queues.following import Found
from mosaic_tasks.inspection.parts import StreamEvent
from mosaic_tasks.inspection.standing import Patience, Standing, standing

STREAM = "stream"
Said = list[StreamEvent]


def event(number: int, kind: Any, offset: int, value: Any = None) -> StreamEvent:
    return StreamEvent(f"{number}-0", "x", kind, offset, value)


def said(*words: str | int) -> Said:
    """A stream: texts go on where they are, numbers take back to there."""
    events: Said = []
    length = 0
    for number, word in enumerate(words, 1):
        if isinstance(word, int):
            events.append(event(number, "retract", word))
            length = word
        else:
            events.append(event(number, "text", length, word))
            length += len(word)
    return events


def heard(events: Iterable[StreamEvent], before: str = "") -> str:
    """The text that a reader has; each event fits what it has."""
    for each in events:
        if each.kind == "retract":
            assert each.offset <= len(before)
            before = before[: each.offset]
        else:
            assert each.offset == len(before)
            before += each.value
    return before


class Pages:
    """A part that reads what it finds; the entries are the events themselves."""

    must_ask = False

    def __init__(self) -> None:
        self.is_over = False

    def ask(self, _: Any) -> None: ...

    def cursors(self) -> dict[str, str]:
        return {STREAM: "0-0"}

    def is_local(self, _: Any) -> bool:
        return True

    def take_in(self, found: Any) -> Iterator[StreamEvent]:
        for _, each in found.get(STREAM, ()):
            self.is_over = each.kind == "end"
            yield each


def part(*, last: int, is_fresh: bool = True, is_ordered: bool = True, **options: Any) -> Standing:
    """A part that was opened when the stream had `last` entries."""
    source: Any = SimpleNamespace(last_entry=lambda _: f"{last}-0")
    return Standing(Pages(), source, is_ordered=is_ordered, is_fresh=is_fresh, **options)


def taken(of: Standing, *events: StreamEvent, is_full: bool = False) -> Said:
    """What the reader is told of a page; behind a full one there may be more."""
    entries: Any = {STREAM: [(each.id.encode(), each) for each in events]} if events else {}
    found = Found(entries)
    found.may_be_more = is_full
    return list(of.take_in(found))


def by_entry(told: Sequence[StreamEvent]) -> list[tuple[str, Any]]:
    return [(each.kind, each.value if each.kind != "retract" else each.offset) for each in told]


def test_what_a_later_page_takes_back_is_left_out_of_an_earlier_one() -> None:
    reader, events = part(last=4), said("ab", "cd", 2, "ef", "gh", 4)
    assert taken(reader, *events[:2], is_full=True) == []
    assert taken(reader, *events[2:4], is_full=True) == []
    assert by_entry(taken(reader)) == [("text", "ab"), ("text", "ef")]
    assert by_entry(taken(reader, events[4])) == [("text", "gh")]
    assert taken(reader, events[5]) == [events[5]], "what was told is taken back as it is"


def test_a_reader_that_catches_up_waits_for_no_more_than_was_there() -> None:
    reader, events = part(last=2), said("a", "b", "c", "d")
    assert taken(reader, *events[:2], is_full=True) == []
    assert taken(reader, events[2], is_full=True) == events[:3]
    assert taken(reader, events[3], is_full=True) == events[3:]


def test_a_reader_that_finds_all_at_once_is_told_at_once_and_asks_no_more() -> None:
    source: Any = SimpleNamespace(last_entry=pytest.fail)
    reader, events = Standing(Pages(), source, is_ordered=True, is_fresh=True), said("ab", 1, "c")
    assert by_entry(taken(reader, *events)) == [("text", "a"), ("text", "c")]


def test_a_text_is_cut_and_its_id_is_behind_the_cut() -> None:
    events = said("abcd", 2, "ef")
    told = standing(events, held_before=0)
    assert told == [StreamEvent("2-0", "x", "text", 0, "ab"), events[2]]


def test_who_goes_on_is_told_to_take_back_what_it_has() -> None:
    events = said("abcd", "ef", 5, "g", 2, "h", 3, "i")
    reader = part(last=8, is_fresh=False)
    assert by_entry(taken(reader, *events[1:])) == [("retract", 2), ("text", "h"), ("text", "i")]
    again = part(last=3, is_fresh=False)
    assert taken(again, events[2]) == [events[2]]


def test_what_comes_out_of_order_is_taken_back_wherever_it_may_be_held() -> None:
    items = [event(1, "items", 3, ["d"]), event(2, "items", 0, ["a"]), event(3, "retract", 1)]
    fresh, other = part(last=3, is_ordered=False), part(last=3, is_ordered=False, is_fresh=False)
    assert by_entry(taken(fresh, *items)) == [("items", ["a"])]
    assert by_entry(taken(other, *items)) == [("items", ["a"]), ("retract", 1)]


def test_an_end_is_told_at_once() -> None:
    reader = part(last=9)
    (text,), end = said("a"), event(2, "end", 1)
    assert taken(reader, text, end, is_full=True) == [text, end]
    assert reader.is_over


def test_patience_ends_when_all_that_was_there_is_told() -> None:
    reader, events = part(last=2, patience=Patience(time.monotonic(), "too long")), said("a", "b", "c")
    assert taken(reader, *events[:2], is_full=True) == []
    assert taken(reader) == events[:2]
    with pytest.raises(WaitTimeout, match="too long"):
        taken(reader, events[2])


@st.composite
def streams(draw: st.DrawFn) -> Said:
    words: list[str | int] = []
    length = 0
    for _ in range(draw(st.integers(1, 12))):
        word = draw(st.text("abc", min_size=1, max_size=4) | st.integers(0, length))
        words.append(word)
        length = word if isinstance(word, int) else length + len(word)
    return said(*words)


@given(streams(), st.data())
def test_any_stream_read_in_any_way_is_heard_as_it_stands(events: Said, data: st.DataObject) -> None:
    stands = heard(events)
    told = standing(events, held_before=0)
    assert all(each.kind == "text" for each in told)
    assert heard(told) == stands

    place = data.draw(st.integers(0, len(told)))
    held = told[:place]
    rest = events[int(held[-1].id.partition("-")[0]) :] if held else events
    reader = part(last=len(events), is_fresh=not held)
    more = taken(reader, *rest, is_full=data.draw(st.booleans())) + taken(reader)
    assert heard(more, heard(held)) == stands
    assert more == told[place:], "and nothing is told twice"


@given(streams(), st.data())
def test_a_live_reader_hears_what_stands(events: Said, data: st.DataObject) -> None:
    there = data.draw(st.integers(0, len(events)))
    reader, told = part(last=there), Said()
    rest = list(events)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        told += taken(reader, *rest[:size], is_full=data.draw(st.booleans()))
        rest = rest[size:]
    assert heard(told + taken(reader)) == heard(events)
