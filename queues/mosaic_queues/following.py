"""Follows streams of the server, however many and for however many readers, over one blocking connection a process.

A thread, the *hub*, blocks on all followed streams at once. What comes it keeps as the *tail* of its stream and rings
the readers; each takes from the tail what lies behind its own cursor. A reader that is behind the tail, because it is
slow or has just come, reads what it lacks from the server, page by page: so it loses nothing and keeps nobody waiting.
The hub starts with the first reader who has nothing left to read, and ends with the last one. A stream of its own
wakes it when there are more streams to follow.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

import structlog
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from mosaic_queues.keys import Keys
from mosaic_queues.liveness import incarnation
from mosaic_queues.per_server import PerServer
from mosaic_queues.streams import ENTRIES_READ, Position, position_of

log = structlog.get_logger(__name__)

TAIL = 512
"""Entries of a stream that the hub keeps for its readers."""
BLOCK_S = 10.0
"""A trip of the hub takes so long when nothing comes; below the client's own timeout."""
END_S = 1.0
"""The last reader waits so long for the hub's end."""

Entry = tuple[bytes, dict[bytes, bytes]]
"""Id and fields, as the server gives them."""
Found = dict[str, list[Entry]]
"""New entries by the key of their stream."""


def last_entry(client: Redis, stream: str) -> str:
    """The id of the latest entry of a stream; `0-0`: it has none."""
    found = cast("list[Entry]", client.xrevrange(stream, count=1))
    return found[0][0].decode() if found else "0-0"


def _spelled(position: Position) -> str:
    return f"{position[0]}-{position[1]}"


class _Tail:
    """The last entries of a followed stream.

    Attributes:
        start: it holds everything behind this entry, up to `end`.
        readers: who is rung when more comes.
    """

    def __init__(self, start: Position) -> None:
        self.start = self.end = start
        self.readers: set[Following] = set()
        self._entries: deque[Entry] = deque()

    def add(self, entries: list[Entry]) -> None:
        """Takes what came, and drops what is oldest."""
        self._entries.extend(entries)
        self.end = position_of(entries[-1][0])
        while len(self._entries) > TAIL:
            self.start = position_of(self._entries.popleft()[0])

    def behind(self, cursor: Position) -> list[Entry]:
        """The entries behind a cursor that is not before `start`."""
        found: list[Entry] = []
        for entry in reversed(self._entries):
            if position_of(entry[0]) <= cursor:
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
        self._ended = False
        self._lock = threading.RLock()  # a reader that is collected meanwhile leaves from inside
        self._thread = threading.Thread(target=self._run, name="mosaic-hub", daemon=True)

    @property
    def is_idle(self) -> bool:
        """Whether nobody reads."""
        return not any(tail.readers for tail in self._tails.values())

    def join(self, reader: Following, cursors: Mapping[str, Position]) -> bool:
        """Rings the reader from now on. Streams that nobody reads yet are followed from its cursors, once it is woken:
        True."""
        with self._lock:
            is_new = any(key not in self._tails for key in cursors)
            for key, cursor in cursors.items():
                self._tails.setdefault(key, _Tail(cursor)).readers.add(reader)
        if self._thread.ident is None:
            self._thread.start()
            return False
        return is_new

    def leave(self, reader: Following) -> None:
        """Rings the reader no more."""
        with self._lock:
            for tail in self._tails.values():
                tail.readers.discard(reader)
            self._tails = {key: tail for key, tail in self._tails.items() if tail.readers}

    def end(self) -> None:
        """Ends the thread; when the server is away it ends by itself, later."""
        if self._ended:
            return
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
            readers = {reader for tail in self._tails.values() for reader in tail.readers}
            self._tails = {}
        for reader in readers:
            reader.fail(error)

    def wake(self) -> None:
        """It looks at once which streams to follow."""
        with self._client.pipeline() as pipe:
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
        while not self._ended:
            with self._lock:
                after: dict[Any, Any] = {key: _spelled(tail.end) for key, tail in self._tails.items()}
            try:
                found = self._client.xread(
                    {**after, self._control: self._heard}, count=ENTRIES_READ, block=int(BLOCK_S * 1000)
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, the readers must be told
                self._fail(error)
                return
            self._hand_out(cast("list[tuple[bytes, list[Entry]]]", found or ()))

    def _hand_out(self, found: list[tuple[bytes, list[Entry]]]) -> None:
        rung: set[Following] = set()
        with self._lock:
            for raw_key, entries in found:
                key = raw_key.decode()
                if key == self._control:
                    self._heard = entries[-1][0].decode()
                elif (tail := self._tails.get(key)) is not None:
                    tail.add(entries)
                    rung |= tail.readers
        for reader in rung:
            reader.ring()

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
        cursors: by the key of each stream, the id of the last entry already read; `0-0`: none. An id that the stream
            has not reached yet would hide what comes from other readers.
        ring: called from another thread when there may be more to `take`.
        page: it takes so many entries of a stream at once.
    """

    def __init__(
        self,
        client: Redis,
        keys: Keys,
        cursors: Mapping[str, str],
        *,
        ring: Callable[[], None],
        page: int = ENTRIES_READ,
    ) -> None:
        self._client, self._keys, self.ring, self._page = client, keys, ring, page
        self._cursors = {key: position_of(cursor) for key, cursor in cursors.items()}
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
        return found

    def take(self, *, follow: bool = True) -> Found:
        """What came since the last time, in the order of each stream; each entry once. Does not wait.

        Args:
            follow: when nothing is there, `ring` from now on; it rings once at first.

        Raises:
            redis.RedisError: the server does not answer.
        """
        found = self.at_hand()
        if found is None:
            if self._error is not None:
                raise self._error
            found = self._pages()
        self.advance(found)
        if not found and follow and self._hub is None:
            self._join()
        return found

    def advance(self, found: Found) -> None:
        """This was taken, when it was at hand."""
        for key, entries in found.items():
            self._cursors[key] = max(self._cursors[key], position_of(entries[-1][0]))

    def _pages(self) -> Found:
        """The next page of each stream. A page that is not full reaches at least to where its tail begins."""
        hub = self._hub
        starts = {key: hub.start_of(key) if hub else None for key in self._cursors}
        with self._client.pipeline(transaction=False) as pipe:
            for key, cursor in self._cursors.items():
                pipe.xrange(key, f"({_spelled(cursor)}", count=self._page)
            pages = dict(zip(self._cursors, pipe.execute(), strict=True))
        for key, entries in pages.items():
            start = starts[key]
            if len(entries) < self._page and start is not None:
                self._cursors[key] = max(self._cursors[key], start)
        return {key: entries for key, entries in pages.items() if entries}

    def _join(self) -> None:
        with _hubs.lock:
            if self._left:
                return
            hub = _hubs.get(self._client, self._keys.namespace, lambda: _Hub(self._client, self._keys))
            must_wake = hub.join(self, self._cursors)
            self._hub = hub
        if must_wake:
            hub.wake()
        self.ring()

    def fail(self, error: Exception) -> None:
        """`take` raises this from now on: its hub has ended."""
        self._error, self._hub = error, None
        self.ring()

    def leave(self) -> None:
        """It is rung no more. The last one ends the hub."""
        with _hubs.lock:
            self._left = True
            hub, self._hub = self._hub, None
            if hub is None:
                return
            hub.leave(self)
            is_last = hub.is_idle
            if is_last:
                _hubs.drop(hub)
        if is_last:
            hub.end()
