"""What a mailbox has read of a stream: in order, from where it was, without what was taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mosaic_queues.streams import Chunk, ChunkKind
from mosaic_tasks.execution.consuming import Source


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
