"""Reads what a node puts out while it runs: texts and items as they come, to its end.

A node that publishes is read from its stream. For a fan-out whose items no other node reads one by one, and for a node
that gives all at once, there is none: their outputs are read, and the run's events only say when. All of it goes
through the process's hub (`mosaic_queues.following`), so readers take no connection each and do not poll.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from mosaic_queues.content import contents_of
from mosaic_queues.errors import InputError
from mosaic_queues.events import Event, read_events
from mosaic_queues.following import FROM_NOW_ON, NOTHING, Following, Found, last_entry
from mosaic_queues.ledger import Ledger
from mosaic_queues.payloads import PayloadStore
from mosaic_queues.streams import ENTRIES_READ, Chunk, chunks_of, position_of
from mosaic_queues.transitions import CLOSE
from mosaic_tasks.definition.plan import NodePlan

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
StreamKind = Literal["text", "items", "value", "retract", "end"]
LOOK_S = 30.0
"""Whoever heard nothing for so long looks whether there still is a run: one that a server lost, or that is past its
retention before anybody was told of its end, says nothing any more."""
_AT_ONCE = 128
"""So many events are held at once: a fan-out may have a hundred thousand items that are done already."""
_INLINE = (b"\x00", b"\x01")
"""First bytes of the envelopes that hold their value; see `mosaic_queues.payloads`."""
_BARE = (b"\x96\xa3end", b"\x96\xa7retract")
"""How the heads of chunks begin that have no value, as msgpack."""


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

    def ask_state(self, pipe: Any) -> None:
        """Asks whether the run goes on, and for the output."""
        self.ledger.ask_status(pipe, self.run_id)
        pipe.hget(self.ledger.keys.run(self.run_id)[2], str(self.number))

    def state(self, status: bytes | None, envelope: bytes | None) -> tuple[bool, bytes | None]:
        """Whether nothing more can come, and the envelope of what the node put out; None: it has not closed."""
        return not self.ledger.is_running(self.run_id, status), envelope

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
        must_ask: what `take_in` is given next must come from the server, with the answers to `ask`.
    """

    is_over: bool

    @property
    def must_ask(self) -> bool:
        """See above."""

    def cursors(self) -> Mapping[str, str]:
        """The streams to follow."""

    def ask(self, pipe: Any, /) -> object:
        """What it has to know besides what its streams say; they are read after this."""

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
        entry, _, given = _checked(after or NOTHING, r"\d+-\d+(/\d)?").partition("/")
        keys = source.ledger.keys
        self._stream = keys.stream(source.run_id, str(source.number))
        self._run_end = keys.run(source.run_id)[5]
        last = source.last_entry(self._stream) if after else NOTHING
        self._source, self._cursor = source, min(entry, last, key=position_of)
        self._given = int(given or 0)
        self._held: list[Chunk] = []
        self.must_ask, self.is_over = True, False

    def cursors(self) -> Mapping[str, str]:
        """Its own stream, and that of the run's end."""
        return {self._stream: self._cursor, self._run_end: NOTHING}

    def ask(self, pipe: Any) -> None:
        """Whether the node closed, or never will."""
        self._source.ask_state(pipe)

    def is_local(self, found: Found) -> bool:
        """Whether every chunk holds its value, or has none."""
        return all(
            fields[b"d"][:1] in _INLINE or fields[b"c"].startswith(_BARE)
            for _, fields in found.get(self._stream, ())
        )

    def take_in(self, found: Found) -> Iterator[StreamEvent]:
        """New chunks; and the end of a node that closed without saying so in its stream."""
        was_over, envelope = self._source.state(*found.answers) if found.answers else (False, None)
        has_closed = was_over or envelope is not None
        self.must_ask = self._run_end in found or (has_closed and found.may_be_more)
        yield from self._events(self._known(found))
        if has_closed and not (found.may_be_more or self.is_over):
            if envelope is not None:
                yield from self._closing(envelope)
            self.is_over = True

    def _known(self, found: Found) -> list[Chunk]:
        """The chunks that came. An end waits for what may be behind it."""
        chunks = self._held + chunks_of(found.get(self._stream, ()))
        may_go_on = found.may_be_more and bool(chunks) and chunks[-1].kind == "end"
        self._held = [chunks.pop()] if may_go_on else []
        return chunks

    def _events(self, chunks: list[Chunk]) -> Iterator[StreamEvent]:
        values = self._values(chunks)
        for chunk in chunks:
            self._cursor = chunk.id
            if chunk.kind == "end" and chunk is not chunks[-1]:
                continue  # the node ran again since
            if chunk.kind in ("retract", "end"):
                self.is_over = chunk.kind == "end"
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
        pieces = self._source.closing(envelope, corrects=self._cursor != NOTHING)
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
        return {self._source.ledger.keys.run(self._source.run_id)[3]: FROM_NOW_ON}

    def _counted(self, pieces: Iterable[_Piece]) -> Iterator[StreamEvent]:
        for piece in pieces:
            self._count += 1
            if self._count > self._given and piece.value != []:
                yield StreamEvent(str(self._count), self._source.name, *piece)


class Whole(_Counted):
    """A node that gives all at once."""

    def __init__(self, source: Source, after: str | None) -> None:
        super().__init__(source, after)
        self.must_ask = True

    def ask(self, pipe: Any) -> None:
        """For its output."""
        self._source.ask_state(pipe)

    def is_local(self, _: Found) -> bool:
        """Always: what happened only has it ask."""
        return True

    def take_in(self, found: Found) -> Iterator[StreamEvent]:
        """Its output, once it closed."""
        self.must_ask = bool(found)
        if not found.answers:
            return
        was_over, envelope = self._source.state(*found.answers)
        self.is_over = was_over or envelope is not None
        if envelope is not None:
            yield from self._counted(self._source.closing(envelope, corrects=False))


class Items(_Counted):
    """A fan-out whose items no node reads one by one: the outputs of its calls, as they are done."""

    must_ask = False

    def __init__(self, source: Source, after: str | None) -> None:
        super().__init__(source, after)
        self._seen, self._size, self._own = "0", 0, str(source.number)

    def ask(self, _: Any) -> None:
        """Nothing: its events say it all."""

    def is_local(self, _: Found) -> bool:
        """Never."""
        return False

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
        ring: called when there may be more: in the thread of `loop`, else in another one.
        stands: raises where what is read is there no more; asks the server.
        page: entries of a stream that are held at once.
    """

    def __init__(
        self,
        ledger: Ledger,
        open_part: Callable[[], Part[T]],
        *,
        follow: bool,
        ring: Callable[[], object],
        loop: asyncio.AbstractEventLoop | None,
        stands: Callable[[], object],
        page: int,
    ) -> None:
        self._ledger, self._open_part, self._follow, self._stands = ledger, open_part, follow, stands
        self._options: dict[str, Any] = {"ring": ring, "loop": loop, "page": page}
        self._ready: deque[T] = deque()
        self._coming: Iterator[T] | None = None
        self._may_be_more = False
        self._must_step = True
        """The next step may give something though nothing rang."""
        self._is_over = False
        self._part: Part[T] | None = None
        self._following: Following | None = None
        self._leave: Callable[[], object] = _nothing_to_leave

    def _open(self) -> tuple[Part[T], Following]:
        """The node and its streams; opened once. A reading that is dropped leaves."""
        if self._part is None or self._following is None:
            client, keys = self._ledger.client, self._ledger.keys
            self._part = self._open_part()
            self._following = Following(client, keys, self._part.cursors(), **self._options)
            finalizer = weakref.finalize(self, self._following.leave)
            finalizer.atexit = False
            self._leave = finalizer
        return self._part, self._following

    def _step(self) -> None:
        """Takes what came, piece by piece, from the server where it has to. Leaves when nothing more comes."""
        try:
            part, following = self._open()
            found = None
            if self._coming is None:
                found = following.take(follow=self._follow, ask=part.ask if part.must_ask else None)
            self._take_in(part, found)
        except BaseException:
            self._is_over = True
            raise
        finally:
            if self._is_over:
                self._leave()

    def _take_in(self, part: Part[T], found: Found | None) -> None:
        """What was found as events; None: more of the last time, while others may have come."""
        if found is not None:
            self._coming, self._may_be_more = part.take_in(found), found.may_be_more
        taken = list(islice(self._coming or (), _AT_ONCE))
        self._ready.extend(taken)
        if len(taken) < _AT_ONCE:
            self._coming = None
            is_all = not (self._follow or self._may_be_more or part.must_ask)
            self._is_over = self._is_over or part.is_over or is_all
        self._must_step = found is None or self._coming is not None or self._may_be_more or part.must_ask

    def _at_hand(self) -> Found | None:
        """What the next step can take in without a trip to the server; None: it needs one."""
        part, following = self._part, self._following
        if part is None or following is None or self._coming is not None or part.must_ask:
            return None
        found = following.at_hand()
        return found if found is not None and part.is_local(found) else None

    def _wait_s(self) -> float:
        """It waits for so long, if at all."""
        return math.inf


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
        super().__init__(
            ledger, open_part, follow=follow, ring=self._bell.set, loop=None, stands=stands, page=page
        )
        self._open()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._ready:
            if self._is_over:
                raise StopIteration
            if not (self._must_step or self._bell.is_set()):
                self._await_more()
            self._bell.clear()
            if not self._is_over:
                self._step()
        return self._ready.popleft()

    def _await_more(self) -> None:
        """Until it rings, or has to look."""
        wait_s = self._wait_s()
        if not self._bell.wait(min(LOOK_S, wait_s)) and wait_s > LOOK_S:
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


class _Bell:
    """What a coroutine waits at. It is rung in the loop's thread; its alarm outlasts many waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._event, self._until_s = loop, asyncio.Event(), 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self.is_rung = False

    def ring(self) -> None:
        """There may be more."""
        self.is_rung = True
        self._event.set()

    def hush(self) -> None:
        """It is rung anew from now on."""
        self.is_rung = False
        self._event.clear()

    async def wait(self, until_s: float) -> None:
        """Until it rings, or the time has come by the loop's clock."""
        self._until_s = until_s
        if self._alarm is None or self._alarm.when() > until_s:
            self._set_alarm()
        await self._event.wait()

    def _set_alarm(self) -> None:
        self.end()
        self._alarm = self._loop.call_at(self._until_s, self._wake)

    def _wake(self) -> None:
        self._alarm = None
        if self._loop.time() < self._until_s:  # a later wait goes on for longer
            self._set_alarm()
        else:
            self._event.set()

    def end(self) -> None:
        """Nobody waits at it any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


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
        self._loop = asyncio.get_running_loop()
        self._bell, self._look_s = _Bell(self._loop), self._loop.time() + LOOK_S
        super().__init__(
            ledger, open_part, follow=follow, ring=self._bell.ring, loop=self._loop, stands=stands, page=page
        )
        self._trip: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not (self._ready or await self._has_more()):
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
            if self._trip is None:
                if not (self._must_step or self._bell.is_rung or self._is_over):
                    await self._await_more()
                if self._is_over:
                    return False
                self._bell.hush()
                if (found := self._at_hand()) is not None:
                    await self._step_here(found)
                    continue
            await self._step_there()
        return True

    async def _await_more(self) -> None:
        """Until it rings, or has to look. Whoever waits in pieces looks as often as whoever waits in one."""
        await self._bell.wait(min(self._look_s, self._loop.time() + self._wait_s()))
        if self._bell.is_rung:
            self._look_s = self._loop.time() + LOOK_S
        elif self._loop.time() >= self._look_s:
            await asyncio.to_thread(self._stands)
            self._look_s = self._loop.time() + LOOK_S  # not before: who is cancelled meanwhile looks again

    async def _step_here(self, found: Found) -> None:
        """A step without a trip."""
        part, following = self._open()
        try:
            following.advance(found)
            self._take_in(part, found)
        except BaseException:
            self._is_over = True
            raise
        finally:
            if self._is_over:
                await self._leave_here()

    async def _step_there(self) -> None:
        """A step with one; who is cancelled meanwhile finds it when it comes again."""
        if self._trip is None:
            self._trip = asyncio.create_task(asyncio.to_thread(self._step))
        trip = self._trip
        try:
            await asyncio.shield(trip)
        finally:
            if trip.done():
                self._trip = None

    async def aclose(self) -> None:
        """Ends it."""
        self._is_over = True
        self._bell.ring()
        await self._leave_here()

    async def _leave_here(self) -> None:
        """Leaves; a thread is needed for the last one that does."""
        self._bell.end()
        end = self._following.part() if self._following is not None else None
        if end is not None:
            await asyncio.to_thread(end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


__all__ = ["AsyncReading", "Part", "Reading", "Source", "StreamEvent", "part_of"]
