"""Chunks: pieces of a call's output that travel while it runs.

A stream belongs to a node, or to a part of its output. Its chunks are (call, attempt, flush, offset, size, kind, data),
in order; the attempt is the fence of the claim that published them. A text chunk's offset and size are characters, an
item chunk's are items. What a stream says so far is the sum of its chunks: each `retract` cuts what came before it down
to its offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

ChunkKind = Literal["text", "item", "retract", "end"]
Position = tuple[int, int]
"""The id of an entry of a stream; ids are compared as numbers."""
ENTRIES_READ = 512
"""Entries of a stream that one trip reads."""


class Chunk(NamedTuple):
    """A piece of a stream.

    Attributes:
        id: its entry in the stream; read on from here.
        attempt: the fence of the claim that published it.
        flush: counts what one attempt published at once, so that nothing is published twice.
        data: envelope of a text, or of a list of `size` items; empty where an item is the output of `call`.
    """

    id: str
    kind: ChunkKind
    call: str
    attempt: int
    flush: int
    offset: int
    size: int
    data: bytes


class Piece(NamedTuple):
    """A chunk to be published."""

    kind: ChunkKind
    offset: int
    size: int
    data: bytes


class Flush(NamedTuple):
    """Chunks to be published at once, the `number`th time by this attempt; `readers` are the mailboxes that read
    them."""

    stream: str
    number: int
    readers: Sequence[str]
    chunks: Sequence[Piece]

    def argument(self) -> tuple[Any, ...]:
        """As the scripts take it; the data follow apart."""
        heads = [(chunk.kind, chunk.offset, chunk.size) for chunk in self.chunks]
        return (self.stream, self.number, self.readers, heads)


class Letter(NamedTuple):
    """The message of a mailbox, for the transition that wakes it: put into the queue in the same step, where the broker
    is the ledger's server.

    Attributes:
        key: of the broker's list.
        text: the message as the broker holds it.
    """

    call: str
    queue: str
    key: str
    text: str


class Grow(NamedTuple):
    """New calls, in their `groups` by queue, with the envelopes of their items.

    Attributes:
        join: of a fan-out that still grows: what counts its calls; None: nothing does.
        total: calls so far, these included.
        fence: their claims count from here, above those of calls of the same names that were undone.
    """

    join: str | None
    groups: Sequence[tuple[str, Sequence[str]]]
    items: Sequence[bytes]
    total: int
    fence: int = 0

    @property
    def calls(self) -> list[str]:
        """All of them, in the order of their items."""
        return [call for _, calls in self.groups for call in calls]


class Undo(NamedTuple):
    """Calls of a fan-out whose items were taken back: from the item `first` on. `stream` is the node's own."""

    join: str
    stream: str
    first: int
    calls: Sequence[str]
    readers: Sequence[str]


class Seal(NamedTuple):
    """A fan-out is complete: `total` items; `close` is ready when all of them are done."""

    join: str
    total: int
    close: tuple[str, Sequence[str]]


class Commit(NamedTuple):
    """What a mailbox made of its chunks: its state, and what came out.

    Attributes:
        cursors: by stream, the entry up to which everything is consumed: its next session reads on from there.
        after: the entry up to which this session has read.
        seen: by stream, the last entry of each reading since the commit before.
        cut: calls that are not needed any more.
        decided: what a mixture came to, for the events: JSON.
    """

    cursors: Mapping[str, str]
    after: Mapping[str, str]
    state: bytes
    flushes: Sequence[Flush] = ()
    grow: Grow | None = None
    seal: Seal | None = None
    undo: Undo | None = None
    seen: Mapping[str, Sequence[str]] = {}
    cut: Sequence[str] = ()
    decided: str = ""

    def argument(self) -> dict[str, Any]:
        """As the script takes it; the data follow apart."""
        grow = self.grow
        return {
            "cursors": self.cursors,
            "after": self.after,
            "seen": self.seen,
            "flushes": [flush.argument() for flush in self.flushes],
            "grow": (grow.join or False, grow.groups, grow.calls, grow.total == len(grow.calls), grow.fence)
            if grow
            else False,
            "cut": self.cut,
            "decided": self.decided,
            "total": grow.total if grow else 0,
            "undo": self.undo or False,
            "seal": self.seal or False,
        }

    def data(self) -> list[bytes]:
        """State, emissions and items, in the order of the script."""
        emitted = [chunk.data for flush in self.flushes for chunk in flush.chunks]
        return [self.state, *emitted, *(self.grow.items if self.grow else ())]


class Drain(NamedTuple):
    """What a mailbox reads, with the cursors and the state of its last commit; `idle`: nothing was there, it waits
    now.

    Attributes:
        cut: calls that were cut, their shadows too, each with the fence of its claim, or of the one to come.
    """

    outcome: Literal["read", "idle", "sealed"]
    cursors: Mapping[str, str]
    state: bytes
    chunks: Mapping[str, Sequence[Chunk]]
    ready: Sequence[tuple[str, Sequence[str]]]
    cut: Sequence[tuple[str, int]] = ()


def position_of(entry_id: bytes | str) -> Position:
    """The id `ms-number` of an entry."""
    ms, _, number = (entry_id.decode() if isinstance(entry_id, bytes) else entry_id).partition("-")
    return int(ms), int(number or 0)


def chunks_of(entries: Any) -> list[Chunk]:
    """Chunks from entries as the server gives them."""
    return [_chunk(entry_id, fields) for entry_id, fields in entries]


def _chunk(entry_id: bytes, fields: Any) -> Chunk:
    pairs: dict[bytes, bytes] = fields if isinstance(fields, dict) else _paired(fields)
    kind, call, attempt, flush, offset, size = msgspec.msgpack.decode(pairs[b"c"])
    return Chunk(entry_id.decode(), kind, call, int(attempt), int(flush), int(offset), int(size), pairs[b"d"])


def _paired(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    names: Iterable[bytes] = flat[::2]
    return dict(zip(names, flat[1::2], strict=True))
