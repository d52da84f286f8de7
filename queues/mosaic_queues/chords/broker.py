"""Looks for tasks in a Redis broker: in its queues, and among what workers have not acknowledged."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

SLICE = 500
MAX_SCAN = 20_000
_CORRELATION_ID = re.compile(rb'"correlation_id":\s*"([^"]+)"')


class Broker:
    """What a Redis broker holds at this moment; read lazily, each queue once.

    Args:
        channel: a channel of kombu's Redis transport.
    """

    def __init__(self, channel: Any) -> None:
        self._channel, self._client = channel, channel.client
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

    def _scan(self, queue: str) -> Collection[str] | None:
        names = [
            f"{self._channel.global_keyprefix}{self._channel._q_for_pri(queue, step)}"
            for step in self._channel.priority_steps
        ]
        lengths = {name: int(self._client.execute_command("LLEN", name)) for name in names}
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


def task_ids(raw: bytes) -> list[str]:
    """The ids of the tasks of a message, read without decoding it."""
    return [found.decode() for found in _CORRELATION_ID.findall(raw)]
