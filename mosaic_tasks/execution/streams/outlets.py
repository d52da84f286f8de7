"""One stream of a running call: what was published of it, and what waits to be.

The rule for a second attempt: what the first one published stands until the new one differs. An attempt that gives the
same again is compared with it and publishes only what goes beyond; where it differs, it retracts to that place first.
So consumers keep what they have, and what a stream says in the end is always the call's output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mosaic_queues.content import ContentKind, joined
from mosaic_queues.streams import Flush, Piece
from mosaic_queues.values import encode

COALESCE_S = 0.04
"""Chunks wait for each other so long; the first one of a stream does not wait."""
FLUSH_TEXT = 16_384
"""Characters that are published without waiting."""
FLUSH_ITEMS = 256
GATHER_S = 0.25
"""Chunks that go to the object store wait for each other so long."""
OBJECT_BYTES = 262_144
"""An object of this size is worth its trip: chunks that make one are published without waiting."""
GATHERED = 64
"""Chunks of the object store hold at most so many times what others do, however small it is."""
ENTRY_BYTES = 64
"""What an entry of a stream takes of the server beside its data."""


class Outlet:
    """One stream of a running call.

    Args:
        inside_bytes: so much of the stream stays in the server.

    Attributes:
        earlier: what earlier attempts published, up to where this one differs.
        position: where the next piece of this attempt belongs: characters or items.
        waiting: how much waits: characters or items.
        enough: so many characters or items are published without waiting.
        is_outside: the server holds enough of the stream: the rest goes to the object store, in larger chunks. Chunks
            stay as long as their run, so a stream that is beyond its limit remains so.
        flushes: how often this attempt has published.
        flushed_at: monotonic time when it last did, or could have; 0: it never could.
    """

    def __init__(
        self,
        stream: str,
        kind: ContentKind,
        readers: Sequence[str],
        earlier: Any,
        *,
        position: int = 0,
        flushes: int = 0,
        inside_bytes: float = math.inf,
    ) -> None:
        self.stream, self.kind, self.readers = stream, kind, readers
        self.earlier, self.position, self.flushes = earlier, position, flushes
        self.flushed_at = 0.0
        self._pieces: list[Any] = []
        self._waiting: list[Any] = []
        self.waiting = 0
        self.enough, self.is_outside = FLUSH_TEXT if kind == "text" else FLUSH_ITEMS, False
        self._retract: int | None = None
        self._is_over = False
        self._limit_bytes, self._entries = inside_bytes, 0
        self._inside_bytes, self._inside_size = 0, 0

    # -- when it is published ------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether anything is to be published."""
        return bool(self._waiting) or self._retract is not None

    @property
    def due_at(self) -> float:
        """When what waits is to be published (monotonic); 0: at once, as its first piece is and what is enough;
        infinite: nothing waits."""
        if not self.is_due:
            return math.inf
        if self.waiting >= self.enough or not self.flushed_at:
            return 0.0
        return self.flushed_at + (GATHER_S if self.is_outside else COALESCE_S)

    def count(self, stored_bytes: int, size: int) -> None:
        """Notes a chunk of the stream: what it takes of the server, and what it holds (characters or items)."""
        if self.is_outside:
            return
        self._entries += 1
        self._inside_bytes += stored_bytes
        self._inside_size += size
        if self._inside_bytes + ENTRY_BYTES * self._entries > self._limit_bytes:
            worth = OBJECT_BYTES * self._inside_size // max(self._inside_bytes, 1)  # as large as those before
            self.enough, self.is_outside = max(1, min(worth, GATHERED * self.enough)), True

    # -- what it says --------------------------------------------------------------------------------------------

    def add(self, piece: Any) -> bool:
        """Takes the next piece: a text, or a list of items.

        Returns:
            whether something is due earlier by that: it is the first that waits, or makes it enough.
        """
        self._pieces.append(piece)
        if self.position < len(self.earlier):
            new = self._differing(piece)
        else:
            new = piece
            self.position += len(piece)
        if not new:
            return False
        self._waiting.append(new)
        before, self.waiting = self.waiting, self.waiting + len(new)
        return before == 0 or before < self.enough <= self.waiting

    def _differing(self, piece: Any) -> Any:
        """What of the piece is not what an earlier attempt published at this place."""
        same = self._confirmed(piece)
        self.position += len(piece)
        if same < len(piece):
            self._drop_earlier(self.position - len(piece) + same)
        return piece[same:]

    def _confirmed(self, piece: Any) -> int:
        """How much of the piece is what an earlier attempt published at this place."""
        known = self.earlier[self.position : self.position + len(piece)]
        if not known or self._are_same(known, piece[: len(known)]):
            return len(known)
        pairs = enumerate(zip(known, piece, strict=False))
        return next(place for place, pair in pairs if not self._are_same(*pair))

    def _are_same(self, old: Any, new: Any) -> bool:
        """Items are compared as they are stored: 1 is not True, and a tuple has become a list."""
        return bool(old == new) if self.kind == "text" else encode(old) == encode(new)

    def _drop_earlier(self, place: int) -> None:
        """From `place` on this attempt says something else."""
        if len(self.earlier) > place:
            self._retract = place
            self.earlier = self.earlier[:place]

    def end(self) -> None:
        """The call is over: what an earlier attempt said beyond it is taken back."""
        self._is_over = True
        self._drop_earlier(self.position)

    def differs(self, whole: Any) -> bool:
        """Whether this attempt's pieces do not make `whole`."""
        return bool(joined(self._pieces, self.kind) != whole)

    def said(self) -> Any:
        """What the stream says once everything is published."""
        return joined(self._pieces, self.kind) + self.earlier[self.position :]

    def begin_again(self, said: Any) -> None:
        """What the stream says so far counts as an earlier attempt's."""
        self.earlier, self.position = said, 0
        self._pieces = []

    def mend(self, found: Any) -> None:
        """The server says `found`, and no more: whatever is missing of this attempt waits to be published again."""
        pieces = joined(self._pieces, self.kind)
        self._waiting, self.waiting, self._retract = [], 0, None
        self.begin_again(found)
        self.add(pieces)
        if self._is_over:
            self.end()

    def take(self, pack: Callable[[Any], bytes]) -> Flush | None:
        """What is due, as one flush."""
        if not self.is_due:
            return None
        pieces: list[Piece] = []
        waiting = joined(self._waiting, self.kind)
        start = self.position - len(waiting)
        if self._retract is not None:
            pieces.append(Piece("retract", self._retract, 0, b""))
        if waiting:
            pieces.append(Piece(self.kind, start, len(waiting), pack(waiting)))
        self._waiting, self.waiting, self._retract = [], 0, None
        self.flushes += 1
        return Flush(self.stream, self.flushes, self.readers, pieces)
