"""How much work queues hold, in messages: what waits, and what workers have taken and not ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from celery import Celery
from redis import Redis

from mosaic_queues.broker import is_redis
from mosaic_queues.errors import ConfigurationError

_PAGE = 500


class Work(NamedTuple):
    """Of one queue, or of several together."""

    waiting: int = 0
    running: int = 0

    @property
    def work(self) -> int:
        """All of it."""
        return self.waiting + self.running


def work_of(app: Celery, queues: Iterable[str]) -> dict[str, Work]:
    """What each queue holds. It costs a trip for each, and one for some hundred messages that are worked on.

    Raises:
        ConfigurationError: the broker is no Redis, and cannot be looked into.
    """
    with app.connection_for_read() as connection, connection.channel() as channel:
        if not is_redis(connection):
            raise ConfigurationError("only a broker that is Redis or Valkey can be asked for its messages")
        running = _running(channel)
        return {queue: Work(channel._size(queue), running[queue]) for queue in dict.fromkeys(queues)}


def _running(channel: Any) -> Counter[str | None]:
    """Messages that are not acknowledged, by the queue that they were taken from."""
    client = Redis(connection_pool=channel.pool)  # kombu's own does not put its prefix before this key
    entries = client.hscan_iter(f"{channel.global_keyprefix}{channel.unacked_key}", count=_PAGE)
    return Counter(_queue_of(raw) for _, raw in entries)


def _queue_of(raw: bytes) -> str | None:
    """An entry is kombu's: message, exchange and routing key, which is the queue's name here."""
    _, _, routing_key = msgspec.json.decode(raw, type=tuple[msgspec.Raw, msgspec.Raw, str | None])
    return routing_key


__all__ = ["Work", "work_of"]
