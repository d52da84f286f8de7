"""What an attempt publishes, compared with what earlier ones did."""

from __future__ import annotations

from typing import Any

import pytest

from mosaic_queues.streams import Piece
from mosaic_queues.values import encode
from mosaic_tasks.execution.publishing import Outlet


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
