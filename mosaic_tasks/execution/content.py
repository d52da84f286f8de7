"""What a stream says so far: the sum of its chunks, each retraction cutting what came before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from mosaic_queues.streams import Chunk

ContentKind = Literal["text", "item"]
UnpackMany = Callable[[Sequence[bytes]], list[Any]]


def joined(pieces: Sequence[Any], kind: ContentKind) -> Any:
    """One text, or one list, of several."""
    return "".join(pieces) if kind == "text" else [item for piece in pieces for item in piece]


def nothing(kind: ContentKind) -> Any:
    """The content of an empty stream."""
    return "" if kind == "text" else []


def cut(pieces: Sequence[Any], most: int) -> list[Any]:
    """The pieces up to `most` characters or items."""
    kept: list[Any] = []
    for piece in pieces:
        if most <= 0:
            break
        kept.append(piece[:most])
        most -= len(piece)
    return kept


def content_of(chunks: Sequence[Chunk], unpack: UnpackMany, kind: ContentKind) -> Any:
    """The text, or the list of items, that the chunks of one call make; payloads are read in one trip."""
    held = [chunk for chunk in chunks if chunk.kind == kind]
    values = iter(unpack([chunk.data for chunk in held]))
    pieces: list[Any] = []
    for chunk in chunks:
        if chunk.kind == "retract":
            pieces = cut(pieces, chunk.offset)
        elif chunk.kind == kind:
            pieces.append(next(values))
    return joined(pieces, kind)
