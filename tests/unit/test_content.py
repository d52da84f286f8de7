"""What a stream says: the sum of its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mosaic_queues.content import content_of, cut, joined, nothing
from mosaic_queues.streams import Chunk


def chunk(kind: Any, offset: int, content: Any = "") -> Chunk:
    return Chunk("1-0", kind, "0", 1, 1, offset, len(content), msgspec.json.encode(content))


def unpack(envelopes: Sequence[bytes]) -> list[Any]:
    return [msgspec.json.decode(envelope) for envelope in envelopes]


def test_pieces_are_joined() -> None:
    assert (joined(["a", "bc"], "text"), joined([[1], [], [2, 3]], "item")) == ("abc", [1, 2, 3])
    assert (nothing("text"), nothing("item")) == ("", [])


def test_pieces_are_cut_inside_a_piece() -> None:
    assert cut(["ab", "cd", "ef"], 3) == ["ab", "c"]
    assert cut(["ab", "cd"], 9) == ["ab", "cd"]
    assert cut(["ab"], 0) == []


def test_a_retraction_cuts_what_came_before_it_and_not_what_comes_after() -> None:
    said = [
        chunk("text", 0, "abc"),
        chunk("text", 3, "de"),
        chunk("retract", 2),
        chunk("text", 2, "xy"),
        chunk("end", 4),
    ]
    assert content_of(said, unpack, "text") == "abxy"
    items = [chunk("item", 0, [1, 2]), chunk("retract", 0), chunk("item", 0, [3])]
    assert content_of(items, unpack, "item") == [3]
