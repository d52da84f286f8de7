"""What a running call has to say already: its chunks, coalesced and published in the background.

The rule for a second attempt: what the first one published stands until the new one differs. An attempt that gives the
same again is compared with it and publishes only what goes beyond; where it differs, it retracts to that place first.
So consumers keep what they have, and what a stream says in the end is always the call's output.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import ClaimLost, PayloadError
from mosaic_queues.ledger import UNDONE, Claim, Field, JoinStep, Mark
from mosaic_queues.streams import Flush, Piece
from mosaic_queues.values import encode
from mosaic_tasks.definition.plan import Path
from mosaic_tasks.execution.content import ContentKind, content_of, joined, nothing
from mosaic_tasks.execution.prepared import CallId, PreparedPlan, stream_name
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.redoing import redo_of

log = structlog.get_logger(__name__)

COALESCE_S = 0.02
"""Chunks wait for each other so long; the first one after a silence does not wait."""
FLUSH_TEXT = 16_384
"""Characters that are published without waiting."""
FLUSH_ITEMS = 256
LAG_LOOK_MS = 1000
"""A producer that waits for readers looks so often whether they still run."""
AGAIN_S = 0.2
"""Pause before chunks are sent again to a server that does not answer."""
FLUSHES_AHEAD = 4
"""A producer that is ahead of its own publishing by so many full flushes waits for it."""


class Outlet:
    """One stream of a running call: what was published of it, and what waits to be.

    Attributes:
        earlier: what earlier attempts published, up to where this one differs.
        position: where the next piece of this attempt belongs: characters or items.
        waiting: how much waits: characters or items.
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
    ) -> None:
        self.stream, self.kind, self.readers = stream, kind, readers
        self.earlier, self.position = earlier, position
        self._pieces: list[Any] = []
        self._waiting: list[Any] = []
        self.waiting = 0
        self._retract: int | None = None
        self._flushes = flushes

    @property
    def is_due(self) -> bool:
        """Whether anything is to be published."""
        return bool(self._waiting) or self._retract is not None

    def add(self, piece: Any) -> None:
        """Takes the next piece: a text, or a list of items."""
        same = self._confirmed(piece)
        self.position += len(piece)
        self._pieces.append(piece)
        if same < len(piece):
            self._drop_earlier(self.position - len(piece) + same)
            self._waiting.append(piece[same:])
            self.waiting += len(piece) - same

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
        self._flushes += 1
        return Flush(self.stream, self._flushes, self.readers, pieces)


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
        self._process, self._run_id, self._plan, self._claim, self._holder = (
            process,
            run_id,
            plan,
            claim,
            holder,
        )
        self._number = CallId(claim.call).node
        self._resumes = claim.fence % UNDONE > 1 if resumes is None else resumes
        self._fields: list[Field] = []
        self._joins: dict[str, JoinStep] = {}
        self._outlets: dict[Path, Outlet] = {}
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._flushed_at = 0.0
        self._server_bytes = 0
        self._looked_at = 0
        self._batches: deque[tuple[Sequence[Flush], Sequence[Field], Sequence[JoinStep]]] = deque()
        self._error: Exception | None = None
        self._announced = self._announced_earlier()

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
        return Outlet(stream, kind, self._plan.readers(stream), earlier, flushes=flushes)

    def abandon(self) -> None:
        """The call failed: nothing more of it is published."""
        with self._flushing, self._room:
            self._error = self._error or ClaimLost(f"call {self._claim.call!r} has failed")
            self._batches.clear()
            self._fields = []
            self._outlets = {}
            self._room.notify_all()

    def text(self, piece: str, path: Path = ()) -> None:
        """The call's text goes on."""
        if piece:
            self._add(self.outlet(path, "text"), piece, FLUSH_TEXT)

    def items(self, items: list[Any], path: Path = ()) -> None:
        """The call has more items."""
        if items:
            self._add(self.outlet(path, "item"), items, FLUSH_ITEMS)

    def _add(self, outlet: Outlet, piece: Any, most: int) -> None:
        with self._lock:
            self._check()
            outlet.add(piece)
            is_due, waiting = outlet.is_due, outlet.waiting
        if is_due:
            publisher().due(self, at=0.0 if waiting >= most else self._flushed_at + COALESCE_S)
        if waiting >= FLUSHES_AHEAD * most:
            self._wait_for_room(outlet, most)

    def _wait_for_room(self, outlet: Outlet, most: int) -> None:
        """Until the publisher has caught up; in slices, between which the call can be interrupted."""
        with self._room:
            while outlet.waiting >= most and self._error is None:
                self._room.wait(AGAIN_S)

    def field(self, path: Path, value: Any) -> None:
        """A part of the output is complete: calls that wait for it may start. What was announced before stays, for
        now."""
        steps = self._plan.announced(self._number).get(path)
        name = stream_name(self._number, path)
        if steps is None or name in self._announced:
            return
        envelope = self._pack(value)
        with self._lock:
            self._check()
            self._announced[name] = envelope
            self._fields.append(Field(name, envelope, [step.name for step in steps]))
            self._joins.update((step.name, step) for step in steps)
        publisher().due(self, at=0.0)

    def _announced_earlier(self) -> dict[str, bytes]:
        """What earlier attempts announced, by name."""
        names = [stream_name(self._number, path) for path in self._plan.announced(self._number)]
        if not (self._resumes and names):
            return {}
        found = self._process.ledger.outputs(self._run_id, names)
        return {name: envelope for name, envelope in zip(names, found, strict=True) if envelope is not None}

    def open_parts(self, parts: Sequence[Field]) -> list[Field]:
        """The parts of the output that are still to be announced.

        Where one was announced otherwise, the calls that read it run again, with what it is in the end.
        """
        changed = [part for part in parts if self._announced.get(part.name, part.envelope) != part.envelope]
        if changed:
            self._correct(changed)
        return [part for part in parts if part.name not in self._announced]

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

    def flush(self) -> None:
        """Publishes what waits, now. When the server is away it stays, and is sent again as it is.

        Raises:
            ClaimLost: the claim is not this one any more.
            PayloadError: something cannot be stored.
        """
        with self._flushing:
            try:
                self._take()
                while self._batches:
                    self._publish(*self._batches[0])
                    self._batches.popleft()
            except RedisError:
                raise
            except Exception as error:
                self._error = error
                raise
            finally:
                with self._room:
                    self._room.notify_all()

    def _take(self) -> None:
        """Makes a batch of what waits. It is there before it is filled: nothing that was taken is lost when the content
        of the next outlet cannot be stored."""
        with self._lock:
            flushes: list[Flush] = []
            fields, self._fields = self._fields, []
            self._batches.append((flushes, fields, list(self._joins.values()) if fields else []))
            self._flushed_at = time.monotonic()
            outlets = self._outlets.values()
            flushes.extend(flush for each in outlets if (flush := each.take(self._pack_chunk)))

    def _publish(self, flushes: Sequence[Flush], fields: Sequence[Field], joins: Sequence[JoinStep]) -> None:
        if not (flushes or fields):
            return
        ready = self._process.ledger.publish(
            self._run_id, self._claim, holder=self._holder, flushes=flushes, fields=fields, joins=joins
        )
        self._process.publish(self._run_id, self._plan, ready)

    def _pack(self, value: Any) -> bytes:
        return self._process.payloads.pack(self._run_id, value)

    def _pack_chunk(self, content: Any) -> bytes:
        """Chunks stay in the server up to a limit, later ones go outside."""
        payloads = self._process.payloads
        outside = self._server_bytes > self._process.settings.stream_bytes
        envelope = payloads.pack(self._run_id, content, outside=outside)
        self._server_bytes += payloads.stored_bytes(envelope)
        return envelope

    def _unpack(self, envelopes: Sequence[bytes]) -> list[Any]:
        return self._process.payloads.unpack_many(self._run_id, envelopes)

    def finish(self) -> list[Mark]:
        """The call ended well: publishes the rest, and returns the marks that end its streams with the call."""
        kind: ContentKind = "text" if self._plan.plan.nodes[self._number].publishes == "text" else "item"
        for path in self._plan.ended_paths(self._number):
            self.outlet(path, "item" if path else kind)
        with self._lock:
            for outlet in self._outlets.values():
                outlet.end()
        self.flush()
        self._check()
        return [Mark(each.stream, "end", each.position, 0, each.readers) for each in self._outlets.values()]

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


class Publisher:
    """The thread that flushes this process's publications when they are due."""

    def __init__(self) -> None:
        self._due: dict[Publication, float] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="mosaic-publisher", daemon=True)
        self._thread.start()

    def due(self, publication: Publication, *, at: float) -> None:
        """Flushes a publication at a monotonic time, or earlier if it is due already."""
        with self._changed:
            if at < self._due.get(publication, float("inf")):
                self._due[publication] = at
                self._changed.notify()

    def _run(self) -> None:
        while True:
            for publication in self._next():
                self._flush(publication)

    def _next(self) -> list[Publication]:
        with self._changed:
            while True:
                now = time.monotonic()
                ready = [publication for publication, at in self._due.items() if at <= now]
                if ready:
                    for publication in ready:
                        del self._due[publication]
                    return ready
                self._changed.wait(min(self._due.values()) - now if self._due else None)

    def _flush(self, publication: Publication) -> None:
        try:
            publication.flush()
        except ClaimLost as error:
            log.info("publisher.lost", what="chunks refused, the call ends at its next one", error=str(error))
        except RedisError as error:
            log.warning("publisher.down", what="server does not answer, chunks wait", error=str(error))
            self.due(publication, at=time.monotonic() + AGAIN_S)
        except PayloadError as error:
            log.info("publisher.refused", what="chunks cannot be stored, the call fails", error=str(error))
        except Exception:
            log.exception("publisher.failed", what="chunks could not be published, the call fails")


_publishers: dict[int, Publisher] = {}
_lock = threading.Lock()


def publisher() -> Publisher:
    """This process's publisher."""
    with _lock:
        found = _publishers.get(os.getpid())
        if found is None:
            found = _publishers[os.getpid()] = Publisher()
        return found
