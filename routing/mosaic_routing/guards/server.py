"""The limits of all processes: each step is one Lua script in the server, with the server's clock.

All keys share the hash tag `{guards}`, because a call may need any limits together, in one step. On Redis Cluster one
shard so holds the limits of a namespace: some ten thousand calls a second, and a few hundred bytes for each that runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any

import msgspec
import structlog
from redis import Redis
from redis.client import PubSub
from redis.exceptions import RedisError

from mosaic_queues.connection import told_error
from mosaic_queues.keys import Keys
from mosaic_queues.scripts import Script
from mosaic_routing.guards.buckets import BucketLimit
from mosaic_routing.guards.values import (
    Answer,
    BreakerReading,
    Need,
    Query,
    Readings,
    Request,
    Settlement,
    Telling,
)

log = structlog.get_logger(__name__)

_LISTEN_S = 0.5
_RETRY_S = 0.5


class GuardScript(Script):
    """One step: the clock, `common.lua`, and its own file."""

    def __init__(self, name: str, *, clock: str | None = None) -> None:
        """Loads it.

        Args:
            clock: Lua that defines `server_ms`; default: that of the server.
        """
        texts = [_source("clock") if clock is None else clock, _source("common"), _source(name)]
        self.text = "\n".join(texts)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def _source(name: str) -> str:
    return resources.files("mosaic_routing.guards").joinpath("lua", f"{name}.lua").read_text("utf-8")


class ServerBackend:
    """Keeps limits in the server.

    Args:
        client: may be shared by threads, and may send a step again whose answer was lost: each counts once.
        clock: Lua that defines `server_ms`, for tests.
    """

    blocks = True

    def __init__(self, client: Redis, keys: Keys, *, clock: str | None = None) -> None:
        prefix = f"{keys.namespace}:{{guards}}:"
        self._client = client
        self._key = f"{prefix}permits"
        self._scripts = {
            name: GuardScript(name, clock=clock) for name in ("admit", "settle", "tell", "renew", "read")
        }
        self._listener = _Listener(client, f"{prefix}rings")

    def admit(self, request: Request) -> Answer:
        """Gives a permit, or says what blocks and for how long.

        Raises:
            ServerError: the server is away, or full.
        """
        argument = {
            "permit": request.permit,
            "forced": request.is_forced,
            "replaces": request.replaces,
            **_need(request.need),
        }
        return Answer(*self._run("admit", request.expiry_ms, argument))

    def settle(self, settlement: Settlement, expiry_ms: int) -> None:
        """Takes a permit back, once; what its call used counts instead of what was predicted.

        Raises:
            ServerError: the server is away, or full.
        """
        argument = {
            "permit": settlement.permit,
            "outcome": settlement.outcome,
            "pause_ms": settlement.pause_ms,
            "jitter": settlement.jitter,
            "tokens": settlement.tokens,
            "cost": settlement.cost,
            "requests_told": settlement.requests_told,
            "tokens_told": settlement.tokens_told,
        }
        self._run("settle", expiry_ms, argument)

    def tell(self, telling: Telling, expiry_ms: int) -> None:
        """Lowers the buckets of a call that runs to what their provider said; of an unknown permit nothing.

        Raises:
            ServerError: the server is away, or full.
        """
        self._run("tell", expiry_ms, msgspec.structs.asdict(telling))

    def renew(self, permits: Sequence[str], expiry_ms: int) -> tuple[str, ...]:
        """Prolongs permits, also lapsed ones; answers those that are unknown.

        Raises:
            ServerError: the server is away, or full.
        """
        return tuple(self._run("renew", expiry_ms, {"permits": list(permits)}))

    def read(self, query: Query, expiry_ms: int) -> Readings:
        """How limits stand: one trip, whose cost grows with what is asked for alone.

        Raises:
            ServerError: the server is away, or full.
        """
        argument = {
            "leases": query.leases,
            "breakers": query.breakers,
            "buckets": [(name, 1, *_limit(limit)) for name, limit in query.buckets],
            "accounts": [(account, period == "day") for account, period in query.accounts],
        }
        leases, breakers, buckets, accounts = self._run("read", expiry_ms, argument)
        return Readings(
            leases=tuple((active, weight) for active, weight in leases),
            breakers=tuple(BreakerReading(*each) for each in breakers),
            buckets=tuple(buckets),
            accounts=tuple((spent, reserved) for spent, reserved in accounts),
        )

    def listen(self, on_ring: Callable[[str], None]) -> bool:
        """Has rings told from now on; whether it was not so before."""
        return self._listener.start(on_ring)

    def close(self) -> None:
        """Ends the thread that listens."""
        self._listener.stop()

    def _run(self, name: str, expiry_ms: int, argument: dict[str, Any]) -> Any:
        with _told():
            return self._scripts[name](self._client, [self._key], {"expiry_ms": expiry_ms, **argument})


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        told = told_error(error)
        if told is None:
            raise
        raise told from error


def _need(need: Need) -> dict[str, Any]:
    policy = need.policy
    return {
        "takes": [
            (take.bucket, take.amount, *_limit(take.limit), take.unit == "tokens", take.is_told)
            for take in need.takes
        ],
        "leases": [(lease.of, lease.weight, _bound(lease.limit)) for lease in need.leases],
        "charges": [
            (charge.account, charge.amount, _bound(charge.limit), charge.period == "day")
            for charge in need.charges
        ],
        "breaker": need.breaker
        and (
            need.breaker,
            policy.window_ms,
            policy.min_calls,
            policy.bad_percent,
            policy.slow_ms,
            policy.open_ms,
            policy.open_max_ms,
        ),
    }


def _limit(limit: BucketLimit) -> tuple[int, int]:
    return limit.per_minute, limit.size


def _bound(limit: int | None) -> int:
    return -1 if limit is None else limit


class _Listener:
    """A thread that hears rings, from the first who wants to hear them until `stop`."""

    def __init__(self, client: Redis, channel: str) -> None:
        self._client, self._channel = client, channel
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped, self._hears = threading.Event(), threading.Event()

    def start(self, on_ring: Callable[[str], None]) -> bool:
        """Returns once rings are heard, or the server is away; whether this call started it."""
        with self._mutex:
            if self._thread is not None:
                return False
            self._stopped.clear()
            self._thread = threading.Thread(
                target=self._listen, args=(on_ring,), name="mosaic-guards-rings", daemon=True
            )
            self._thread.start()
        self._hears.wait(_LISTEN_S)
        return True

    def stop(self) -> None:
        with self._mutex:
            self._stopped.set()
            if self._thread is not None:
                self._thread.join()
                self._thread = None

    def _listen(self, on_ring: Callable[[str], None]) -> None:
        while not self._stopped.is_set():
            try:
                heard: PubSub = self._client.pubsub()  # type: ignore[no-untyped-call]
                with heard:
                    heard.subscribe(self._channel)
                    self._hear(heard, on_ring)
            except RedisError as error:
                log.warning(
                    "guards.rings",
                    what="cannot hear when limits are free again; calls that wait look when permits expire",
                    error=str(error),
                )
                self._stopped.wait(_RETRY_S)

    def _hear(self, heard: PubSub, on_ring: Callable[[str], None]) -> None:
        while not self._stopped.is_set():
            message = heard.get_message(timeout=_LISTEN_S)
            if message is None:
                continue
            if message["type"] == "subscribe":  # also after the connection was lost, and rings with it
                self._hears.set()
                on_ring("")
            elif message["type"] == "message":
                on_ring(message["data"].decode())
