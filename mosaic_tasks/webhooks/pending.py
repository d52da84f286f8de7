"""The webhooks of runs that are still to be told, on the server: registered before their runs open, dropped when taken.

A sorted set holds the runs by the time (ms) when each is looked at next, and a hash a run the rest. Runs without a
webhook have neither.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from redis import Redis

from mosaic_queues.connection import server_ms


class Pending(NamedTuple):
    """A webhook that is to be told; its URL, which may hold a secret, is not shown.

    Attributes:
        since_ms: when it was registered.
        tries: so many attempts failed.
        body: what is told, once the run is over; empty before.
    """

    run_id: str
    url: str
    since_ms: int
    tries: int
    body: bytes

    def __repr__(self) -> str:
        return f"<Pending {self.run_id}>"


class PendingWebhooks:
    """Those of a server.

    Args:
        keep_s: what is older is forgotten.
    """

    def __init__(self, client: Redis, *, namespace: str, keep_s: float) -> None:
        self._client, self._keep_s = client, int(keep_s) + 1
        self._due, self._prefix = f"{namespace}:webhooks", f"{namespace}:webhook:"

    def now_ms(self) -> int:
        """By the server's clock, which is that of `since_ms`."""
        return server_ms(self._client)

    def register(self, run_id: str, url: str) -> None:
        """Notes it, for a run that is about to be opened. A second time changes the URL alone: who noted the first may
        have died, and the schedule have got another."""
        now_ms = server_ms(self._client)
        with self._client.pipeline() as pipe:
            pipe.hset(self._prefix + run_id, "url", url)
            for field, value in {"since_ms": str(now_ms), "tries": "0"}.items():
                pipe.hsetnx(self._prefix + run_id, field, value)
            pipe.expire(self._prefix + run_id, self._keep_s)
            pipe.zadd(self._due, {run_id: now_ms}, nx=True)
            pipe.expire(self._due, self._keep_s)
            pipe.execute()

    def due(self, *, most: int) -> list[str]:
        """The runs whose turn it is; asks once where there is none."""
        if not (
            first := cast("list[tuple[bytes, float]]", self._client.zrange(self._due, 0, 0, withscores=True))
        ):
            return []
        now_ms = server_ms(self._client)
        if first[0][1] > now_ms:
            return []
        found = self._client.zrangebyscore(self._due, "-inf", now_ms, start=0, num=most)
        return [run_id.decode() for run_id in cast("list[bytes]", found)]

    def read(self, run_id: str) -> Pending | None:
        """What is known; None: it is too old."""
        fields = cast("dict[bytes, bytes]", self._client.hgetall(self._prefix + run_id))
        if b"url" not in fields:
            return None
        since_ms, tries = int(fields[b"since_ms"]), int(fields[b"tries"])
        return Pending(run_id, fields[b"url"].decode(), since_ms, tries, fields.get(b"body", b""))

    def keep_body(self, run_id: str, body: bytes) -> None:
        """Keeps what is told, which outlives the run."""
        self._client.hset(self._prefix + run_id, "body", body)

    def put_off(self, run_id: str, *, pause_s: float, tries: int) -> None:
        """Comes back to it later, whoever dies until then."""
        with self._client.pipeline() as pipe:
            pipe.zadd(self._due, {run_id: server_ms(self._client) + int(1000 * pause_s)}, xx=True)
            pipe.hset(self._prefix + run_id, "tries", str(tries))
            pipe.expire(self._prefix + run_id, self._keep_s)
            pipe.execute()

    def drop(self, run_id: str) -> None:
        """It is told, or given up."""
        with self._client.pipeline() as pipe:
            pipe.zrem(self._due, run_id)
            pipe.delete(self._prefix + run_id)
            pipe.execute()
