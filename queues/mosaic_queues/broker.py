"""Looks into a broker: which tasks it holds, in its queues or not acknowledged, and how old a queue's messages are.

Only Redis brokers can be looked into.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
from celery import Celery
from kombu.exceptions import OperationalError

from mosaic_queues.topology import LEVELS

SLICE = 500
MAX_SCAN = 20_000
LOOK_AT = 200
"""Messages of other tasks that may lie before the oldest of ours."""
ANY = -1
"""Stands for a priority: messages of all of them."""
UNKNOWN = 0.0
"""Older than anything: the queue may hold what is looked for."""
_CORRELATION_ID = re.compile(rb'"correlation_id":\s*"([^"]+)"')


class Broker:
    """What a Redis broker holds at this moment; read lazily, each queue once.

    Args:
        channel: a channel of kombu's Redis transport.
    """

    def __init__(self, channel: Any) -> None:
        self._channel, self._client = channel, channel.client
        self._own_steps: tuple[int, ...] = tuple(channel.priority_steps)
        see_all_levels(channel)
        self._queues: dict[str, Collection[str] | None] = {}
        self._unacked: dict[str, str] | None = None

    def holds(self, queue: str, task_id: str) -> bool:
        """Whether the task's message waits in the queue. A very long queue is taken to hold it, until it is shorter."""
        if queue not in self._queues:
            self._queues[queue] = self._scan(queue)
        found = self._queues[queue]
        return found is None or task_id in found

    def unacked_tag(self, task_id: str) -> str | None:
        """The delivery tag of a message that some worker popped and has not acknowledged."""
        if self._unacked is None:
            self._unacked = dict(self._scan_unacked())
        return self._unacked.get(task_id)

    def restore(self, tag: str) -> None:
        """Puts an unacknowledged message back into its queue; nothing when it is acknowledged by now."""
        self._channel.qos.restore_by_tag(tag)

    def oldest(self, queue: str, priority: int) -> float | None:
        """When the oldest of our messages of a queue and priority was published, as `oldest_message` tells it."""
        if priority == ANY:
            lists = set(self._lists(queue))
        else:
            lists = {self._list(queue, priority), self._list(queue, self._own_step(priority))}
        return min((head for name in lists for head in self._heads(name)), default=None)

    def move(self, source: str, target: str, *, most: int) -> int:
        """Moves messages to the front of another queue, the most urgent and oldest first; returns how many."""
        moved = 0
        for one, other in zip(self._lists(source), self._lists(target), strict=True):
            while moved < most and self._client.execute_command("LMOVE", one, other, "RIGHT", "RIGHT"):
                moved += 1
        return moved

    def delete(self, queue: str) -> None:
        """Deletes a queue. kombu's own way only knows queues that the same connection declared."""
        self._channel._delete(queue, queue, queue, "")

    def _own_step(self, priority: int) -> int:
        """Where the app itself puts messages of a priority; it may tell fewer apart."""
        return max((step for step in self._own_steps if step <= priority), default=self._own_steps[-1])

    def _list(self, queue: str, priority: int) -> str:
        """The list behind a queue and a priority, under the app's key prefix."""
        return f"{self._channel.global_keyprefix}{self._channel._q_for_pri(queue, priority)}"

    def _lists(self, queue: str) -> list[str]:
        """The lists behind a queue, one a priority, under the app's key prefix."""
        return [self._list(queue, step) for step in self._channel.priority_steps]

    def _heads(self, name: str) -> Iterator[float]:
        messages = self._client.execute_command("LRANGE", name, -LOOK_AT, -1)
        for raw in reversed(messages):
            if (sent_at := _sent_at(raw)) is not None:
                yield sent_at
                return
        if len(messages) == LOOK_AT:
            yield UNKNOWN

    def _scan(self, queue: str) -> Collection[str] | None:
        lengths = {name: int(self._client.execute_command("LLEN", name)) for name in self._lists(queue)}
        if sum(lengths.values()) > MAX_SCAN:
            return None
        return {task_id for name, length in lengths.items() for task_id in self._scan_list(name, length)}

    def _scan_list(self, name: str, length: int) -> Collection[str]:
        found: set[str] = set()
        first = 0
        while length and (messages := self._client.execute_command("LRANGE", name, first, first + SLICE - 1)):
            found.update(task_id for raw in messages for task_id in task_ids(raw))
            first += SLICE
        return found

    def _scan_unacked(self) -> list[tuple[str, str]]:
        name = f"{self._channel.global_keyprefix}{self._channel.unacked_key}"
        pairs: list[tuple[str, str]] = []
        cursor: Any = 0
        while True:
            cursor, found = self._client.execute_command("HSCAN", name, cursor, "COUNT", SLICE)
            pairs += [(task_id, tag.decode()) for tag, raw in found.items() for task_id in task_ids(raw)]
            if not int(cursor):
                return pairs


def see_all_levels(channel: Any) -> None:
    """Has a channel of kombu's Redis transport look into the lists of all levels of priority, not only into those that
    its app tells apart: others publish with other apps."""
    if hasattr(channel, "priority_steps"):
        channel.priority_steps = sorted({*channel.priority_steps, *LEVELS})


class _Headers(msgspec.Struct):
    sent_at: float


class _Message(msgspec.Struct):
    headers: _Headers


_read_message = msgspec.json.Decoder(_Message).decode


def _sent_at(raw: bytes) -> float | None:
    """When a message was published; None for one that is not ours, whatever it is."""
    try:
        return _read_message(raw).headers.sent_at
    except msgspec.MsgspecError:
        return None


def task_ids(raw: bytes) -> list[str]:
    """The ids of the tasks of a message, read without decoding it."""
    return [found.decode() for found in _CORRELATION_ID.findall(raw)]


def is_redis(connection: Any) -> bool:
    """Whether a connection of kombu's leads to a broker that can be looked into."""
    return bool(connection.transport.driver_type == "redis")


def oldest_message(app: Celery, queue: str, priority: int = 0) -> float | None:
    """When the oldest of our messages of a queue and priority was published, in Unix seconds of the server.

    None: there is none. `UNKNOWN`: the broker cannot be looked into, or too many foreign messages lie before it.
    """
    with app.connection_for_read() as connection, connection.channel() as channel:
        if is_redis(connection):
            return Broker(channel).oldest(queue, priority)
        return UNKNOWN if _count(channel, queue) else None


def move_messages(app: Celery, source: str, target: str, *, most: int) -> int:
    """Moves messages to the front of another queue, the most urgent and oldest first; returns how many.

    On a broker that cannot be looked into: none.
    """
    with app.connection_for_write() as connection, connection.channel() as channel:
        return Broker(channel).move(source, target, most=most) if is_redis(connection) else 0


def delete_queue(app: Celery, queue: str) -> None:
    """Deletes a queue with all of its messages."""
    with app.connection_for_write() as connection, connection.channel() as channel:
        if is_redis(connection):
            Broker(channel).delete(queue)
        else:
            channel.queue_delete(queue)


def _count(channel: Any, queue: str) -> int:
    """How many messages wait on a broker of another kind; 0 when it does not know the queue."""
    try:
        count: int = channel.queue_declare(queue, passive=True).message_count
    except (OperationalError, *channel.connection.client.channel_errors):
        return 0
    return count
