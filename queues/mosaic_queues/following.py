"""Follows streams of the server, however many and for however many readers, over one blocking connection a process.

A thread, the *hub*, blocks on all followed streams at once. What comes it keeps as the *tail* of its stream and rings
the readers; each takes from the tail what lies behind its own cursor. A reader that is behind the tail, because it is
slow or has just come, reads what it lacks from the server, page by page: so it loses nothing and keeps nobody waiting.
The hub starts with the first reader who has nothing left to read, and ends with the last one. A stream of its own
wakes it when there are more streams to follow.

Locks are taken in one order: that of the hubs, then a hub's own. A finalizer may run inside of either, so it takes
none: it notes that its reader is gone, and whoever next holds the first lock has that leave.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import structlog
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from mosaic_queues.keys import Keys
from mosaic_queues.liveness import incarnation
from mosaic_queues.per_server import PerServer
from mosaic_queues.streams import ENTRIES_READ, Position, position_of

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

log = structlog.get_logger(__name__)

TAIL = 512
"""Entries of a stream that the hub keeps for its readers."""
BLOCK_S = 10.0
"""A trip of the hub takes so long when nothing comes; below the client's own timeout."""
REST_S = 0.001
"""The hub rests for so long after each trip that gave something: what many calls put out at once comes in few trips."""
END_S = 1.0
"""The last reader waits so long for the hub's end."""
NOTHING = "0-0"
"""The cursor of a reader that has nothing of a stream."""
FROM_NOW_ON = "$"
"""The cursor of a reader that wants nothing of what is there already."""

Entry = tuple[bytes, dict[bytes, bytes]]
"""Id and fields, as the server gives them."""
Ask = Callable[[Any], object]
"""Adds commands to a pipeline."""


class Found(dict[str, list[Entry]]):
    """New entries by the key of their stream.

    Attributes:
        may_be_more: of one of them, behind its last entry here; else they are all that there was.
        answers: to what was asked in the same trip, right before the streams were read; none where nothing was.
    """

    may_be_more = False
    answers: tuple[Any, ...] = ()


def last_entry(client: Redis, stream: str) -> str:
    """The id of the latest entry of a stream; `0-0`: it has none."""
    found = cast("list[Entry]", client.xrevrange(stream, count=1))
    return _last_of(found)


def _last_of(entries: list[Entry]) -> str:
    return entries[-1][0].decode() if entries else NOTHING


def _spelled(position: Position) -> str:
    return f"{position[0]}-{position[1]}"


class _Tail:
    """The last entries of a followed stream.

    Attributes:
        start: it holds everything behind this entry, up to `end`.
        spelled: the id of the last entry, as the server knows it.
        readers: who is rung when more comes.
    """

    def __init__(self, start: Position) -> None:
        self.start = self.end = start
        self.spelled: str | bytes = _spelled(start)
        self.readers: set[Following] = set()
        self._entries: deque[tuple[Position, Entry]] = deque()

    def add(self, entries: list[Entry]) -> None:
        """Takes what came, and drops what is oldest."""
        self._entries.extend((position_of(entry[0]), entry) for entry in entries)
        self.end, self.spelled = self._entries[-1][0], entries[-1][0]
        while len(self._entries) > TAIL:
            self.start = self._entries.popleft()[0]

    def behind(self, cursor: Position) -> list[Entry]:
        """The entries behind a cursor that is not before `start`."""
        found: list[Entry] = []
        if cursor < self.end:
            for position, entry in reversed(self._entries):
                if position <= cursor:
                    break
                found.append(entry)
        return found[::-1]


class _Hub:
    """The thread that reads all followed streams of one server."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self._client = client
        self._control = f"{keys.namespace}:hub:{incarnation()}"
        self._heard = "0-0"
        self._tails: dict[str, _Tail] = {}
        self._followed: dict[str, _Tail] = {}
        self._gone: deque[tuple[Following, Iterable[str]]] = deque()
        self._ended = False
        self._sleeps = False
        self._lock = threading.RLock()  # whose generator is collected meanwhile leaves from inside
        self._thread = threading.Thread(target=self._run, name="mosaic-hub", daemon=True)

    @property
    def is_idle(self) -> bool:
        """Whether nobody reads."""
        return not self._tails

    def join(self, reader: Following, cursors: Mapping[str, Position]) -> tuple[bool, bool]:
        """Rings the reader from now on.

        Returns:
            Whether it must be woken, to follow streams that nobody read yet from the reader's cursors; and whether the
            reader has missed something that others were rung for.
        """
        is_new = has_missed = False
        with self._lock:
            for key, cursor in cursors.items():
                is_new = is_new or key not in self._tails
                tail = self._tails.get(key) or _Tail(cursor)
                tail.readers.add(reader)
                self._tails[key] = tail  # behind that: its last reader may leave right before
                has_missed = has_missed or cursor < tail.end
            must_wake = is_new and self._sleeps
        if self._thread.ident is None:
            self._thread.start()
        return must_wake, has_missed

    def leave(self, reader: Following, keys: Iterable[str]) -> None:
        """Rings the reader no more."""
        with self._lock:
            for key in keys:
                tail = self._tails.get(key)
                if tail is not None:
                    tail.readers.discard(reader)
                    if not tail.readers:
                        del self._tails[key]

    def note_gone(self, reader: Following, keys: Iterable[str]) -> None:
        """The reader is to leave soon. Takes no lock."""
        self._gone.append((reader, keys))

    def let_go(self) -> None:
        """Those that are gone leave. To be called with the lock of the hubs."""
        while self._gone:
            self.leave(*self._gone.popleft())

    def end(self) -> None:
        """Ends the thread; when the server is away it ends by itself, later."""
        self._ended = True
        try:
            self.wake()
        except RedisError as error:
            log.info("hub.end", what="server does not answer, the hub ends later", error=str(error))
            return
        self._thread.join(END_S)

    def tell(self, error: Exception) -> None:
        """Its readers are told that nothing more comes from it."""
        with self._lock:
            tails, self._tails = self._tails, {}
            readers = set[Following]().union(*(tail.readers for tail in tails.values()))
        for reader in readers:
            reader.fail(error)

    def wake(self) -> None:
        """It looks at once which streams to follow."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.xadd(self._control, {"w": ""}, maxlen=1)
            pipe.pexpire(self._control, int(2 * BLOCK_S * 1000))
            pipe.execute()

    def start_of(self, key: str) -> Position | None:
        """From where on the tail of a stream is complete; None when it is not followed."""
        with self._lock:
            tail = self._tails.get(key)
            return tail.start if tail else None

    def behind(self, key: str, cursor: Position) -> list[Entry] | None:
        """What is known behind a cursor; None where the server must be asked."""
        with self._lock:
            tail = self._tails.get(key)
            return tail.behind(cursor) if tail and tail.start <= cursor else None

    def _run(self) -> None:
        while not self._ended and self._is_read():
            try:
                found = self._client.xread(self._wanted(), count=ENTRIES_READ, block=int(BLOCK_S * 1000))
            except Exception as error:  # noqa: BLE001 - whatever it is, the readers must be told
                self._fail(error)
                return
            if found:
                self._hand_out(cast("list[tuple[bytes, list[Entry]]]", found))
                time.sleep(0.0 if self._ended else REST_S)

    def _is_read(self) -> bool:
        """Whether anybody reads still; else the next reader gets another hub."""
        if not self._gone:
            return True
        with _hubs.lock:
            self.let_go()
            if self.is_idle:
                _hubs.drop(self)
            return not self.is_idle

    def _wanted(self) -> dict[Any, Any]:
        """What to follow, from where on. Whoever joins from now on has to wake it."""
        with self._lock:
            self._sleeps, self._followed = True, self._tails.copy()
            return {**{key: tail.spelled for key, tail in self._followed.items()}, self._control: self._heard}

    def _hand_out(self, found: list[tuple[bytes, list[Entry]]]) -> None:
        rung: set[Following] = set()
        with self._lock:
            self._sleeps = False
            for raw_key, entries in found:
                key = raw_key.decode()
                if key == self._control:
                    self._heard = entries[-1][0].decode()
                elif (tail := self._tails.get(key)) is not None and tail is self._followed.get(key):
                    tail.add(entries)  # one that came since, in the place of another, may begin before these
                    rung |= tail.readers
        _ring(rung)

    def _fail(self, error: Exception) -> None:
        """The server did not come back: the readers are told, and the next one gets another hub."""
        if not self._ended:
            log.warning("hub.failed", what="cannot follow streams any more", error=str(error))
        with _hubs.lock:
            _hubs.drop(self)
        self.tell(error)


_hubs: PerServer[_Hub] = PerServer()


def close_hub(client: Redis, keys: Keys) -> None:
    """Ends the hub of a client that is about to be closed, where there is one; its readers are told."""
    with _hubs.lock:
        hub = _hubs.pop(client, keys.namespace)
    if hub is not None:
        hub.tell(RedisConnectionError("this process closed its connection to the server"))
        hub.end()


class Following:
    """One reader of some streams.

    Args:
        client: of the server, with `decode_responses=False`; sends a command again when the server restarts.
        cursors: by the key of each stream, the id of the last entry already read, `NOTHING`, or `FROM_NOW_ON`. An id
            that the stream has not reached yet would hide what comes from other readers.
        ring: called when there may be more to `take`: in the thread of `loop`, else in another one.
        page: it takes so many entries of a stream at once.
    """

    def __init__(
        self,
        client: Redis,
        keys: Keys,
        cursors: Mapping[str, str],
        *,
        ring: Callable[[], object],
        loop: AbstractEventLoop | None = None,
        page: int = ENTRIES_READ,
    ) -> None:
        self._client, self._keys, self._page = client, keys, page
        self.ring, self.loop = ring, loop
        self._cursors = {key: position_of(cursor) for key, cursor in cursors.items() if cursor != FROM_NOW_ON}
        self._begin = [key for key, cursor in cursors.items() if cursor == FROM_NOW_ON]
        self._hub: _Hub | None = None
        self._left = False
        self._error: Exception | None = None

    def at_hand(self) -> Found | None:
        """What `take` would give without a trip to the server; None where it needs one. Takes nothing."""
        hub, found = self._hub, Found()
        if hub is None or self._error is not None:
            return None
        for key, cursor in self._cursors.items():
            entries = hub.behind(key, cursor)
            if entries is None:
                return None
            if entries:
                found[key] = entries[: self._page]
                found.may_be_more = found.may_be_more or len(entries) >= self._page
        return found

    def take(self, *, follow: bool = True, ask: Ask | None = None) -> Found:
        """What came since the last time, in the order of each stream; each entry once. Does not wait.

        Args:
            follow: when that is all that is there, `ring` from now on, as soon as there is more.
            ask: what else to ask of the server, in the same trip.

        Raises:
            redis.RedisError: the server does not answer.
        """
        if self._error is not None:
            raise self._error
        found = self.at_hand() if ask is None else None
        if found is None:
            found = self._trip(ask)
        self.advance(found)
        if follow and self._hub is None and not found.may_be_more:
            self._join()
        return found

    def advance(self, found: Found) -> None:
        """This was taken, when it was at hand."""
        for key, entries in found.items():
            self._cursors[key] = max(self._cursors[key], position_of(entries[-1][0]))

    def _trip(self, ask: Ask | None) -> Found:
        """The next page of each stream, and what is asked before. A page that is not full reaches at least to where its
        tail begins."""
        hub = self._hub
        starts = {key: hub.start_of(key) if hub else None for key in self._cursors}
        with self._client.pipeline(transaction=False) as pipe:
            for key in self._begin:
                pipe.xrevrange(key, count=1)
            if ask is not None:
                ask(pipe)
            for key, cursor in self._cursors.items():
                pipe.xrange(key, f"({_spelled(cursor)}", count=self._page)
            told = pipe.execute()
        begun, pages = len(self._begin), len(told) - len(self._cursors)
        found = self._paged(dict(zip(self._cursors, told[pages:], strict=True)), starts)
        found.answers = tuple(told[begun:pages])
        self._cursors |= {key: position_of(_last_of(told[place])) for place, key in enumerate(self._begin)}
        self._begin = []
        return found

    def _paged(self, pages: Mapping[str, list[Entry]], starts: Mapping[str, Position | None]) -> Found:
        for key, entries in pages.items():
            start = starts[key]
            if len(entries) < self._page and start is not None:
                self._cursors[key] = max(self._cursors[key], start)
        found = Found({key: entries for key, entries in pages.items() if entries})
        found.may_be_more = any(len(entries) >= self._page for entries in pages.values())
        return found

    def _join(self) -> None:
        with _hubs.lock:
            if self._left:
                return
            hub, must_wake, has_missed = self._enter()
            self._hub = hub
        if must_wake:
            hub.wake()
        if has_missed:
            _ring([self])

    def _enter(self) -> tuple[_Hub, bool, bool]:
        """Joins the hub. One whose last reader leaves from inside of that ends: then it joins the next."""
        while True:
            hub = self._current_hub()
            must_wake, has_missed = hub.join(self, self._cursors)
            if hub is self._current_hub():
                return hub, must_wake, has_missed
            hub.leave(self, self._cursors)

    def _current_hub(self) -> _Hub:
        return _hubs.get(self._client, self._keys.namespace, lambda: _Hub(self._client, self._keys))

    def fail(self, error: Exception) -> None:
        """`take` raises this from now on: its hub has ended."""
        self._error, self._hub = error, None
        _ring([self])

    def leave(self) -> None:
        """It is rung no more. The last one ends the hub, which takes a moment."""
        end = self.part()
        if end is not None:
            end()

    def abandon(self) -> None:
        """What a finalizer calls, which may run in the midst of anything: takes no lock, and asks no server.

        It is rung no more once another reader leaves, or the hub looks again, which takes `BLOCK_S` at most; the last
        one ends the hub then.
        """
        hub = self._hub
        if hub is not None:
            hub.note_gone(self, self._cursors)

    def part(self) -> Callable[[], object] | None:
        """It is rung no more, at once. Where it was the last one, what it gives must be called to end the hub."""
        with _hubs.lock:
            self._left = True
            hub, self._hub = self._hub, None
            if hub is None:
                return None
            hub.leave(self, self._cursors)
            hub.let_go()
            if not hub.is_idle:
                return None
            _hubs.drop(hub)
            return hub.end


def _ring(readers: Iterable[Following]) -> None:
    """Rings readers, those of an event loop together: waking it costs more than they do."""
    loops: defaultdict[AbstractEventLoop, list[Callable[[], object]]] = defaultdict(list)
    for reader in readers:
        if reader.loop is None:
            reader.ring()
        else:
            loops[reader.loop].append(reader.ring)
    for loop, rings in loops.items():
        with suppress(RuntimeError):  # it is closed: nobody waits any more
            loop.call_soon_threadsafe(_call_all, rings)


def _call_all(rings: Iterable[Callable[[], object]]) -> None:
    for ring in rings:
        ring()
