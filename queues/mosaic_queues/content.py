"""What a stream says so far: the sum of its chunks, each retraction cutting what came before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from mosaic_queues.streams import Chunk

ContentKind = Literal["text", "item"]
UnpackMany = Callable[[Sequence[bytes]], list[Any]]
Outputs = Callable[[Sequence[str]], Sequence[bytes | None]]
"""Gives the envelopes of finished calls."""


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


def contents_of(chunks: Iterable[Chunk], outputs: Outputs, unpack: UnpackMany) -> dict[str, Any]:
    """The content of each chunk, by its entry. An item without data is the output of its call, and gone when it was
    taken back since."""
    held = [chunk for chunk in chunks if chunk.kind in ("text", "item")]
    if all(chunk.data for chunk in held):
        values = unpack([chunk.data for chunk in held])
        return dict(zip((chunk.id for chunk in held), values, strict=True))
    named = iter(outputs([chunk.call for chunk in held if not chunk.data]))
    found = [(chunk, chunk.data or next(named)) for chunk in held]
    kept = [(chunk, envelope) for chunk, envelope in found if envelope is not None]
    values = unpack([envelope for _, envelope in kept])
    return {
        chunk.id: value if chunk.data else [value] for (chunk, _), value in zip(kept, values, strict=True)
    }


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
