"""Tells processes at once that calls which they run do not count any more.

Whoever makes claims void, with a transition, sends word to their holders after it: an entry in a stream of each. What a
process hears it only takes as a hint, and asks the ledger. So word that comes too late, twice or wrongly ends nothing
that counts; and where none comes, since its sender died in between, the process finds out when it looks by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.following import Following, Found
from mosaic_queues.keys import Keys
from mosaic_queues.transitions import process_of

log = structlog.get_logger(__name__)

MOST = 1_000
"""Entries that are kept of a stream."""
KEEP_MS = 60_000
"""A stream lives for so long after its last entry: by then its reader has looked by itself."""
AGAIN_S = 1.0
"""Pause before a server that does not answer is asked again."""

Told = Callable[[str, Sequence[str]], object]
"""Called, from any thread, with a run and calls of it."""


class Recalled(NamedTuple):
    """Calls of a run that a process holds no more; `holder` may be the part of it that claimed them."""

    holder: str
    run_id: str
    calls: Sequence[str]


class Recalls:
    """Sends word to holders."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def send(self, recalled: Iterable[Recalled]) -> None:
        """Sends word, in one trip. Raises nothing: should the server be away, the holders find out by themselves."""
        told = list(recalled)
        if not told:
            return
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for each in told:
                    key = self._keys.recalls(process_of(each.holder))
                    entry: dict[Any, Any] = {"r": msgspec.msgpack.encode((each.run_id, each.calls))}
                    pipe.xadd(key, entry, maxlen=MOST)
                    pipe.pexpire(key, KEEP_MS)
                pipe.execute()
        except RedisError as error:
            log.info("recalls.unsent", what="holders find out by themselves", error=str(error))


class RecallListener:
    """Hears what is sent to one process."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self._client, self._keys = client, keys
        self._told: set[Told] = set()
        self._following: Following | None = None
        self._begin_at = 0.0
        self._lock = threading.Lock()

    def add(self, told: Told) -> None:
        """Tells this one too."""
        self._told.add(told)

    def discard(self, told: Told) -> None:
        """Tells this one no more."""
        self._told.discard(told)

    def listen(self, holder: str) -> None:
        """Hears from now on what is, and was, sent to this process; to be called again and again, since it ends when
        the server is away for long."""
        if self._following is not None or time.monotonic() < self._begin_at:
            return
        with self._lock:
            if self._following is None:
                self._begin_at = time.monotonic() + AGAIN_S
                self._following = Following(
                    self._client, self._keys, {self._keys.recalls(holder): "0-0"}, ring=self._hear
                )
                self._hear()

    def close(self) -> None:
        """Hears no more."""
        following, self._following = self._following, None
        if following is not None:
            following.leave()

    def _hear(self) -> None:
        """Called at first, and by whoever reads the stream when there is more."""
        following = self._following
        if following is None:
            return
        try:
            while found := following.take():
                self._tell(found)
        except RedisError as error:
            log.info("recalls.unheard", what="this process looks by itself for now", error=str(error))
            self._following = None

    def _tell(self, found: Found) -> None:
        for entries in found.values():
            for _, fields in entries:
                run_id, calls = msgspec.msgpack.decode(fields[b"r"], type=tuple[str, list[str]])
                for told in list(self._told):
                    told(run_id, calls)


__all__ = ["RecallListener", "Recalled", "Recalls"]
