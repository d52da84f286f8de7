"""What an attempt publishes, compared with what earlier ones did."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mosaic_queues.streams import Piece
from mosaic_queues.values import encode
from mosaic_tasks.execution.streams.outlets import (
    COALESCE_S,
    ENTRY_BYTES,
    FLUSH_ITEMS,
    FLUSH_TEXT,
    GATHER_S,
    GATHERED,
    OBJECT_BYTES,
    Outlet,
)


def outlet(earlier: Any) -> Outlet:
    return Outlet("0", "text" if isinstance(earlier, str) else "item", [], earlier)


def published(made: Outlet) -> list[Piece]:
    flush = made.take(encode)
    return list(flush.chunks) if flush is not None else []


def test_what_is_the_same_is_not_said_again() -> None:
    made = outlet("abc")
    made.add("ab")
    made.add("cd")
    assert published(made) == [Piece("text", 3, 1, encode("d"))]


def test_what_differs_is_taken_back_first() -> None:
    made = outlet([1, 2, 3])
    made.add([1, 5])
    assert published(made) == [Piece("retract", 1, 0, b""), Piece("item", 1, 1, encode([5]))]


def test_what_an_attempt_does_not_say_any_more_is_taken_back() -> None:
    made = outlet("abc")
    made.add("a")
    made.end()
    assert published(made) == [Piece("retract", 1, 0, b"")]


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        (1, True, False),
        (1, 1.0, False),
        ([1], (1,), True),
        (float("nan"), float("nan"), True),
        ({}, [], False),
    ],
)
def test_items_are_compared_as_they_are_stored(old: Any, new: Any, is_same: bool) -> None:
    made = outlet([old])
    made.add([new])
    assert (published(made) == []) is is_same


def test_what_waits_is_counted() -> None:
    made = outlet([1])
    made.add([1, 2, 3])
    made.add([4])
    assert made.waiting == 3
    made.take(encode)
    assert (made.waiting, made.is_due) == (0, False)


def test_who_adds_hears_whether_something_is_due_earlier() -> None:
    """So it need not say so with each token."""
    made = outlet("ab")
    told = [made.add(piece) for piece in ("a", "b", "c", "d", "", "e" * FLUSH_TEXT, "f")]
    assert told == [False, False, True, False, False, True, False]
    made.take(encode)
    assert [made.add("g"), made.add("h")] == [True, False]


def test_the_first_piece_of_all_is_due_at_once_and_what_is_enough() -> None:
    made = outlet("")
    assert made.due_at == math.inf
    made.add("a")
    assert made.due_at == 0.0
    made.take(encode)
    made.flushed_at = 5.0
    made.add("b")
    assert made.due_at == 5.0 + COALESCE_S
    made.add("c" * FLUSH_TEXT)
    assert made.due_at == 0.0


def test_who_begins_again_takes_back_what_an_earlier_attempt_said_beyond() -> None:
    made = outlet("abcd")
    made.add("ab")
    made.begin_again(made.said())
    made.add("abx")
    assert published(made) == [Piece("retract", 2, 0, b""), Piece("text", 2, 1, encode("x"))]


def test_flushes_are_counted_on_by_who_begins_again() -> None:
    """A number that was there before would be taken for a repetition."""
    made = outlet("")
    made.add("a")
    first = made.take(encode)
    made.begin_again(made.said())
    made.add("b")
    second = made.take(encode)
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (1, 2)


def test_what_cannot_be_stored_goes_on_waiting() -> None:
    made = outlet([])
    made.add([1])

    def refuse(_value: Any) -> bytes:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        made.take(refuse)
    assert published(made) == [Piece("item", 0, 1, encode([1]))]


# -- a server that lost something --------------------------------------------------------------------------------------


def test_what_the_server_lost_is_said_again() -> None:
    made = outlet("")
    for piece in ("ab", "cd"):
        made.add(piece)
        published(made)
    made.add("e")
    made.mend("ab")
    assert published(made) == [Piece("text", 2, 3, encode("cde"))]


def test_what_the_server_has_and_the_attempt_does_not_say_is_taken_back_again() -> None:
    made = outlet("abc")
    made.add("a")
    made.end()
    made.mend("abc")
    assert published(made) == [Piece("retract", 1, 0, b"")]


# -- a stream that is too large for the server -------------------------------------------------------------------------


def test_what_is_beyond_the_limit_waits_until_it_is_worth_an_object() -> None:
    made = Outlet("0", "item", [], [], inside_bytes=1000)
    made.flushed_at = 5.0
    made.add([0])
    assert (made.is_outside, made.enough, made.due_at) == (False, FLUSH_ITEMS, 5.0 + COALESCE_S)
    made.count(2000, 10)
    assert (made.is_outside, made.enough, made.due_at) == (True, OBJECT_BYTES // 200, 5.0 + GATHER_S)
    made.add([0] * made.enough)
    assert made.due_at == 0.0


@pytest.mark.parametrize(
    ("item_bytes", "enough"), [(1, GATHERED * FLUSH_ITEMS), (2 * OBJECT_BYTES, 1)], ids=["small", "large"]
)
def test_an_object_has_neither_too_many_items_nor_none(item_bytes: int, enough: int) -> None:
    made = Outlet("0", "item", [], [], inside_bytes=10)
    made.count(100 * item_bytes, 100)
    assert made.enough == enough


def test_entries_count_however_small_their_data_are() -> None:
    made = Outlet("0", "text", [], "", inside_bytes=10 * ENTRY_BYTES)
    for _ in range(10):
        assert not made.is_outside
        made.count(2, 1)
    assert made.is_outside
