"""The end of what a node says, of which a page holds no more than it shows, however much there is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_tasks.gateway.pages import texts
from mosaic_tasks.gateway.pages.texts import _folded, _Items, _Text
from mosaic_tasks.inspection.parts import StreamEvent, StreamKind
from mosaic_tasks.inspection.wording import counted

MOST = 5


@pytest.fixture(autouse=True, scope="module")
def _little_room() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "MOST_CHARACTERS", MOST)
        patch.setattr(texts, "MOST_ITEMS", MOST)
        yield


def event(kind: StreamKind, offset: int, value: Any = None) -> StreamEvent:
    return StreamEvent("1-0", "say", kind, offset, value)


PIECES = st.lists(st.one_of(st.text("abcdef", max_size=12), st.integers(0, 30)), max_size=20)
"""Texts that are said, and places to which is taken back."""


@given(PIECES)
def test_the_end_of_a_text_is_shown_with_its_length(pieces: list[str | int]) -> None:
    whole, events = "", list[StreamEvent]()
    for piece in pieces:
        if isinstance(piece, int):
            events.append(event("retract", min(piece, len(whole))))
            whole = whole[:piece]
        else:
            events.append(event("text", len(whole), piece))
            whole += piece
    shown = _folded(events)
    assert whole.endswith(shown.text)
    assert len(shown.text) == len(whole) or f" of {counted(len(whole), 'character')}" in shown.left_out
    if not any(isinstance(piece, int) for piece in pieces):
        assert len(shown.text) == min(len(whole), MOST)


@given(st.permutations(range(14)), st.integers(0, 14))
def test_the_last_items_are_shown_in_whatever_order_they_come(places: list[int], cut: int) -> None:
    events = [event("items", place, [place]) for place in places]
    shown = _folded(events)
    assert shown.left_out == f"the last {MOST} of 14 items"
    items = _Items()
    for each in events:
        items.put(each.offset, each.value)
    assert items.count == 14
    items.cut(cut)
    assert items.count <= cut
    assert all(int(line) < cut for line in items.shown().text.split())


def test_no_more_is_held_than_twice_what_is_shown() -> None:
    text, items = _Text(), _Items()
    for place in range(100):
        text.put(3 * place, "abc")
        items.put(place, ["x"])
        assert len(text._end) <= 2 * MOST + 3
        assert len(items._held) <= 2 * MOST + 1
    assert text.shown().left_out == "the last 5 of 300 characters"
    assert items.shown().left_out == "the last 5 of 100 items"
