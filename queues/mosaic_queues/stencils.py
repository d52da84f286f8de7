"""Stencils: what all messages of one task to one queue have in common, made by Celery and kombu once.

Both take some 80 us for a message, in which nothing differs but ids, a time and the calls. A stencil is cut from a
message that they made, noted instead of sent, and filled in for each one: whatever an app's configuration puts into its
messages is in it.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import msgspec

WEIGHT_HEADER = "mosaic_slots"
"""Header of a message that takes more than one slot of a worker that runs calls together: how many."""
PLAN_HEADER = "mosaic_plan"
"""Header with the content hash of the plan of a message's run: who has that at hand need not ask which one it is."""

_encode = msgspec.json.encode


class Parcel(NamedTuple):
    """What one message carries.

    Attributes:
        plan: content hash of the run's plan; empty: not known.
        group: the headers of a member of a chord.
    """

    run_id: str
    calls: Sequence[str]
    plan: str = ""
    group: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def headers(self, sent_at: float) -> dict[str, Any]:
        """The headers that are its own.

        Args:
            sent_at: the server's time in Unix seconds.
        """
        own: dict[str, Any] = {"root_id": self.run_id, "argsrepr": describe(self.run_id, self.calls)}
        weight = {WEIGHT_HEADER: len(self.calls)} if len(self.calls) > 1 else {}
        plan = {PLAN_HEADER: self.plan} if self.plan else {}
        return {**own, **self.group, "sent_at": sent_at, **weight, **plan}


class Stencil:
    """The messages of one task, queue and priority.

    Attributes:
        key: of the broker's list that they wait in, without the channel's prefix.
        prefix: of the channel.
    """

    def __init__(self, key: str, message: dict[str, Any], *, prefix: str) -> None:
        self.key, self.prefix = key, prefix
        self._message = message
        self._headers: dict[str, Any] = message["headers"]
        self._properties: dict[str, Any] = message["properties"]
        _args, *self._embedded = msgspec.json.decode(base64.b64decode(message["body"]))

    @classmethod
    def cut(cls, channel: Any, send: Callable[[Any], None]) -> Self | None:
        """From what a channel of kombu's Redis transport would send.

        Args:
            send: sends a message with the same calls, through the channel that it is given.

        Returns:
            None where more would be done than to put a plain JSON message into a list, or where messages differ in more
            than their ids: then something makes each of them by itself.
        """
        first, second = _noted(channel, send), _noted(channel, send)
        if first is None or second is None or _without_ids(first[1]) != _without_ids(second[1]):
            return None
        key, message = first
        return cls(key, message, prefix=channel.global_keyprefix)

    def text(self, parcel: Parcel, sent_at: float) -> str:
        """A message as the broker holds it, with an id of its own."""
        message_id = uuid.uuid4().hex
        body = _encode([(parcel.run_id, parcel.calls), *self._embedded])
        message = {
            **self._message,
            "body": base64.b64encode(body).decode(),
            "headers": {**self._headers, **parcel.headers(sent_at), "id": message_id},
            "properties": {
                **self._properties,
                "correlation_id": message_id,
                "delivery_tag": str(uuid.uuid4()),
            },
        }
        return _encode(message).decode()


def _noted(channel: Any, send: Callable[[Any], None]) -> tuple[str, dict[str, Any]] | None:
    """The list and the message that would be sent."""
    noting = _Noting(channel)
    send(noting)
    if [name for name, *_ in noting.commands] != ["lpush"]:
        return None
    _, key, text = noting.commands[0]
    message: dict[str, Any] = msgspec.json.decode(text)
    form = message["properties"].get("body_encoding"), message["content-encoding"], message["content-type"]
    is_plain = form == ("base64", "utf-8", "application/json") and "compression" not in message["headers"]
    return (key, message) if is_plain else None


def _without_ids(message: dict[str, Any]) -> dict[str, Any]:
    own = {
        "headers": {name: value for name, value in message["headers"].items() if name != "id"},
        "properties": {
            name: value
            for name, value in message["properties"].items()
            if name not in ("correlation_id", "delivery_tag")
        },
    }
    return {**message, **own}


class _Noting:
    """A channel of kombu's Redis transport that notes what it would send, for a producer that sends one message.

    Attributes:
        commands: names, keys without the channel's prefix, and arguments.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.commands: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def basic_publish(self, message: Any, **options: Any) -> None:
        """Has the channel put the message into a batch, which is this."""
        self._channel.basic_publish(message, _publish_batch=self, **options)

    def add(self, *command: Any) -> None:
        """Called by the channel."""
        self.commands.append(command)


def describe(run_id: str, calls: Sequence[str]) -> str:
    """The arguments of a call message as Flower shows them."""
    named = ", ".join(calls[:3])
    return f"({run_id}, [{named}{', ...' if len(calls) > 3 else ''}], {len(calls)} calls)"
