"""Where the joins of an app's chords are: Celery's Redis backend, with its address and its encoding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import msgspec
from celery.backends.redis import RedisBackend
from kombu import serialization

from mosaic_queues.chords.joins import Chords, Record, new_token
from mosaic_queues.settings import settings


class ChordBackend(RedisBackend):
    """Celery's Redis backend, with access to the joins beside its results."""

    def _params_from_url(self, url: str, defaults: dict[str, Any]) -> dict[str, Any]:
        scheme, _, rest = url.partition("://")
        known = {"redis+socket": "socket", "unix": "socket", "valkey": "redis", "valkeys": "rediss"}
        return cast(
            "dict[str, Any]", super()._params_from_url(f"{known.get(scheme, scheme)}://{rest}", defaults)
        )

    @cached_property
    def chords(self) -> Chords:
        """The joins of this server."""
        prefix = self._transport_options.get("global_keyprefix") or ""
        return Chords(self.client, namespace=prefix + settings().namespace)

    def note(self, group_id: str, records: Sequence[Record]) -> None:
        """Notes published messages of a join, which does not complete it."""
        self.ensure(lambda: self.chords.advance(group_id, token=new_token(), records=records), ())

    def packed(self, value: Any) -> bytes:
        """A value in the app's serialization of tasks."""
        return msgspec.msgpack.encode(serialization.dumps(value, serializer=self.app.conf.task_serializer))

    def unpacked(self, packed: bytes) -> Any:
        """What `packed` gave."""
        content_type, encoding, data = msgspec.msgpack.decode(packed)
        return serialization.loads(data, content_type, encoding, accept=self.accepted())

    def accepted(self) -> set[str]:
        """The content types that the app accepts, as it declared them; others are refused."""
        accepted: set[str] = serialization.prepare_accept_content(self.app.conf.accept_content)
        return accepted
