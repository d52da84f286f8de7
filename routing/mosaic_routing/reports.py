"""What workers say of themselves, in the server: each report has one key, which expires unless it is written again.

So what is read is alive. How old it is goes by the server's clock alone, since those of machines may be minutes apart.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Generic, NamedTuple, TypeVar, cast

import msgspec
import structlog
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_queues.settings import settings

log = structlog.get_logger(__name__)

KeptT = TypeVar("KeptT")

_SCRIPT = resources.files("mosaic_routing").joinpath("report.lua").read_text("utf-8")
_FORGET_AFTER_MS = 60_000
"""Names stay in the index for so long after the expiry of their last report."""


class Aged(NamedTuple, Generic[KeptT]):
    """A report that is alive, and how long ago it was written."""

    report: KeptT
    age_s: float


class Reports(Generic[KeptT]):
    """The reports of one kind.

    Args:
        kind: of what they are; it is part of the keys, and in the plural the name of their index.
        of: type of the reports, a struct.
        name: tells a report from others of its kind.
        expiry_s: one that is not written again within this time is gone; write it several times in that time.
    """

    def __init__(self, kind: str, of: type[KeptT], *, name: Callable[[KeptT], str], expiry_s: float) -> None:
        self._kind, self._name, self._expiry_s = kind, name, expiry_s
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(of).decode

    def publish(
        self, client: Redis, report: KeptT, *, keys: Keys | None = None, expiry_s: float | None = None
    ) -> None:
        """Writes a report in the place of its last one.

        Args:
            keys: names of the keys; default: in the namespace of the settings.
            expiry_s: how long it is believed; default: as long as all of its kind.
        """
        expiry_ms = int((self._expiry_s if expiry_s is None else expiry_s) * 1000)
        client.register_script(_SCRIPT)(
            keys=[self._key(keys, report), self._index(keys)],
            args=[self._encode(report), expiry_ms, _FORGET_AFTER_MS],
        )

    def withdraw(self, client: Redis, report: KeptT, *, keys: Keys | None = None) -> None:
        """Takes a report out at once: who wrote it ends, and nobody shall count on it."""
        with client.pipeline(transaction=False) as pipe:
            pipe.delete(self._key(keys, report))
            pipe.zrem(self._index(keys), self._key(keys, report))
            pipe.execute()

    def aged(self, client: Redis, *, keys: Keys | None = None) -> list[Aged[KeptT]]:
        """The reports that are alive, by name, each with its age."""
        with client.pipeline(transaction=False) as pipe:
            pipe.zrange(self._index(keys), 0, -1, withscores=True)
            pipe.time()
            told, (seconds, micros) = pipe.execute()
        now_s, told_ms = seconds + micros / 1e6, dict(told)
        living = self._living(client, list(told_ms))
        return [Aged(report, max(0.0, now_s - told_ms[key] / 1000)) for key, report in living]

    def all(self, client: Redis, *, keys: Keys | None = None) -> list[KeptT]:
        """The reports that are alive, by name."""
        told = cast("list[bytes]", client.zrange(self._index(keys), 0, -1))
        return [report for _, report in self._living(client, told)]

    def _living(self, client: Redis, told: list[bytes]) -> list[tuple[bytes, KeptT]]:
        """The reports under these keys that have not expired, by name."""
        found = cast("list[bytes | None]", client.mget(told)) if told else []
        living = ((key, self._read(key, raw)) for key, raw in zip(told, found, strict=True) if raw)
        return sorted(
            ((key, report) for key, report in living if report is not None),
            key=lambda each: self._name(each[1]),
        )

    def _read(self, key: bytes, raw: bytes) -> KeptT | None:
        """A report; None where a worker of another version wrote it, which must not hide all others."""
        try:
            return self._decode(raw)
        except msgspec.DecodeError as error:
            log.warning(
                "reports.unreadable",
                what="a worker of another version reports what cannot be read here; it is not counted on",
                key=key.decode(),
                error=str(error),
            )
            return None

    def _index(self, keys: Keys | None) -> str:
        return f"{_namespace(keys)}:{self._kind}s"

    def _key(self, keys: Keys | None, report: KeptT) -> str:
        return f"{_namespace(keys)}:{self._kind}:{self._name(report)}"


def _namespace(keys: Keys | None) -> str:
    return settings().namespace if keys is None else keys.namespace


__all__ = ["Aged", "Reports"]
