"""What a running call has to say already: its chunks, coalesced and published in the background."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog
from redis.exceptions import RedisError

from mosaic_queues.content import ContentKind, content_of, nothing
from mosaic_queues.deliveries import Delivery
from mosaic_queues.errors import ClaimLost, IllegalTransition, PayloadError
from mosaic_queues.streams import Flush, Letter
from mosaic_queues.transitions import UNDONE, Claim, Field, JoinStep, Mark
from mosaic_tasks.definition.plan import Path
from mosaic_tasks.execution.prepared import CallId, PreparedPlan, stream_name
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.redoing import redo_of
from mosaic_tasks.execution.streams.flushing import Flushing, Steps, flush_together
from mosaic_tasks.execution.streams.outlets import COALESCE_S, Outlet
from mosaic_tasks.execution.streams.publisher import AGAIN_S, publisher

log = structlog.get_logger(__name__)

LAG_LOOK_MS = 1000
"""A producer that waits for readers looks so often whether they still run."""
FLUSHES_AHEAD = 4
"""A producer that is ahead of its own publishing by so many full flushes waits for it."""

LETTERS_MOST = 8
"""A flush carries the letters of so many readers; more are sent their messages afterwards."""


_Batch = tuple[Sequence[Flush], Sequence[Field], Sequence[JoinStep]]


class Publication:
    """The chunks of one running call. Made and fed by the call's thread; flushed by the publisher's.

    Args:
        resumes: chunks of this call may be there already; default: when it was claimed before.

    Raises:
        ClaimLost: from all that feed it, once the claim is lost.
    """

    def __init__(
        self,
        process: Process,
        run_id: str,
        plan: PreparedPlan,
        claim: Claim,
        *,
        holder: str,
        resumes: bool | None = None,
    ) -> None:
        self._process, self._run_id, self._plan = process, run_id, plan
        self._claim, self._holder = claim, holder
        self._number = CallId(claim.call).node
        self._resumes = claim.fence % UNDONE > 1 if resumes is None else resumes
        self._fields: list[Field] = []
        self._joins: dict[str, JoinStep] = {}
        self._outlets: dict[Path, Outlet] = {}
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._looked_at = 0
        self._batches: deque[_Batch] = deque()
        self._last: Sequence[Flush] | None = None
        self._error: Exception | None = None
        self._announced = self._announced_earlier()
        self._told: dict[Path, Any] = {}

    def outlet(self, path: Path, kind: ContentKind) -> Outlet:
        """The stream of a part of the output; opened when first asked for."""
        outlet = self._outlets.get(path)
        if outlet is None:
            outlet = self._outlets[path] = self._opened(stream_name(self._number, path), kind)
        return outlet

    def _opened(self, stream: str, kind: ContentKind) -> Outlet:
        """With what earlier attempts published, or this one before it failed; the first attempt need not ask."""
        chunks = self._process.ledger.chunks(self._run_id, stream) if self._resumes else []
        flushes = max((chunk.flush for chunk in chunks if chunk.attempt == self._claim.fence), default=0)
        earlier = content_of(chunks, self._unpack, kind) if chunks else nothing(kind)
        inside_bytes = self._process.settings.stream_bytes
        outlet = Outlet(
            stream, kind, self._plan.readers(stream), earlier, flushes=flushes, inside_bytes=inside_bytes
        )
        for chunk in chunks:
            outlet.count(self._process.payloads.stored_bytes(chunk.data), chunk.size)
        return outlet

    def abandon(self) -> None:
        """The call failed, or is recorded: nothing more of it is published."""
        with self._flushing, self._room:
            self._error = self._error or ClaimLost(f"call {self._claim.call!r} is over")
            self._batches.clear()
            self._last = None
            self._fields = []
            self._outlets = {}
            self._room.notify_all()

    def text(self, piece: str, path: Path = ()) -> None:
        """The call's text goes on."""
        if piece:
            self._add(self.outlet(path, "text"), piece)

    def items(self, items: list[Any], path: Path = ()) -> None:
        """The call has more items."""
        if items:
            self._add(self.outlet(path, "item"), items)

    def _add(self, outlet: Outlet, piece: Any) -> None:
        with self._lock:
            self._check()
            due_at = outlet.due_at if outlet.add(piece) else math.inf
        if due_at < math.inf:
            publisher().due(self, at=due_at)
        if outlet.waiting >= FLUSHES_AHEAD * outlet.enough:
            self._wait_for_room(outlet)

    def _wait_for_room(self, outlet: Outlet) -> None:
        """Until the publisher has caught up; in slices, between which the call can be interrupted."""
        with self._room:
            while outlet.waiting >= outlet.enough and self._error is None:
                self._room.wait(AGAIN_S)

    def field(self, path: Path, value: Any) -> None:
        """A part of the output is complete: calls that wait for it may start. What was announced before stays, for
        now."""
        name = stream_name(self._number, path)
        if path not in self._plan.announced(self._number) or name in self._announced:
            return
        field = self._field(path, value)
        with self._lock:
            self._check()
            self._joins.update((step.name, step) for step in self._plan.announced(self._number)[path])
            self._announced[name], self._told[path] = field.envelope, value
            self._fields.append(field)
        publisher().due(self, at=0.0)

    def _field(self, path: Path, value: Any) -> Field:
        joins = [step.name for step in self._plan.announced(self._number)[path]]
        return Field(stream_name(self._number, path), self._pack(value), joins)

    def _announced_earlier(self) -> dict[str, bytes]:
        """What earlier attempts announced, by name."""
        names = [stream_name(self._number, path) for path in self._plan.announced(self._number)]
        if not (self._resumes and names):
            return {}
        found = self._process.ledger.outputs(self._run_id, names)
        return {name: envelope for name, envelope in zip(names, found, strict=True) if envelope is not None}

    def open_parts(self, parts: Sequence[Field]) -> Sequence[Field]:
        """What is to be announced of the parts that the output has in the end: all, for the server may have lost what
        was announced, and announcing a part again changes nothing.

        Where one was announced otherwise, the calls that read it run again, with what it is in the end.
        """
        changed = [part for part in parts if self._announced.get(part.name, part.envelope) != part.envelope]
        if changed:
            self._correct(changed)
        return parts

    def _correct(self, parts: Sequence[Field]) -> None:
        names = {part.name for part in parts}
        joins = [
            step
            for path, steps in self._plan.announced(self._number).items()
            if stream_name(self._number, path) in names
            for step in steps
        ]
        readers = [member for step in joins for member in self._plan.plan.joins[int(step.name)].members]
        log.info(
            "publication.corrected",
            what="parts were announced otherwise",
            run=self._run_id,
            parts=sorted(names),
        )
        self._process.redo(
            self._run_id,
            redo_of(self._plan, readers),
            holder=self._holder,
            claim=self._claim,
            fields={part.name: part.envelope for part in parts},
        )

    def earlier_text(self) -> str:
        """The text that earlier attempts published."""
        return str(self.outlet((), "text").earlier)

    def settle(self, whole: Any, path: Path = ()) -> None:
        """A part of the output is this in the end, whatever was said before."""
        outlet = self.outlet(path, "text" if isinstance(whole, str) else "item")
        if not outlet.differs(whole):
            return
        self.flush()
        with self._lock:
            outlet.begin_again(outlet.said())
            outlet.add(whole)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def flush(self, *, all_: bool = True) -> None:
        """Publishes what waits, now. When the server is away it stays, and is sent again as it is.

        Args:
            all_: also what waits for more of its kind, before it goes to the object store.

        Raises:
            ClaimLost: the claim is not this one any more.
            PayloadError: something cannot be stored.
        """
        with self._flushing:
            if self._last is not None:  # it does not follow on what the server has
                self._batches.appendleft((self._last, [], []))
                self._last = None
        flushing = self.flushing(all_=all_)
        flush_together([flushing])
        if flushing.error is not None:
            raise flushing.error
        self._check()

    def flushing(self, *, all_: bool) -> Flushing:
        """A flush that others may share their trips with."""
        return Flushing(self._process.ledger, self._steps(all_=all_))

    def _steps(self, *, all_: bool) -> Steps:
        with self._flushing:
            if self._error is not None:  # nothing more of it is published
                return
            try:
                self._take(all_=all_)
                yield from self._send()
            except RedisError:
                raise
            except Exception as error:
                self._error = error
                raise
            finally:
                with self._room:
                    self._room.notify_all()

    def next_due(self) -> float:
        """When something is to be published that waits still (monotonic); infinite: nothing waits."""
        with self._lock:
            waiting = self._outlets.values() if self._error is None else ()
            return min((each.due_at for each in waiting), default=math.inf)

    def _take(self, *, all_: bool) -> None:
        """Makes a batch of what waits. It is there before it is filled: nothing that was taken is lost when the content
        of the next outlet cannot be stored."""
        with self._lock:
            now = time.monotonic()
            flushes: list[Flush] = []
            fields, self._fields = self._fields, []
            self._batches.append((flushes, fields, list(self._joins.values()) if fields else []))
            for outlet in self._outlets.values():
                if all_ or not outlet.is_outside or outlet.due_at < now + COALESCE_S:  # before the next beat
                    outlet.flushed_at = now
                    flush = outlet.take(partial(self._pack_chunk, outlet))
                    flushes.extend([flush] if flush is not None else [])

    def _send(self) -> Steps:
        try:
            yield from self._publish_batches()
        except IllegalTransition as error:
            log.warning("publication.gap", what="chunks were lost, they are sent again", error=str(error))
            self._mend()
            yield from self._publish_batches()

    def _publish_batches(self) -> Steps:
        while self._batches:
            flushes, fields, joins = self._batches[0]
            if flushes or fields:
                ready = yield self._delivery(flushes, fields, joins)
                self._process.publish(self._run_id, self._plan, ready)
            self._batches.popleft()

    def _mend(self) -> None:
        """The server has lost what it said last. What is missing is packed again too: its payloads may be gone."""
        with self._lock:
            outlets = list(self._outlets.values())
        found = [(outlet, self._found(outlet)) for outlet in outlets]
        with self._lock:
            for outlet, said in found:
                outlet.mend(said)
            self._fields = [self._field(path, value) for path, value in self._told.items()]
            self._batches.clear()
        self._take(all_=True)

    def _found(self, outlet: Outlet) -> Any:
        """What the server says of a stream."""
        return content_of(self._process.ledger.chunks(self._run_id, outlet.stream), self._unpack, outlet.kind)

    def _delivery(
        self, flushes: Sequence[Flush], fields: Sequence[Field], joins: Sequence[JoinStep]
    ) -> Delivery:
        letters = self._letters(flushes)
        return Delivery(self._run_id, self._claim, self._holder, flushes, fields, joins, letters)

    def _letters(self, flushes: Sequence[Flush]) -> list[Letter]:
        """What wakes the readers, but for those that are too many to be sent a letter with each flush."""
        readers = sorted({reader for flush in flushes for reader in flush.readers})
        found = [self._letters_of(reader) for reader in readers[:LETTERS_MOST]]
        return [letter for letters in found for letter in letters]

    def _letters_of(self, reader: str) -> Sequence[Letter]:
        queue = self._plan.plan.nodes[CallId(reader).node].queue
        return self._process.letters(self._run_id, self._plan, [(queue, [reader])]) or ()

    def _pack(self, value: Any) -> bytes:
        return self._process.payloads.pack(self._run_id, value)

    def _pack_chunk(self, outlet: Outlet, content: Any) -> bytes:
        """Chunks of a stream stay in the server up to a limit, later ones go outside."""
        payloads = self._process.payloads
        envelope = payloads.pack(self._run_id, content, outside=outlet.is_outside)
        outlet.count(payloads.stored_bytes(envelope), len(content))
        return envelope

    def _unpack(self, envelopes: Sequence[bytes]) -> list[Any]:
        return self._process.payloads.unpack_many(self._run_id, envelopes)

    def finish(self) -> tuple[list[Mark], Sequence[Flush]]:
        """The call ended well.

        Returns:
            What the transition that records the call carries: the marks that end its streams, and before these what
            waits to be published, unless something was to be published before it.
        """
        kind: ContentKind = "text" if self._plan.plan.nodes[self._number].publishes == "text" else "item"
        for path in self._plan.ended_paths(self._number):
            self.outlet(path, "item" if path else kind)
        with self._lock:
            for outlet in self._outlets.values():
                outlet.end()
        flushes = self._kept()
        if flushes is None:
            self.flush()
        marks = [
            Mark(each.stream, "end", each.position, 0, each.readers, True) for each in self._outlets.values()
        ]
        return marks, flushes or ()

    def _kept(self) -> Sequence[Flush] | None:
        """All that waits, kept for the transition that records the call; None where that follows on what could not be
        published yet, or a field is to be announced."""
        with self._flushing:
            self._check()
            if self._last is not None or self._batches or self._fields:
                return self._last
            try:
                self._take(all_=True)
            except PayloadError as error:
                self._error = error
                raise
            self._last, _, _ = self._batches.pop()
            return self._last

    # -- readers that are slower -----------------------------------------------------------------------------------

    @property
    def is_ahead(self) -> bool:
        """Whether it is time to look how far readers are behind: after each quarter of the limit."""
        published = sum(outlet.position for outlet in self._outlets.values() if outlet.readers)
        return published - self._looked_at > self._process.settings.stream_lag // 4

    def wait_for_readers(self) -> None:
        """Blocks while a reader that runs is too far behind. Readers that wait for a worker do not count: it may be
        this one."""
        most = self._process.settings.stream_lag
        ledger, run_id, after = self._process.ledger, self._run_id, "0"
        streams = {outlet.stream: outlet.readers for outlet in self._outlets.values() if outlet.readers}
        self._looked_at = sum(outlet.position for outlet in self._outlets.values() if outlet.readers)
        try:
            if not streams or ledger.lag(run_id, streams) <= most:
                return
            while ledger.lag(run_id, streams, wait=True) > most:
                self._check()
                after = ledger.await_reading(run_id, streams, after=after, block_ms=LAG_LOOK_MS)
        except RedisError as error:
            log.warning("publication.lag", what="readers cannot be seen, the call goes on", error=str(error))
