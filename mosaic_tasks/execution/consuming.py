"""A mailbox at work: reads the chunks that came, makes something of them, commits, and goes on until nothing is left.

A commit is one transition: where it read to, its state, and what came out. So a batch that fails, or whose process
dies, is as if it had never begun. When a producer takes back what was read already, the mailbox begins again with its
first state; what it puts out is compared with what it had put out, and only the difference is corrected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from mosaic_queues.errors import NotSerializable, ToolError
from mosaic_queues.ledger import UNDONE, Claim, Group, Ledger, Mark
from mosaic_queues.streams import Chunk, Commit, Drain, Grow, Seal, Undo, position_of
from mosaic_tasks.definition.plan import Batch
from mosaic_tasks.execution.content import ContentKind, UnpackMany, content_of, contents_of, joined, nothing
from mosaic_tasks.execution.markers import Marker, MarkerReader
from mosaic_tasks.execution.publishing import Outlet

STAY_S = 0.04
"""A mailbox that has worked stays for chunks that follow so soon: twice the time for which they wait for each other."""

SourceKind = Literal["text", "item", "sentence", "answers"]
"""How a stream is read: as text, as items, or as the sentences of a text, perhaps of one that whole answers make."""


class Source:
    """What a mailbox knows of one of the streams that it reads.

    Attributes:
        cursor: the last entry whose content is taken in.
        position: how much of the content was consumed: characters or items.
        end: the entry that says that the producer closed; None: it did not.
        cut_to: the producer took back what was consumed, down to this place; None: it did not.
    """

    def __init__(self, stream: str, *, kind: ContentKind, cursor: str = "0-0", position: int = 0) -> None:
        self.stream, self.kind, self.cursor, self.position = stream, kind, cursor, position
        self.end: str | None = None
        self.cut_to: int | None = None
        self._content: list[tuple[str, int, Any]] = []
        """Entry, offset and content, not consumed yet."""

    def take_in(self, chunks: Sequence[Chunk], values: Mapping[str, Any]) -> None:
        """Adds what came; `values` holds the content of each chunk by its entry, but for items that are taken back."""
        for chunk in chunks:
            if chunk.kind == "retract":
                self._cut(chunk.offset)
                self.end = None
            elif chunk.kind == "end":
                self.end = chunk.id
            elif chunk.id in values:
                self._content.append((chunk.id, chunk.offset, values[chunk.id]))
            self.cursor = chunk.id

    def _cut(self, most: int) -> None:
        """The producer takes back what lies beyond `most`."""
        self._content = [(entry, at, part[: most - at]) for entry, at, part in self._content if at < most]
        if most < self.position:
            self.cut_to = most if self.cut_to is None else min(most, self.cut_to)

    def available(self) -> int:
        """How much can be consumed now."""
        return sum(len(part) for _, part in self._contiguous())

    def _contiguous(self) -> list[tuple[int, Any]]:
        """Offset and content that follow on the position, in order; a fan-out's items come in any."""
        place, parts = self.position, []
        for _, at, part in sorted(self._content, key=lambda each: each[1]):
            if at > place:
                break
            if at + len(part) > place:
                parts.append((place, part[place - at :]))
                place = at + len(part)
        return parts

    def consume(self, most: int) -> Any:
        """The next content, at most so much of it (0: all): a text, or a list of items."""
        pieces: list[Any] = []
        for _, part in self._contiguous():
            taken = part[: most - sum(map(len, pieces))] if most else part
            pieces.append(taken)
            if most and sum(map(len, pieces)) >= most:
                break
        consumed = sum(map(len, pieces))
        self.position += consumed
        return joined(pieces, self.kind)

    def mark(self) -> str:
        """The cursor to commit: what is behind it and not consumed is read again; so is the end, which the next session
        must know of."""
        self._content = [each for each in self._content if each[1] + len(each[2]) > self.position]
        left = [entry for entry, _, _ in self._content] + ([self.end] if self.end else [])
        return _before(min(left, key=position_of)) if left else self.cursor


class SentenceSource(Source):
    """A text that is read sentence by sentence (headings count as such): what is not complete yet stays."""

    def available(self) -> int:
        """How many sentences can be consumed now."""
        return len(self._sentences())

    def consume(self, most: int) -> Any:
        """The next sentences, at most so many (0: all)."""
        found = self._sentences()
        taken = found[:most] if most else found
        is_all = self.end is not None and len(taken) == len(found)
        self.position += len(self._text()) if is_all else taken[-1].end if taken else 0
        return [marker.text for marker in taken]

    def _text(self) -> str:
        return "".join(part for _, part in self._contiguous())

    def _sentences(self) -> list[Marker]:
        """Those that are complete; their places count from the position."""
        reader = MarkerReader()
        return reader.feed(self._text()) + (reader.close() if self.end is not None else [])


class AnswerSource(SentenceSource):
    """The same of a text whose chunks are whole answers: each ends its last sentence."""

    def _sentences(self) -> list[Marker]:
        found: list[Marker] = []
        for place, part in self._contiguous():
            reader, offset = MarkerReader(), place - self.position
            told = [*reader.feed(part), *reader.close()]
            found += [each._replace(start=each.start + offset, end=each.end + offset) for each in told]
        return found


def _source(stream: str, kind: SourceKind) -> Source:
    match kind:
        case "sentence":
            return SentenceSource(stream, kind="text")
        case "answers":
            return AnswerSource(stream, kind="text")
        case _:
            return Source(stream, kind=kind)


def _before(entry: str) -> str:
    """The largest entry id before this one."""
    ms, number = position_of(entry)
    return f"{ms}-{number - 1}" if number else f"{ms - 1}-{2**64 - 1}"


class _Kept(msgspec.Struct, array_like=True):
    """What a commit stores.

    Attributes:
        state: of the fold, or of the agent.
        positions: by stream, how much was consumed.
        emitted: how much it put out, in the sense of its own stream; of a fan-out the calls that it made.
        said: how much its own stream held when it began again; 0 when it did not.
        finished: nothing more comes out of it.
        undone: how often calls were undone; what was claimed before is refused by it.
    """

    state: Any = None
    positions: dict[str, int] = {}
    emitted: int = 0
    said: int = 0
    finished: bool = False
    undone: int = 0


class Stores(NamedTuple):
    """How a mailbox reads and writes: the ledger, values as envelopes, calls into queues.

    Attributes:
        has_room: whether its process can spare a slot.
    """

    ledger: Ledger
    pack: Callable[[Any], bytes]
    unpack: UnpackMany
    publish: Callable[[Sequence[Group]], None]
    has_room: Callable[[], bool]


class Mailbox:
    """One session of a mailbox: what folds and growing fan-outs have in common.

    Args:
        streams: what it reads, by name, with the kind of its content.
        initial: the state before the first batch.
        on_loop: it runs on an event loop, which must not be blocked.

    Attributes:
        went_on: it has committed a batch.
        batch_since: monotonic time when it began with the batch that it works on.
    """

    def __init__(
        self,
        run_id: str,
        claim: Claim,
        *,
        holder: str,
        stores: Stores,
        streams: Mapping[str, SourceKind],
        batch: Batch,
        initial: Any = None,
        on_loop: bool = False,
    ) -> None:
        self._run_id, self._claim, self._holder, self._stores = run_id, claim, holder, stores
        self._batch, self._initial, self._kinds = batch, initial, dict(streams)
        self._sources = {stream: _source(stream, kind) for stream, kind in streams.items()}
        self._kept = _Kept(initial)
        self._on_loop, self._stays = on_loop, False
        self.went_on = False
        self.batch_since: float | None = None

    async def run(self, opened: Drain | None) -> bool:
        """Works until everything is read; False: it waits for more chunks now, and holds its call no more.

        Args:
            opened: what came with the claim.
        """
        self._open(opened or self._consume(None))
        waited = False
        while not self._kept.finished:
            if any(source.cut_to is not None for source in self._sources.values()):
                self._roll_back()
            elif self._is_enough() or (waited and self._available()):
                waited = False
                if not await self._work():
                    return False
            elif self._available() and await self._lingered():
                waited = True
            elif self._has_ended():
                self._finish()
            elif not (await self._more_comes() or self._read()):
                return False
        return True

    # -- for the two kinds ---------------------------------------------------------------------------------------

    async def _work(self) -> bool:
        """Consumes a batch and commits it. False: nothing more is there, it went idle."""
        raise NotImplementedError

    def _roll_back(self) -> None:
        """A producer took back what was consumed."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Every producer closed, and everything is consumed."""
        raise NotImplementedError

    # -- reading -------------------------------------------------------------------------------------------------

    def _consume(self, commit: Commit | None, *, need: int | None = None) -> Drain:
        drain = self._stores.ledger.consume(
            self._run_id,
            self._claim,
            holder=self._holder,
            sources=list(self._sources),
            need=need,
            commit=commit,
        )
        self._stores.publish(drain.ready)
        return drain

    def _open(self, drain: Drain) -> None:
        """Takes up the last commit."""
        if drain.state:
            self._kept = msgspec.convert(self._stores.unpack([drain.state])[0], _Kept)
        for stream, source in self._sources.items():
            source.cursor = drain.cursors.get(stream, "0-0")
            source.position = self._kept.positions.get(stream, 0)
        self._take_in(drain)

    def _take_in(self, drain: Drain) -> int:
        """Adds what was read; returns how many chunks that were."""
        for stream, chunks in drain.chunks.items():
            self._sources[stream].take_in(chunks, self._contents(chunks))
        return sum(map(len, drain.chunks.values()))

    def _contents(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        def outputs(calls: Sequence[str]) -> Sequence[bytes | None]:
            return self._stores.ledger.outputs(self._run_id, calls)

        return contents_of(chunks, outputs, self._stores.unpack)

    def _read(self) -> bool:
        """Reads on behind what is taken in. False: nothing was there, it went idle."""
        drain = self._consume(self._commit(), need=max(1, self._batch.min_items - self._available()))
        self._take_in(drain)
        return drain.outcome != "idle"

    def _available(self) -> int:
        return sum(source.available() for source in self._sources.values())

    def _has_ended(self) -> bool:
        return all(source.end is not None for source in self._sources.values())

    def _is_enough(self) -> bool:
        available = self._available()
        return available >= self._batch.min_items or bool(available and self._has_ended())

    async def _lingered(self) -> bool:
        """Waits for more, up to the batch's longest wait. False: it waits without holding its call."""
        if not self._batch.max_wait_s:
            return False
        until = time.monotonic() + self._batch.max_wait_s
        while not self._is_enough() and (left := until - time.monotonic()) > 0:
            await self._await_chunks(left)
        return True

    async def _more_comes(self) -> bool:
        """Whether chunks come while it stays for a moment, which spares what waking it costs.

        It stays only after it has worked, and where its process has room.
        """
        return self._stays and self._stores.has_room() and await self._await_chunks(STAY_S)

    async def _await_chunks(self, time_s: float) -> bool:
        """Waits for chunks, at most so long. True: there are some."""
        cursors = {stream: source.cursor for stream, source in self._sources.items()}
        wait = partial(
            self._stores.ledger.await_chunks, self._run_id, cursors, block_ms=max(1, int(time_s * 1000))
        )
        found = await asyncio.to_thread(wait) if self._on_loop else wait()
        for stream, chunks in found.items():
            self._sources[stream].take_in(chunks, self._contents(chunks))
        return bool(found)

    # -- committing ----------------------------------------------------------------------------------------------

    def _commit(self, **more: Any) -> Commit:
        self._kept.positions = {stream: source.position for stream, source in self._sources.items()}
        cursors = {stream: source.mark() for stream, source in self._sources.items()}
        after = {stream: source.cursor for stream, source in self._sources.items()}
        return Commit(cursors, after, self._packed(), **more)

    def _packed(self) -> bytes:
        try:
            return self._stores.pack(list(msgspec.structs.astuple(self._kept)))
        except NotSerializable as error:
            raise ToolError(f"the state after a batch cannot be stored: {error}") from error

    def _commit_and_read(self, commit: Commit) -> bool:
        """Commits, and reads on; goes idle where nothing more is there. False: it did."""
        self._stays, self.went_on = self._batch.min_items == 1, True
        waits = not ((self._stays and self._stores.has_room()) or self._available() or self._has_ended())
        drain = self._consume(commit, need=self._batch.min_items if waits else None)
        self._take_in(drain)
        return drain.outcome != "idle"


class Applied(NamedTuple):
    """What a batch came to: the next state, and what to put out (a text or a list)."""

    state: Any
    emitted: Any


class Folding(Mailbox):
    """A mailbox whose batches change a state and put something out.

    Args:
        own: its own stream: name, kind of content, and who reads it.
        apply: takes the state and the batch by stream.
        finish: what is put out in the end, from the last state.
        is_skipped: whether one that it read was skipped, and so it is too.
    """

    def __init__(
        self,
        *args: Any,
        own: tuple[str, ContentKind, Sequence[str]],
        apply: Callable[[Any, Mapping[str, Any]], Awaitable[Applied]],
        finish: Callable[[Any], Any],
        is_skipped: Callable[[], bool],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._own, self._apply, self._last, self._is_skipped = own, apply, finish, is_skipped
        self._outlet = Outlet(*own, nothing(own[1]))

    @property
    def state(self) -> Any:
        """The state after the last batch."""
        return self._kept.state

    def whole(self) -> Any:
        """All that it put out."""
        stream, kind, _ = self._own
        return content_of(self._stores.ledger.chunks(self._run_id, stream), self._stores.unpack, kind)

    def marks(self) -> list[Mark]:
        """What ends its stream."""
        stream, _, readers = self._own
        return [Mark(stream, "end", self._kept.emitted, 0, readers)]

    def _open(self, drain: Drain) -> None:
        """Takes up the last commit; what it said before it began again is what it is compared with."""
        super()._open(drain)
        said = self.whole() if self._kept.said > self._kept.emitted else nothing(self._own[1])
        self._outlet = Outlet(*self._own, said, position=self._kept.emitted)

    async def _work(self) -> bool:
        batch = {stream: source.consume(self._batch.max_items) for stream, source in self._sources.items()}
        self.batch_since = time.monotonic()
        try:
            state, emitted = await self._apply(self._kept.state, batch)
        finally:
            self.batch_since = None
        self._outlet.add(emitted)
        self._kept.state, self._kept.emitted = state, self._outlet.position
        return self._commit_and_read(self._flushed())

    def _flushed(self) -> Commit:
        flush = self._outlet.take(self._stores.pack)
        return self._commit(flushes=[flush] if flush else [])

    def _roll_back(self) -> None:
        """Begins again, with the first state; reads all that there is first, so that no old retraction comes later."""
        said = self.whole()
        self._kept = _Kept(self._initial, said=len(said))
        self._outlet.begin_again(said)
        self._sources = {stream: _source(stream, kind) for stream, kind in self._kinds.items()}
        self._take_in(self._consume(Commit({}, {}, self._packed())))
        for stream, source in self._sources.items():
            chunks = self._stores.ledger.chunks(self._run_id, stream, after=source.cursor)
            source.take_in(chunks, self._contents(chunks))

    def _finish(self) -> None:
        if not self._is_skipped():
            self._outlet.add(self._last(self._kept.state))
        self._outlet.end()
        self._kept.emitted, self._kept.finished = self._outlet.position, True
        self._consume(self._flushed())


class Growing(Mailbox):
    """The mailbox of a fan-out that grows: a call for each item as it comes.

    Args:
        number: of the node.
        queue: of its calls.
        close: its closing call.
        readers: who reads its results one by one.
        most: how many items it may have.
    """

    def __init__(
        self,
        *args: Any,
        number: int,
        queue: str,
        close: Group,
        readers: Sequence[str],
        most: int,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._readers = readers
        self._number, self._queue, self._close, self._most = number, queue, close, most
        self._join = f"n{number}"

    async def _work(self) -> bool:
        (source,) = self._sources.values()
        items = source.consume(self._batch.max_items)
        first, total = self._kept.emitted, self._kept.emitted + len(items)
        if total > self._most:
            raise ToolError(
                f"for_each over more than {self._most} items; split the list, or set MOSAIC_MAX_ITEMS"
            )
        self._kept.emitted = total
        envelopes = [self._stores.pack(item) for item in items]
        calls = self._calls(first, total)
        grow = Grow(self._join, self._queue, calls, envelopes, total, fence=self._kept.undone * UNDONE)
        return self._commit_and_read(self._commit(grow=grow))

    def _calls(self, first: int, total: int) -> list[str]:
        return [f"{self._number}.{item}" for item in range(first, total)]

    def _roll_back(self) -> None:
        """The calls of items that were taken back are undone; those before them stay."""
        (source,) = self._sources.values()
        assert source.cut_to is not None
        first, total = source.cut_to, self._kept.emitted
        source.position, source.cut_to, self._kept.emitted = first, None, first
        self._kept.undone += 1
        undo = Undo(self._join, str(self._number), first, self._calls(first, total), self._readers)
        self._take_in(self._consume(self._commit(undo=undo)))

    def _finish(self) -> None:
        self._kept.finished = True
        seal = Seal(self._join, self._kept.emitted, self._close)
        self._consume(self._commit(seal=seal))
