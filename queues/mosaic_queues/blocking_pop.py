"""Ends the blocking pop of a worker's consumer: kombu waits for its answer before it closes, a second at most."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError


def end_blocking_pop(channel: Any) -> None:
    """Has the server answer at once. A message that was popped by then comes as it would have.

    Where that cannot be asked for (another broker, a server that forbids it, a connection that does not know its
    number), kombu waits.

    Args:
        channel: of kombu, which takes no more messages.
    """
    if (number := _number(getattr(channel, "_in_poll", None))) is not None:
        with suppress(RedisError), channel.conn_or_acquire() as client:
            client.client_unblock(number)


def _number(connection: Any) -> int | None:
    """The server's for a connection of redis-py, as it was told in the greeting of RESP3."""
    greeting = getattr(connection, "handshake_metadata", None) or {}
    number = greeting.get(b"id", greeting.get("id"))
    return None if number is None else int(number)


__all__ = ["end_blocking_pop"]
