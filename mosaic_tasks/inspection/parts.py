"""The parts of a run that can be read: a node that publishes, one that gives all at once, and a fan-out.

A node that publishes is read from its stream. For a fan-out whose items no other node reads one by one, and for a node
that gives all at once, there is none: their outputs are read, and the run's events only say when. How a part is read
step by step stands in `mosaic_tasks.inspection.reading`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from mosaic_queues.content import contents_of
from mosaic_queues.errors import InputError
from mosaic_queues.events import Event, read_events
from mosaic_queues.following import FROM_NOW_ON, NOTHING, Found, last_entry
from mosaic_queues.ledger import Ledger
from mosaic_queues.payloads import PayloadStore
from mosaic_queues.streams import Chunk, chunks_of, position_of
from mosaic_queues.transitions import CLOSE
from mosaic_tasks.definition.plan import NodePlan

T_co = TypeVar("T_co", covariant=True)
StreamKind = Literal["text", "items", "value", "retract", "end"]
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
        # What was asked holds for where the stream stood then: what came behind that may be of a node that runs again.
        may_be_late = found.may_be_more or self._stream in found
        self.must_ask = self._run_end in found or (has_closed and may_be_late)
        yield from self._events(self._known(found))
        if has_closed and not (may_be_late or self.is_over):
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
            self._cursor, self._given = chunk.id, 0
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


__all__ = ["Items", "Part", "Pieces", "Source", "StreamEvent", "StreamKind", "Whole", "part_of"]
