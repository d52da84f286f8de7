"""How a worker takes messages from a Redis broker: as many as it has room for in one trip, acknowledged together.

kombu takes one message by a blocking pop, notes it as unacked in a second trip, and acknowledges it in a third. Here
one script notes what came, takes more of the same queues and strikes off what was acknowledged meanwhile. The entries
of unacked messages are kombu's own: its restoring after the visibility timeout, and other workers, know no difference.
Messages that the script takes are noted in the same step, so none is lost in a worker that dies between the two, as one
that a blocking pop took may be.

What becomes of calls the ledger knows: it says which are done should their message come once more, and has those
published again whose message is lost. So a popped message of calls is handed on at once, and that it came, or is
acknowledged, is noted with the next trip, after `LATE_S` at most, and before that as long at most for the pool to look
for it; of one that is done by then nothing is. Nothing knows that of other tasks, so theirs do not wait.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import resources
from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import dumps, loads
from redis import Redis
from redis.exceptions import NoScriptError

from mosaic_queues.outbox import CALL_TASK, CLOSE_TASK, CONSUME_TASK, keep_client
from mosaic_queues.popping import LastPop
from mosaic_queues.stencils import WEIGHT_HEADER

_TEXT = resources.files("mosaic_queues").joinpath("lua", "intake.lua").read_text("utf-8")
_SHA = hashlib.sha1(_TEXT.encode(), usedforsecurity=False).hexdigest()

LATE_S = 0.05
"""So long a note about a message of calls waits for others, and for a trip that is made anyway."""
POPS = 2
"""So many popped messages tell that a queue has more: a trip takes them all at once."""
_CLAIMED = CALL_TASK, CLOSE_TASK, CONSUME_TASK
"""Tasks whose messages may come twice, as the ledger knows what is done of them."""


def install_intake(
    channel: Any,
    free: Callable[[], int],
    *,
    ahead: Callable[[], int] = lambda: 0,
    wake: Callable[[], object] = lambda: None,
) -> Intake | None:
    """Has a consumer's channel take messages so; it must not have consumed yet.

    Args:
        channel: of kombu. Those of brokers other than Redis stay as they are.
        free: how many messages the worker has room for now.
        ahead: how many of them are beyond the prefetch count.
        wake: has `turn` called soon.

    Returns:
        None when the channel stays as it is.
    """
    if not isinstance(channel, kombu_redis.Channel) or not channel.ack_emulation:
        return None
    before = channel.qos
    before._on_collect.cancel()
    intake = Intake(channel, prefetch_count=before.prefetch_count, free=free, ahead=ahead, wake=wake)
    channel._qos = intake
    keep_client(channel)
    return intake


class Intake(kombu_redis.QoS):
    """What a channel knows of its unacknowledged messages, and how it takes more (kombu's `QoS`).

    Args:
        prefetch_count: unacknowledged messages at most; 0: any number.
        free: room in the worker for more messages.
        ahead: so many messages the worker takes beyond the prefetch count, since it will need them soon.
        wake: has `turn` called soon.

    Attributes:
        awaits_room: when it was last asked, there was no room.
    """

    def __init__(
        self,
        channel: Any,
        *,
        prefetch_count: int,
        free: Callable[[], int],
        ahead: Callable[[], int],
        wake: Callable[[], object],
    ) -> None:
        super().__init__(channel, prefetch_count)
        # kombu's own client would put a prefix before one of the keys, whose names are complete here.
        self._pool = channel.pool
        # One that is kept is taken faster, and must not be the only one: kombu's own calls need it between trips.
        keeps = self._pool.max_connections > 1
        self._client: Redis | None = Redis(connection_pool=self._pool, single_connection_client=keeps)
        self._free, self._ahead, self._wake = free, ahead, wake
        self._popped = LastPop.of(channel)
        self._keys = _Keys(channel)
        self._acked: list[str] = []
        self._due = 0.0
        self._unnoted: dict[str, str] = {}
        self._perhaps_noted: set[str] = set()
        self.awaits_room = True
        self._arrived: deque[tuple[str, dict[str, Any], int]] = deque()
        self._noted: set[str] = set()
        self._is_more = False

    def can_consume(self) -> bool:
        """Whether there is room for one more message. Before the next pop it takes all that a queue has, where it seems
        to have more."""
        if len(self._unnoted) >= POPS and (room := self._room()) > 0:
            self._trip(room)
        if self._arrived:  # to be delivered, and not amid what kombu asks here
            self._wake()
        self.awaits_room = True  # before looking, so that none is made unnoticed
        self.awaits_room = self._room() <= 0
        return not self.awaits_room

    @property
    def is_owing(self) -> bool:
        """Whether there is a message that is not acknowledged."""
        return len(self._delivered) > len(self._dirty)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Takes in a message that came. One that is not of calls is noted before it is handed on, and others are taken
        into the room beside it."""
        virtual.QoS.append(self, message, delivery_tag)
        if delivery_tag in self._noted:
            self._noted.discard(delivery_tag)
            return
        self._waits()
        self._unnoted[delivery_tag] = self._entry(message, delivery_tag)
        self._popped.answer = None  # however large it is
        if not self._may_wait(delivery_tag):
            self._trip(self._room(weight_of(message.headers)))

    def ack(self, delivery_tag: str) -> None:
        """Acknowledges with a turn that is due, or makes a trip for something else. After the channel was closed: at
        once, as there is none."""
        if self.channel.closed:
            super().ack(delivery_tag)
            return
        if self._unnoted.pop(delivery_tag, None) is not None and delivery_tag not in self._perhaps_noted:
            self._delivered.pop(delivery_tag, None)
            return
        self._waits()
        if not self._may_wait(delivery_tag):
            self._due = 0.0
        self._acked.append(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Acknowledges, or puts back at once."""
        if requeue:
            self.note()  # what is put back has to be there
            super().reject(delivery_tag, requeue=True)
        else:
            self.ack(delivery_tag)

    def turn(self) -> None:
        """Notes what is due, takes more where the queues seem to have more, and delivers it."""
        # While a blocking pop is on its way it takes the next message.
        room = self._room() if self._is_more and not self.channel._in_poll else 0
        if room > 0 or (self._has_notes and time.monotonic() >= self._due):
            self._trip(room)
        self._deliver()

    def note(self) -> None:
        """Notes all that waits for it: what came, and what is acknowledged."""
        if self._has_notes:
            self._trip(0)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Puts back what is not acknowledged, when the channel closes; it has closed its connections before."""
        with suppress(*self.channel.connection_errors):
            self.note()
        super().restore_unacked_once(stderr)
        self._pool.disconnect()

    def _deliver(self) -> None:
        """Hands what was taken to the consumer, as kombu does with what a blocking pop took."""
        transport = self.channel.connection
        while self._arrived:
            queue, message, _weight = self._arrived.popleft()
            if queue in transport._callbacks:
                transport._deliver(message, queue)
            else:  # cancelled meanwhile
                tag = message["properties"]["delivery_tag"]
                self._noted.discard(tag)
                self.reject(tag, requeue=True)

    def _room(self, taken: int = 0) -> int:
        arrived = sum(weight for _queue, _message, weight in self._arrived)
        room = self._free() - arrived - taken
        if not self.prefetch_count:
            return room
        unacked = len(self._delivered) - len(self._dirty) - len(self._acked)
        return min(room, int(self.prefetch_count) + self._ahead() - unacked)

    @property
    def _has_notes(self) -> bool:
        return bool(self._acked or self._unnoted)

    def _waits(self) -> None:
        """Something is to be noted; the first of that says until when it waits for others."""
        if not self._has_notes:
            self._due = time.monotonic() + LATE_S

    def _may_wait(self, delivery_tag: str) -> bool:
        headers = getattr(self._delivered.get(delivery_tag), "headers", None)
        return isinstance(headers, dict) and headers.get("task") in _CLAIMED

    def _entry(self, message: Any, delivery_tag: str) -> str:
        """As kombu notes a message, with the text that came where it is at hand."""
        info, text = message.delivery_info, self._popped.text
        if str(delivery_tag) not in text:
            text = dumps(message._raw)
        return f"[{text}, {json.dumps(info['exchange'])}, {json.dumps(info['routing_key'])}]"

    def _trip(self, room: int) -> None:
        # What is acknowledged meanwhile goes with the next trip, as one does whose note may not have arrived.
        acked, (unnoted, self._unnoted) = tuple(self._acked), (self._unnoted, {})
        entries = (part for entry in unnoted.items() for part in entry)
        queues = self.channel._queue_cycle.consume(len(self.channel.active_queues))
        room = max(room, 0) if queues else 0
        keys = self._keys.of(queues if room else ())
        try:
            answer = self._run(keys, (time.time(), room, len(queues) or 1, len(acked), *acked, *entries))
        except BaseException:
            self._unnoted |= {tag: entry for tag, entry in unnoted.items() if tag not in self._acked}
            self._perhaps_noted |= unnoted.keys()
            raise
        self._perhaps_noted -= unnoted.keys()
        del self._acked[: len(acked)]
        for tag in acked:
            self._delivered.pop(tag, None)
        taken = sum(self._arrive(queues[(at - 1) % len(queues)], raw) for at, raw in _pairs(answer))
        if room:
            self._is_more = taken >= room

    def _run(self, keys: Sequence[bytes], arguments: tuple[Any, ...]) -> list[Any]:
        # A signal's handler may come in between with a trip of its own, and must find no connection that is in use.
        own, self._client = self._client, None
        client: Any = own or Redis(connection_pool=self._pool)
        try:
            answer = client.execute_command("EVALSHA", _SHA, len(keys), *keys, *arguments)
        except NoScriptError:
            answer = client.eval(_TEXT, len(keys), *keys, *arguments)
        finally:
            self._client = own
        return list(answer)

    def _arrive(self, queue: str, raw: bytes) -> int:
        message = loads(raw.decode())
        tag, weight = message["properties"]["delivery_tag"], weight_of(message.get("headers"))
        self._noted.add(tag)
        self._delivered[tag] = None  # so that it is put back should the channel close before it is delivered
        self._arrived.append((queue, message, weight))
        self.channel._queue_cycle.rotate(queue)
        return weight


class _Keys:
    """The keys of a trip; their names are made once."""

    def __init__(self, channel: Any) -> None:
        self._channel, self._steps = channel, list[int]()
        self._lists: dict[str, list[bytes]] = {}
        self._noted = [self._full(name) for name in (channel.unacked_key, channel.unacked_index_key)]

    def of(self, queues: Sequence[str]) -> list[bytes]:
        """The keys of what is unacked, then those of the lists of queues, as the script wants them."""
        if self._steps != self._channel.priority_steps:
            self._steps, self._lists = list(self._channel.priority_steps), {}
        lists = [self._lists.get(queue) or self._lists_of(queue) for queue in queues]
        return [*self._noted, *(name for level in zip(*lists, strict=True) for name in level)]

    def _lists_of(self, queue: str) -> list[bytes]:
        names = [self._full(self._channel._q_for_pri(queue, step)) for step in self._steps]
        return self._lists.setdefault(queue, names)

    def _full(self, name: str) -> bytes:
        return f"{self._channel.global_keyprefix}{name}".encode()


def weight_of(headers: Any) -> int:
    """How many slots a message takes, by its headers; what is no whole number of at least 1 counts as 1."""
    weight = headers.get(WEIGHT_HEADER) if isinstance(headers, dict) else None
    return weight if isinstance(weight, int) and weight >= 1 else 1


def _pairs(answer: list[Any]) -> Iterator[tuple[int, bytes]]:
    places = iter(answer)
    return zip(places, places, strict=True)
