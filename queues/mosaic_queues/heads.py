"""Looks at the head of a queue: when was the oldest message of ours published?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from celery import Celery
from kombu.exceptions import OperationalError

LOOK_AT = 200
"""Messages of other tasks that may lie before the oldest of ours."""
UNKNOWN = 0.0
"""Older than anything: the queue may hold what is looked for."""


def oldest_message(app: Celery, queue: str) -> float | None:
    """When the oldest of our messages in a queue was published, in Unix seconds of the server.

    None: there is none. `UNKNOWN`: the broker cannot be looked into, or too many foreign messages lie before it.
    """
    with app.connection_for_read() as connection, connection.channel() as channel:
        if not hasattr(channel, "_q_for_pri"):
            return UNKNOWN if _count(channel, queue) else None
        heads = [head for name in _lists(channel, queue) for head in _heads(channel, name)]
    return min(heads, default=None)


def _count(channel: Any, queue: str) -> int:
    """How many messages wait on a broker of another kind; 0 when it does not know the queue."""
    try:
        count: int = channel.queue_declare(queue, passive=True).message_count
    except (OperationalError, *channel.connection.client.channel_errors):
        return 0
    return count


def _lists(channel: Any, queue: str) -> Iterable[str]:
    """The Redis lists behind a queue, one a priority, under the app's key prefix."""
    return [f"{channel.global_keyprefix}{channel._q_for_pri(queue, step)}" for step in channel.priority_steps]


def _heads(channel: Any, name: str) -> Iterator[float]:
    messages = channel.client.execute_command("LRANGE", name, -LOOK_AT, -1)
    for raw in reversed(messages):
        sent_at = msgspec.json.decode(raw).get("headers", {}).get("sent_at")
        if sent_at is not None:
            yield float(sent_at)
            return
    if len(messages) == LOOK_AT:
        yield UNKNOWN
