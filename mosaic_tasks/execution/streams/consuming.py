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
from typing import Any, NamedTuple

import msgspec
import structlog

from mosaic_queues.content import ContentKind, UnpackMany, content_of, nothing
from mosaic_queues.errors import IllegalTransition, NotSerializable, ToolError
from mosaic_queues.ledger import Ledger
from mosaic_queues.streams import ENTRIES_READ, Chunk, Commit, Drain, Grow, Seal, Undo
from mosaic_queues.transitions import UNDONE, Claim, Group, Mark
from mosaic_tasks.definition.plan import Batch
from mosaic_tasks.execution.streams.outlets import Outlet
from mosaic_tasks.execution.streams.sources import Places, SourceKind, Stretch, source_of
from mosaic_tasks.observability.current import heard

log = structlog.get_logger(__name__)

STAY_S = 0.04
"""A mailbox that has worked stays for chunks that follow so soon: twice the time for which they wait for each other."""


class _Kept(msgspec.Struct, array_like=True):
    """What a commit stores.

    Attributes:
        state: of the fold, or of the agent.
        positions: by stream, how much was consumed.
        emitted: how much it put out, in the sense of its own stream; of a fan-out the calls that it made.
        said: how much its own stream held when it began again; 0 when it did not.
        finished: nothing more comes out of it.
        undone: how often calls were undone; what was claimed before is refused by it.
        ahead: by stream, the results of calls that it has read of before their turn.
    """

    state: Any = None
    positions: dict[str, int] = {}
    emitted: int = 0
    said: int = 0
    finished: bool = False
    undone: int = 0
    ahead: dict[str, list[Stretch]] = {}


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
        self._sources = {stream: source_of(stream, kind) for stream, kind in streams.items()}
        self._kept = _Kept(initial)
        self._on_loop, self._stays = on_loop, False
        self._began_again = False
        self.went_on = False
        self.batch_since: float | None = None

    async def run(self, opened: Drain | None) -> bool:
        """Works until everything is read; False: it waits for more chunks now, and holds its call no more.

        Args:
            opened: what came with the claim.
        """
        drain = opened
        while True:
            try:
                return await self._session(drain or self._consume(None))
            except IllegalTransition as error:
                if self._began_again:
                    raise
                self._forget(error)
                drain = None

    def _forget(self, error: Exception) -> None:
        """The server has lost what this session read, or its last commit: it begins again from the last that is
        there."""
        log.warning("mailbox.gap", what="its last batches are done again", run=self._run_id, error=str(error))
        self._began_again, self._kept = True, _Kept(self._initial)
        self._sources = {stream: source_of(stream, kind) for stream, kind in self._kinds.items()}

    async def _session(self, opened: Drain) -> bool:
        self._open(opened)
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
        self._began_again = self._began_again and commit is None
        return drain

    def _open(self, drain: Drain) -> None:
        """Takes up the last commit."""
        if drain.state:
            self._kept = msgspec.convert(self._stores.unpack([drain.state])[0], _Kept)
        for stream, source in self._sources.items():
            source.cursor = drain.cursors.get(stream, "0-0")
            source.position = self._kept.positions.get(stream, 0)
            source.ahead = Places(self._kept.ahead.get(stream, ()))
        self._take_in(drain)

    def _take_in(self, drain: Drain) -> int:
        """Adds what was read; returns how many chunks that were."""
        for stream, chunks in drain.chunks.items():
            self._add(stream, chunks)
        return sum(map(len, drain.chunks.values()))

    def _add(self, stream: str, chunks: Sequence[Chunk]) -> None:
        """Adds what was read of a stream, and the results of calls whose turn it is then."""
        heard(chunks)
        held = [chunk for chunk in chunks if chunk.data]
        values = self._stores.unpack([chunk.data for chunk in held]) if held else []
        source = self._sources[stream]
        source.take_in(chunks, {chunk.id: value for chunk, value in zip(held, values, strict=True)})
        while wanted := source.wanted()[:ENTRIES_READ]:
            source.load(wanted, self._results(stream, wanted))

    def _results(self, stream: str, places: Sequence[int]) -> dict[int, Any]:
        """Results of calls, by their places, but for those that were taken back since."""
        calls = [f"{stream}.{place}" for place in places]
        envelopes = self._stores.ledger.outputs(self._run_id, calls)
        found = {place: envelope for place, envelope in zip(places, envelopes, strict=True) if envelope}
        return dict(zip(found, self._stores.unpack(list(found.values())), strict=True))

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
            self._add(stream, chunks)
        return bool(found)

    # -- committing ----------------------------------------------------------------------------------------------

    def _commit(self, **more: Any) -> Commit:
        self._kept.positions = {stream: source.position for stream, source in self._sources.items()}
        cursors = {stream: source.mark() for stream, source in self._sources.items()}
        after = {stream: source.cursor for stream, source in self._sources.items()}
        ahead = {stream: source.ahead.stretches for stream, source in self._sources.items()}
        self._kept.ahead = {stream: stretches for stream, stretches in ahead.items() if stretches}
        seen = {stream: source.seen for stream, source in self._sources.items()}
        for source in self._sources.values():
            source.seen = []
        return Commit(cursors, after, self._packed(), seen=seen, **more)

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
        return [Mark(stream, "end", self._kept.emitted, 0, readers, True)]

    def _open(self, drain: Drain) -> None:
        """Takes up the last commit; what it said before it began again is what it is compared with."""
        super()._open(drain)
        said = self.whole() if self._kept.said > self._kept.emitted else nothing(self._own[1])
        flushes = self._outlet.flushes  # a number that was there before would be taken for a repetition
        self._outlet = Outlet(*self._own, said, position=self._kept.emitted, flushes=flushes)

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
        self._sources = {stream: source_of(stream, kind) for stream, kind in self._kinds.items()}
        self._take_in(self._consume(Commit({}, {}, self._packed())))
        for stream, source in self._sources.items():
            self._add(stream, self._stores.ledger.chunks(self._run_id, stream, after=source.cursor))

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
        grow = Grow(self._join, [(self._queue, calls)], envelopes, total, fence=self._kept.undone * UNDONE)
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
