"""Reads what a node puts out while it runs: texts and items as they come, to its end.

A node that publishes is read from its stream. For a fan-out whose items no other node reads one by one, and for a node
that gives all at once, there is none: their outputs are read, and the run's events only say when. All of it goes
through the process's hub (`mosaic_queues.following`), so readers take no connection each and do not poll.
"""

from __future__ import annotations

import asyncio
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from mosaic_queues.content import contents_of
from mosaic_queues.errors import InputError
from mosaic_queues.events import Event, read_events
from mosaic_queues.following import Following, Found, last_entry
from mosaic_queues.ledger import Ledger
from mosaic_queues.payloads import PayloadStore
from mosaic_queues.streams import ENTRIES_READ, Chunk, chunks_of, position_of
from mosaic_queues.transitions import CLOSE
from mosaic_tasks.definition.plan import NodePlan

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
StreamKind = Literal["text", "items", "value", "retract", "end"]
_NOTHING = "0-0"
LOOK_S = 30.0
"""Whoever heard nothing for so long looks whether there still is a run: one that a server lost, or that is past its
retention before anybody was told of its end, says nothing any more."""
_AT_ONCE = 128
"""So many events are held at once: a fan-out may have a hundred thousand items that are done already."""
_INLINE = (b"\x00", b"\x01")
"""First bytes of the envelopes that hold their value; see `mosaic_queues.payloads`."""


class StreamEvent(NamedTuple):
    """A piece of a node's output, or what became of it.

    Attributes:
        id: give it as `after`, to go on behind it: nothing is left out, and nothing comes twice.
        node: its name.
        kind: `text` goes on at `offset`; `items` stand from `offset` on, those of a fan-out in the order in which they
            are done (one that comes again replaces the first); `value`: the whole output, neither text nor list, of
            a node that gives all at once; `retract`: what was said from `offset` on does not hold; `end`: that was all,
            of the length `offset`.
        offset: counts characters, or items.
        value: the text, the list of items, or the value.
    """

    id: str
    node: str
    kind: StreamKind
    offset: int = 0
    value: Any = None


class Source(NamedTuple):
    """The node that is read, of which run, and where the data are."""

    ledger: Ledger
    payloads: PayloadStore
    run_id: str
    number: int
    name: str

    def output(self) -> bytes | None:
        """The envelope of what the node put out; None: it has not closed."""
        return self.ledger.outputs(self.run_id, [str(self.number)])[0]

    def last_entry(self, stream: str) -> str:
        """The id of the latest entry of one of the run's streams."""
        return last_entry(self.ledger.client, stream)

    def is_run_over(self) -> bool:
        """Whether nothing more can come."""
        return self.ledger.run(self.run_id).status != "running"

    def closing(self, envelope: bytes, *, corrects: bool) -> Iterator[_Piece]:
        """The whole output of a closed node, and its end; `corrects`: instead of what was said before."""
        skipped = self.payloads.is_skipped(envelope) is not None
        value = "" if skipped else self.payloads.unpack(self.run_id, envelope)
        has_length = isinstance(value, (str, list))
        if corrects:
            yield _Piece("retract", 0, None)
        if not has_length or value:
            yield _Piece(_kind_of(value), 0, value)
        yield _Piece("end", len(value) if has_length else 1, None)


class _Piece(NamedTuple):
    """A stream event without its place."""

    kind: StreamKind
    offset: int
    value: Any


def _kind_of(value: Any) -> StreamKind:
    return "text" if isinstance(value, str) else "items" if isinstance(value, list) else "value"


class Part(Protocol[T_co]):
    """A way to read something of a run, such as a node.

    Attributes:
        is_over: nothing more comes.
    """

    is_over: bool

    def cursors(self) -> Mapping[str, str]:
        """The streams to follow."""

    def is_local(self, found: Found, /) -> bool:
        """Whether `take_in` needs no trip to the server for what was found."""

    def take_in(self, found: Found, /) -> Iterator[T_co]:
        """What came, as events. Called once before anything was found, too."""


class Pieces:
    """A node that publishes: its stream.

    An event's id is that of its entry. A node that closed and whose stream does not end, because it was skipped or has
    another output than it was saying, ends with `ENTRY/1` and so on, after its last entry.
    """

    def __init__(self, source: Source, after: str | None) -> None:
        entry, _, given = _checked(after or _NOTHING, r"\d+-\d+(/\d)?").partition("/")
        keys = source.ledger.keys
        self._stream = keys.stream(source.run_id, str(source.number))
        self._run_end = keys.run(source.run_id)[5]
        last = source.last_entry(self._stream) if after else _NOTHING
        self._source, self._cursor = source, min(entry, last, key=position_of)
        self._given = int(given or 0)
        self._must_look, self.is_over = True, False

    def cursors(self) -> Mapping[str, str]:
        """Its own stream, and that of the run's end."""
        return {self._stream: self._cursor, self._run_end: _NOTHING}

    def is_local(self, found: Found) -> bool:
        """Whether every chunk holds its value."""
        fields = [fields for entries in found.values() for _, fields in entries]
        return not self._must_look and all(each.get(b"d", b"")[:1] in _INLINE for each in fields)

    def take_in(self, found: Found) -> Iterator[StreamEvent]:
        """New chunks; and the end of a node that closed without saying so in its stream."""
        self._must_look = self._must_look or self._run_end in found
        chunks = chunks_of(found.get(self._stream, ()))
        if chunks:
            yield from self._events(chunks)
        elif self._must_look:
            self._must_look = False
            yield from self._look()

    def _look(self) -> Iterator[StreamEvent]:
        """Whether the node closed, or never will."""
        was_over, envelope = self._source.is_run_over(), self._source.output()
        if envelope is not None or was_over:
            yield from self._events(self._chunks_behind(self._cursor))
            if not self.is_over and envelope is not None:
                yield from self._closing(envelope)
            self.is_over = True

    def _chunks_behind(self, entry: str, most: int | None = None) -> list[Chunk]:
        run_id, stream = self._source.run_id, str(self._source.number)
        return self._source.ledger.chunks(run_id, stream, after=entry, most=most)

    def _events(self, chunks: list[Chunk]) -> Iterator[StreamEvent]:
        values = self._values(chunks)
        for chunk in chunks:
            self._cursor = chunk.id
            if chunk.kind == "end":
                if chunk is not chunks[-1] or self._chunks_behind(chunk.id, most=1):
                    continue  # the node ran again since
                self.is_over = True
            if chunk.kind in ("retract", "end"):
                yield StreamEvent(chunk.id, self._source.name, chunk.kind, chunk.offset)
            elif chunk.id in values:
                kind: StreamKind = "text" if chunk.kind == "text" else "items"
                yield StreamEvent(chunk.id, self._source.name, kind, chunk.offset, values[chunk.id])

    def _values(self, chunks: Iterable[Chunk]) -> dict[str, Any]:
        ledger, payloads, run_id = self._source.ledger, self._source.payloads, self._source.run_id
        return contents_of(
            chunks,
            lambda calls: ledger.outputs(run_id, calls),
            lambda envelopes: payloads.unpack_many(run_id, envelopes),
        )

    def _closing(self, envelope: bytes) -> Iterator[StreamEvent]:
        if self._has_ended():
            return
        pieces = self._source.closing(envelope, corrects=self._cursor != _NOTHING)
        for place, piece in enumerate(pieces, 1):
            if place > self._given:
                yield StreamEvent(f"{self._cursor}/{place}", self._source.name, *piece)

    def _has_ended(self) -> bool:
        """Whether the last entry that the reader knows is the stream's end."""
        client = self._source.ledger.client
        return any(
            chunk.kind == "end"
            for chunk in chunks_of(client.xrange(self._stream, self._cursor, self._cursor))
        )


class _Counted:
    """A node without a stream. An event's id is how many came up to it."""

    def __init__(self, source: Source, after: str | None) -> None:
        self._source, self._given = source, int(_checked(after or "0", r"\d{1,9}"))
        self._count, self.is_over = 0, False

    def cursors(self) -> Mapping[str, str]:
        """The run's events from now on; what they say is read elsewhere."""
        events = self._source.ledger.keys.run(self._source.run_id)[3]
        return {events: self._source.last_entry(events)}

    def is_local(self, _: Found) -> bool:
        """Never."""
        return False

    def _counted(self, pieces: Iterable[_Piece]) -> Iterator[StreamEvent]:
        for piece in pieces:
            self._count += 1
            if self._count > self._given and piece.value != []:
                yield StreamEvent(str(self._count), self._source.name, *piece)


class Whole(_Counted):
    """A node that gives all at once."""

    def take_in(self, _: Found) -> Iterator[StreamEvent]:
        """Its output, once it closed."""
        was_over = self._source.is_run_over()
        envelope = self._source.output()
        self.is_over = was_over or envelope is not None
        if envelope is not None:
            yield from self._counted(self._source.closing(envelope, corrects=False))


class Items(_Counted):
    """A fan-out whose items no node reads one by one: the outputs of its calls, as they are done."""

    def __init__(self, source: Source, after: str | None) -> None:
        super().__init__(source, after)
        self._seen, self._size, self._own = "0", 0, str(source.number)

    def take_in(self, _: Found) -> Iterator[StreamEvent]:
        """The items that were done, and the end once it closed. What was done before it ran again is counted only."""
        ledger = self._source.ledger
        events = read_events(ledger.client, ledger.keys, self._source.run_id, after=self._seen)
        begun = max((place for place, event in enumerate(events) if self._begins_again(event)), default=0)
        for place, event in enumerate(events):
            self._seen = event.id
            pieces = self._pieces(event)
            yield from self._counted(_unsaid(pieces) if place < begun else pieces)
            self.is_over = (self.is_over and place >= begun) or (
                event.kind == "closed" and event is events[-1]
            )
            if self.is_over:
                return

    def _begins_again(self, event: Event) -> bool:
        return event.kind == "redo" and self._own in event.calls

    def _pieces(self, event: Event) -> Iterator[_Piece]:
        own = [call for call in event.calls if call.partition(".")[0] == self._own]
        if event.kind == "expanded" and own:
            self._size = int(event.detail)
        elif self._begins_again(event):
            self._size = 0
            yield _Piece("retract", 0, None)
        elif event.kind in ("done", "skipped"):
            items = [call for call in own if call.partition(".")[2].isdigit()]
            yield from self._done(items)
            for call in own:
                if call not in items:
                    yield from self._closed(call)

    def _done(self, calls: list[str]) -> Iterator[_Piece]:
        """Finished calls. What was given before, or was taken back since, is counted only."""
        payloads, run_id = self._source.payloads, self._source.run_id
        new = calls[max(0, self._given - self._count) :]
        outputs = zip(new, self._source.ledger.outputs(run_id, new), strict=True)
        held = {call: envelope for call, envelope in outputs if envelope is not None}
        values = dict(zip(held, payloads.unpack_many(run_id, list(held.values())), strict=True))
        for call in calls:
            yield _Piece("items", int(call.partition(".")[2]), [values[call]] if call in values else [])

    def _closed(self, call: str) -> Iterator[_Piece]:
        self.is_over = True
        envelope = self._source.output()
        if call.endswith(f".{CLOSE}") or envelope is None:
            yield _Piece("end", self._size, None)
        else:  # skipped, or ended with its default
            yield from self._source.closing(envelope, corrects=self._count > 0)


def _unsaid(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    return (piece._replace(value=[]) for piece in pieces)


def part_of(source: Source, node: NodePlan, *, is_read: bool, after: str | None) -> Part[StreamEvent]:
    """How a node is read, from behind the event `after`.

    Args:
        is_read: another node reads it piece by piece.

    Raises:
        InputError: `after` is no id of its events.
    """
    if node.for_each is not None and not is_read:
        return Items(source, after)
    return (Pieces if node.publishes else Whole)(source, after)


def _checked(after: str, form: str) -> str:
    if re.fullmatch(form, after) is None:
        raise InputError(
            f"{after!r} is no id of this node's stream; take one from: mosaic stream RUN NODE --json"
        )
    return after


class _Reading(Generic[T]):
    """What both ways to read have in common.

    Args:
        open_part: how it is read; may need trips to the server.
        ring: called from another thread when there may be more.
        stands: raises where what is read is there no more; asks the server.
        page: entries of a stream that are held at once.
    """

    def __init__(
        self,
        ledger: Ledger,
        open_part: Callable[[], Part[T]],
        *,
        follow: bool,
        ring: Callable[[], None],
        stands: Callable[[], object],
        page: int = ENTRIES_READ,
    ) -> None:
        self._page, self._stands = page, stands
        self._ledger, self._open_part, self._follow, self._ring = ledger, open_part, follow, ring
        self._ready: deque[T] = deque()
        self._coming: Iterator[T] | None = None
        self._has_found = False
        self._is_over = False
        self._part: Part[T] | None = None
        self._following: Following | None = None
        self._leave: Callable[[], object] = _nothing_to_leave

    def _open(self) -> tuple[Part[T], Following]:
        """The node and its streams; opened once. A reading that is dropped leaves."""
        if self._part is None or self._following is None:
            client, keys = self._ledger.client, self._ledger.keys
            self._part = self._open_part()
            cursors = self._part.cursors()
            self._following = Following(client, keys, cursors, ring=self._ring, page=self._page)
            finalizer = weakref.finalize(self, self._following.leave)
            finalizer.atexit = False
            self._leave = finalizer
        return self._part, self._following

    def _step(self, found: Found | None = None) -> bool:
        """Takes what came or was found at hand, piece by piece; False: nothing came. Leaves when nothing more comes."""
        try:
            part, following = self._open()
            is_rest = self._coming is not None
            if self._coming is None:
                if found is None:
                    found = following.take(follow=self._follow)
                else:
                    following.advance(found)
                self._coming, self._has_found = part.take_in(found), bool(found)
            taken = list(islice(self._coming, _AT_ONCE))
            self._ready.extend(taken)
            if len(taken) < _AT_ONCE:
                self._coming = None
                self._is_over = self._is_over or part.is_over or not (self._has_found or self._follow)
            return self._has_found or is_rest  # for what came meanwhile nobody looked
        except BaseException:
            self._is_over = True
            raise
        finally:
            if self._is_over:
                self._leave()

    def _at_hand(self) -> Found | None:
        """What the next step can take in without a trip to the server; None: it needs one."""
        if self._part is None or self._following is None or self._coming is not None:
            return None
        found = self._following.at_hand()
        return found if found is not None and self._part.is_local(found) else None


def _nothing_to_leave() -> None:
    """A reading that was never opened."""


class Reading(_Reading[T]):
    """Events, one after the other: an iterator, to be closed where it is left before its end.

    `close` may be called from any thread; whoever waits for the next event then is told that there is none.
    """

    def __init__(
        self,
        ledger: Ledger,
        open_part: Callable[[], Part[T]],
        *,
        follow: bool,
        stands: Callable[[], object],
        page: int = ENTRIES_READ,
    ) -> None:
        self._bell = threading.Event()
        super().__init__(ledger, open_part, follow=follow, ring=self._bell.set, stands=stands, page=page)
        self._open()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._ready:
            if self._is_over:
                raise StopIteration
            self._bell.clear()
            if not (self._step() or self._ready or self._is_over):
                self._await_more()
        return self._ready.popleft()

    def _await_more(self) -> None:
        while not self._bell.wait(LOOK_S):
            self._stands()

    def close(self) -> None:
        """Ends it."""
        self._is_over = True
        self._leave()
        self._bell.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncReading(_Reading[T]):
    """Events for coroutines. One that is cancelled while it waits for an event loses none.

    What needs a trip to the server goes through a thread; what the hub has read already does not.
    """

    def __init__(
        self,
        ledger: Ledger,
        open_part: Callable[[], Part[T]],
        *,
        follow: bool,
        stands: Callable[[], object],
        page: int = ENTRIES_READ,
    ) -> None:
        loop, self._bell = asyncio.get_running_loop(), asyncio.Event()
        bell, self._looked_s = self._bell, loop.time()

        def ring() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(bell.set)

        super().__init__(ledger, open_part, follow=follow, ring=ring, stands=stands, page=page)
        self._trip: asyncio.Task[bool] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not await self._has_more():
            raise StopAsyncIteration
        return self._ready.popleft()

    async def open(self) -> None:
        """Finds what is read; the first event does so too.

        Raises:
            InputError: there is nothing of that kind.
        """
        await asyncio.to_thread(self._open)

    async def several(self) -> list[T]:
        """The next events: all that are at hand, and at least one; none when that was all."""
        await self._has_more()
        found = list(self._ready)
        self._ready.clear()
        return found

    async def _has_more(self) -> bool:
        """Waits for an event; False: that was all."""
        while not self._ready:
            if self._is_over:
                return False
            self._bell.clear()
            if not (await self._step_async() or self._ready or self._is_over):
                await self._await_more()
        return True

    async def _await_more(self) -> None:
        """Waits until it is rung. Whoever waits in pieces looks as often as whoever waits in one."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(self._looked_s + LOOK_S):
                    await self._bell.wait()
                    return
            except TimeoutError:
                await asyncio.to_thread(self._stands)
                self._looked_s = loop.time()  # not before: who is cancelled meanwhile looks again

    async def _step_async(self) -> bool:
        if self._trip is None:
            if (found := self._at_hand()) is not None:
                return self._step(found)
            self._trip = asyncio.create_task(asyncio.to_thread(self._step))
        trip = self._trip
        try:
            return await asyncio.shield(trip)
        finally:
            if trip.done():
                self._trip = None

    async def aclose(self) -> None:
        """Ends it."""
        self._is_over = True
        self._bell.set()
        await asyncio.to_thread(self._leave)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


__all__ = ["AsyncReading", "Part", "Reading", "Source", "StreamEvent", "part_of"]
