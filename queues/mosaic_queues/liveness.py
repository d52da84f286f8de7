"""Says that this process is alive, and reads which others are.

A claim is alive while its holder's key is. Each process that may hold claims has one *incarnation*, a name that no
other process, earlier or later, has; a daemon thread renews its key. Whoever comes back after the key expired is
fenced: its claims were re-issued under new tokens.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
import structlog
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.keys import Keys
from mosaic_queues.per_server import PerServer

log = structlog.get_logger(__name__)

FORGET_AFTER_MS = 60_000


class LiveProcess(msgspec.Struct, frozen=True):
    """What a live process says of itself.

    Attributes:
        name: the incarnation.
        queues: the queues it consumes; empty for a child that only executes.
        slots: how many messages it runs at once; where it `hosts` them, how many calls.
        hosts: its calls share an event loop, and one message may bring as many as there are slots.
        started_ms: wall clock of its start.
    """

    name: str
    host: str
    pid: int
    started_ms: int
    queues: tuple[str, ...] = ()
    slots: int = 0
    hosts: bool = False


def incarnation(host: str | None = None) -> str:
    """A name for this process that is never used again: host, pid, start time and nonce."""
    started = int(time.time()) % 0xFFFFFF
    return f"{host or socket.gethostname()}/{os.getpid()}/{started:x}{secrets.token_hex(3)}"


class Liveness:
    """Renews this process's key from a daemon thread until `stop`, or until the last one who joined it left.

    Args:
        expiry_s: a process silent for so long is dead; the key is renewed four times in that time.
        on_beat: called after each renewal, in the thread.
    """

    def __init__(
        self,
        client: Redis,
        keys: Keys,
        *,
        expiry_s: float,
        queues: Sequence[str] = (),
        slots: int = 0,
        hosts: bool = False,
        on_beat: Callable[[], None] | None = None,
    ) -> None:
        self._client, self._keys, self._expiry_s = client, keys, expiry_s
        self._on_beat = on_beat
        self._users = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed = 0.0
        self.process = LiveProcess(
            name=incarnation(),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ms=int(time.time() * 1000),
            queues=tuple(queues),
            slots=slots,
            hosts=hosts,
        )

    @property
    def name(self) -> str:
        """The current incarnation."""
        return self.process.name

    def start(self) -> None:
        """Renews once, so that claims may follow, and starts the thread; others may join from now on."""
        self.renew()
        with _running.lock:
            _running.get(self._client, self._keys.namespace, lambda: self)
            self._users += 1
        self._thread = threading.Thread(target=self._beat, name="mosaic-liveness", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Keeps it alive until one more `leave`; starts it when it does not run yet."""
        with _running.lock:
            if self._thread is None:
                self.start()
            else:
                self._users += 1

    def stop(self) -> None:
        """Ends the calls of `on_beat`, and leaves."""
        self._on_beat = None
        self.leave()

    def leave(self) -> None:
        """The last one stops the thread and says goodbye: what is still claimed is re-issued at once."""
        with _running.lock:
            self._users -= 1
            if self._users > 0:
                return
            _running.drop(self)
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        try:
            self._forget(self.name)
        except RedisError as error:
            log.warning(
                "liveness.goodbye", what="goodbye failed, the key expires by itself", error=str(error)
            )

    def renew(self) -> None:
        """Prolongs this process's key."""
        expiry_ms, begun = int(self._expiry_s * 1000), time.monotonic()
        with self._client.pipeline(transaction=False) as pipe:
            pipe.set(self._keys.holder(self.name), msgspec.json.encode(self.process), px=expiry_ms)
            pipe.zadd(self._keys.holders, {self.name: int(time.time() * 1000) + expiry_ms})
            pipe.execute()
        self._renewed = begun

    def serve(self, queues: Sequence[str]) -> None:
        """Says at once which queues it serves from now on."""
        self.process = msgspec.structs.replace(self.process, queues=tuple(queues))
        self.renew()

    def assure(self) -> None:
        """Renews at once when the key may have expired: what counts as dead loses its claims, again and again.

        Raises:
            redis.RedisError: the server is away or full, so that nothing can be claimed now.
        """
        if time.monotonic() - self._renewed > self._expiry_s / 2:
            self.renew()

    def _forget(self, name: str) -> None:
        self._client.delete(self._keys.holder(name))
        self._client.zrem(self._keys.holders, name)

    def _beat(self) -> None:
        while not self._stopped.wait(self._expiry_s / 4):
            try:
                self.renew()
                if (on_beat := self._on_beat) is not None:
                    on_beat()
            except Exception:
                log.exception("liveness.renew", what="cannot renew, the next beat tries again")


_running: PerServer[Liveness] = PerServer()


def join_liveness(client: Redis, keys: Keys, *, expiry_s: float) -> Liveness:
    """The liveness of this process on a server, started when there is none. `leave` it in the end."""
    with _running.lock:
        found = _running.get(client, keys.namespace, lambda: Liveness(client, keys, expiry_s=expiry_s))
        found.join()
    return found


def live_processes(client: Redis, keys: Keys) -> list[LiveProcess]:
    """The processes whose key has not expired."""
    names = cast("list[bytes]", client.zrange(keys.holders, 0, -1))
    if not names:
        return []
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.get(keys.holder(name.decode()))
        found = pipe.execute()
    return [msgspec.json.decode(raw, type=LiveProcess) for raw in found if raw]


def forget_dead(client: Redis, keys: Keys, *, now_ms: int) -> None:
    """Drops names whose key is gone from the index; scores are clocks of many machines, so the key decides."""
    names = cast("list[bytes]", client.zrangebyscore(keys.holders, "-inf", now_ms - FORGET_AFTER_MS))
    gone = [name for name in names if not client.exists(keys.holder(name.decode()))]
    if gone:
        client.zrem(keys.holders, *gone)
