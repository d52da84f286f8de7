"""What engines note while mixtures are measured, in the server: when each stream began and ended, and what it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
from redis import Redis

_NOTES, _STREAMS = "bench:notes", "bench:streams"


class Note(msgspec.Struct, frozen=True):
    """An engine's stream that is closed.

    Attributes:
        mark: of the run.
        name: of the model.
        begun_s, ended_s: Unix time.
        chars: that it wrote.
    """

    mark: str
    name: str
    begun_s: float
    ended_s: float
    chars: int


def begin(client: Redis) -> None:
    """A stream is open."""
    client.incr(_STREAMS)


def end(client: Redis, note: Note) -> None:
    """It is closed."""
    client.rpush(_NOTES, msgspec.json.encode(note))


def are_closed(client: Redis) -> bool:
    """Whether no stream is open."""
    streams = cast("bytes | None", client.get(_STREAMS))
    return int(streams or 0) == client.llen(_NOTES)


def take(client: Redis) -> list[Note]:
    """All of them, which are there no more then."""
    found = cast("list[bytes]", client.lrange(_NOTES, 0, -1))
    client.delete(_NOTES, _STREAMS)
    return [msgspec.json.decode(raw, type=Note) for raw in found]


def cancelled_ms(written: Sequence[Note], cut_off: Mapping[str, float]) -> list[float]:
    """How long those wrote on who wrote when they were cut off, at these times (Unix time, whole milliseconds)."""
    late = [(note, cut_off[note.name]) for note in written if note.name in cut_off]
    return [1e3 * (note.ended_s - at_s) for note, at_s in late if note.begun_s <= at_s <= note.ended_s]
