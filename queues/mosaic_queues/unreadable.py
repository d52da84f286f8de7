"""What lies in a queue and kombu cannot read: it would end the worker that takes it, and the next one.

Two things may be wrong. A message whose body cannot be decoded is handed on all the same, so that whoever decodes it
is told. What is no message at all, text that somebody else put into the list of a queue, is handed to `refuse`, and is
gone from the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

from mosaic_queues.popping import LastPop

_BROKEN = (ValueError, TypeError, KeyError, AttributeError)
"""What kombu raises at any of them."""


class BearingMessage(virtual.Message):  # type: ignore[misc, unused-ignore]
    """A message that is one also where its headers are none, or its body cannot be decoded; then that is what came."""

    def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:
        try:
            super().__init__(payload, channel=channel, **options)
        except _BROKEN:
            headers = payload.get("headers")
            bare = {**payload, "headers": headers if isinstance(headers, dict) else {}}
            try:
                super().__init__(bare, channel=channel, **options)
            except _BROKEN:
                super().__init__({**bare, "body": None}, channel=channel, **options)
                self.body = str(payload.get("body")).encode()
            self._raw = payload
        info = self.delivery_info
        if not (isinstance(self.delivery_tag, str) and "exchange" in info and "routing_key" in info):
            raise ValueError("it can be neither noted nor acknowledged")


class _Envelope(msgspec.Struct):
    delivery_tag: str
    delivery_info: dict[str, Any]


class _Message(msgspec.Struct):
    properties: _Envelope


def is_message(raw: bytes) -> bool:
    """Whether kombu can take it for one."""
    try:
        info = msgspec.json.decode(raw, type=_Message).properties.delivery_info
    except msgspec.MsgspecError:
        return False
    return {"exchange", "routing_key"} <= info.keys()


def bear_unreadable(channel: Any, refuse: Callable[[str, bytes], object]) -> None:
    """Has a consumer's channel go on where kombu would raise. Those of brokers other than Redis stay as they are.

    Args:
        refuse: is given a queue, and what came from it and is no message.
    """
    if isinstance(channel, kombu_redis.Channel):
        channel.Message = BearingMessage
        channel.handlers["BRPOP"] = _Reading(channel, refuse)


class _Reading:
    """In the place of a channel's own reading of what a blocking pop brought."""

    def __init__(self, channel: Any, refuse: Callable[[str, bytes], object]) -> None:
        self._channel, self._refuse = channel, refuse
        self._read, self._popped = channel._brpop_read, LastPop.of(channel)

    def __call__(self, **options: Any) -> Any:
        """Reads and delivers it."""
        self._popped.answer = None
        try:
            return self._read(**options)
        except _BROKEN:
            if self._popped.answer is None or is_message(self._popped.answer[1]):
                raise
            queue, raw = self._popped.answer
            name = queue.decode() if isinstance(queue, bytes) else queue
            self._refuse(name.rpartition(self._channel.sep)[0] or name, raw)
            return True
        finally:
            self._popped.answer = None


__all__ = ["BearingMessage", "bear_unreadable", "is_message"]
