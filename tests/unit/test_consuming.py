"""What a mailbox has read of a stream: in order, from where it was, without what was taken back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.streams import Chunk, ChunkKind
from mosaic_tasks.execution.streams.sources import Places, Source


def source(*chunks: tuple[ChunkKind, int, Any], kind: Any = "item", position: int = 0) -> Source:
    """What has read these: kind, offset, content."""
    made = Source("0", kind=kind, position=position)
    take_in(made, chunks)
    return made


def take_in(made: Source, chunks: Sequence[tuple[ChunkKind, int, Any]]) -> None:
    first = int(made.cursor.partition("-")[0]) + 1
    read = [
        Chunk(f"{entry}-0", kind, "0", 1, 1, offset, len(content), b"")
        for entry, (kind, offset, content) in enumerate(chunks, first)
    ]
    made.take_in(read, {chunk.id: content for chunk, (_, _, content) in zip(read, chunks, strict=True)})


def results(made: Source, *places: int) -> None:
    """Has read that these calls have ended."""
    first = int(made.cursor.partition("-")[0]) + 1
    read = [
        Chunk(f"{entry}-0", "item", f"0.{at}", 1, 0, at, 1, b"") for entry, at in enumerate(places, first)
    ]
    made.take_in(read, {})


def test_content_is_consumed_in_order_whatever_the_order_of_entries() -> None:
    made = source(("item", 2, [2]), ("item", 0, [0]), ("item", 4, [4]), ("item", 1, [1]))
    assert made.available() == 3
    assert made.consume(0) == [0, 1, 2]
    assert made.available() == 0


def test_a_batch_ends_inside_a_chunk() -> None:
    made = source(("text", 0, "abc"), ("text", 3, "def"), kind="text")
    assert [made.consume(4), made.consume(4)] == ["abcd", "ef"]


def test_what_was_consumed_before_is_passed_over() -> None:
    made = source(("item", 0, [0, 1]), ("item", 2, [2]), position=1)
    assert made.consume(0) == [1, 2]


def test_the_cursor_stays_before_what_is_not_consumed() -> None:
    made = source(("item", 0, [0]), ("item", 1, [1, 2]), ("item", 3, [3]))
    made.consume(2)
    assert made.mark() == f"1-{2**64 - 1}"
    made.consume(0)
    assert made.mark() == "3-0"


def test_the_end_is_read_again_by_the_next_session() -> None:
    made = source(("item", 0, [0]), ("end", 1, []))
    made.consume(0)
    assert made.end == "2-0"
    assert made.mark() == f"1-{2**64 - 1}"


def test_what_is_taken_back_before_it_is_consumed_was_never_there() -> None:
    made = source(("item", 0, [0, 1]), ("retract", 1, []), ("item", 1, [5]))
    assert (made.consume(0), made.cut_to) == ([0, 5], None)


def test_what_is_taken_back_after_it_was_consumed_is_told() -> None:
    made = source(("item", 0, [0, 1, 2]))
    made.consume(0)
    take_in(made, [("retract", 2, []), ("item", 2, [7]), ("retract", 1, [])])
    assert made.cut_to == 1


# -- results of calls ------------------------------------------------------------------------------------------------


def test_results_that_came_early_are_not_read_again_nor_wanted_yet() -> None:
    made = source()
    results(made, 3, 1, 2)
    assert (list(made.wanted()), made.mark(), made.ahead.stretches) == ([], "3-0", [(1, 4)])
    results(made, 0)
    assert list(made.wanted()) == [0, 1, 2, 3]


def test_results_are_loaded_once_it_is_their_turn() -> None:
    made = source()
    results(made, 0, 1, 3)
    made.load(made.wanted(), {0: "a", 1: "b"})
    assert list(made.wanted()) == []
    assert made.consume(1) == ["a"]
    assert (made.mark(), made.ahead.stretches) == ("3-0", [(1, 2), (3, 4)])


def test_a_result_that_is_gone_is_not_waited_for() -> None:
    """It was taken back since: what says so stands behind it in the stream."""
    made = source()
    results(made, 0, 1, 2)
    made.load(made.wanted(), {0: "a", 2: "c"})
    assert (made.consume(0), list(made.wanted())) == (["a"], [])


def test_results_that_are_taken_back_are_not_ahead_any_more() -> None:
    made = source()
    results(made, 1, 2, 3)
    take_in(made, [("retract", 2, [])])
    assert made.ahead.stretches == [(1, 2)]


@given(st.lists(st.integers(0, 30)), st.integers(0, 30), st.integers(0, 30))
def test_places_are_a_set(added: list[int], first: int, size: int) -> None:
    places = Places()
    for place in added:
        places.add(place)
    assert all(a[1] < b[0] for a, b in pairwise(places.stretches))
    places.drop(first, first + size)
    expected = set(added) - set(range(first, first + size))
    assert [place for a, b in places.stretches for place in range(a, b)] == sorted(expected)
    assert list(places.following(first)) == list(takewhile(expected.__contains__, range(first, 32)))
