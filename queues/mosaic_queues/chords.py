"""The joins of chords: their transitions as one typed class over the Lua scripts, and their sweeping.

A join waits for the headers of one chord. Each header has a *slot* (task id and index). A finished header is a
*part* of its slot: the first one counts. What a slot waits for is its latest task message: a retry, a replacement or
the next step of a chain takes the place of the one before (`Order` grows), so a slot has one message at a time, which
is either in a queue or claimed by a worker's main process. The sweeper compares that with what lives.

A join is *open*, then *ready* (complete; whoever holds the lease dispatches the body), then *sent* (the body's messages
are slots now, until a worker received them), then gone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple, Protocol, cast

import msgspec
import structlog
from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.keys import Keys
from mosaic_queues.liveness import forget_dead, live_processes
from mosaic_queues.scripts import Script
from mosaic_queues.sweeper import FORGET_AFTER_MS, server_ms

log = structlog.get_logger(__name__)

JoinState = Literal["open", "ready", "sent"]
Order = tuple[int, int, int]
"""Which message of a slot is the latest: replacements, minus the chain steps that follow, retries."""

SLICE = 500
MAX_SCAN = 20_000
MAX_PAUSE_MS = 10_000
INDEX_EXPIRE_S = 30 * 86_400
_CORRELATION_ID = re.compile(rb'"correlation_id":\s*"([^"]+)"')


class Record(NamedTuple):
    """A published task message of a slot."""

    slot: str
    order: Order
    queue: str
    task_id: str
    message: bytes


class Part(NamedTuple):
    """A finished header. `payload` is the result as Celery encodes it; `ok` whether it succeeded."""

    position: float | None
    task_id: str
    ok: bool
    payload: bytes

    @property
    def rank(self) -> tuple[float, str]:
        """Sorts parts in header order."""
        return (float("inf") if self.position is None else self.position), self.task_id


class Slot(NamedTuple):
    """What a slot waits for: `w`, a message in a queue since `at_ms`, or `c`, one that `holder` received as `tag`."""

    order: Order
    status: Literal["w", "c"]
    queue: str
    at_ms: int
    holder: str
    tag: str
    losses: int
    acks_late: bool
    task_id: str


class Join(NamedTuple):
    """A join as a whole. `size` 0: not sealed yet; `shape` is empty for a flat header."""

    state: JoinState
    lease: str
    at_ms: int
    quorum: int
    size: int
    body: bytes
    shape: bytes


class Chords:
    """All transitions and reads of joins in one server.

    Args:
        client: a connection with `decode_responses=False`.
        namespace: prefix of all keys.
    """

    def __init__(self, client: Redis, *, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.index = f"{namespace}:chords"
        """Sorted set of the open joins, by when they are looked at next (ms)."""

    def keys(self, group_id: str) -> tuple[str, str, str, str]:
        """The keys of a join in the order of the scripts: join, parts, slots, messages."""
        prefix = f"{self.namespace}:chord:{{{group_id}}}"
        return prefix, prefix + ":parts", prefix + ":slots", prefix + ":messages"

    # -- transitions -------------------------------------------------------------------------------------------

    def open(
        self, group_id: str, *, body: bytes, shape: bytes, quorum: int, expire_s: int, look_ms: int
    ) -> None:
        """Opens a join, after it was listed for the sweeper; one that is open already stays as it is."""
        argument = {"quorum": quorum, "expire_s": expire_s}
        with self.client.pipeline(transaction=False) as pipe:
            pipe.zadd(self.index, {group_id: look_ms})
            pipe.expire(self.index, INDEX_EXPIRE_S)
            pipe.execute()
        _OPEN(self.client, self.keys(group_id), argument, (body, shape))

    def advance(
        self,
        group_id: str,
        *,
        token: str,
        records: Sequence[Record] = (),
        size: int | None = None,
        grow: int = 0,
        part: tuple[str, Part] | None = None,
    ) -> int:
        """Notes messages, seals, grows, counts a part. 1: complete, `token` dispatches; -1: no such join."""
        argument = {
            "records": [record[:-1] for record in records],
            "size": False if size is None else size,
            "grow": grow,
            "part": [part[0], part[1].ok] if part else False,
            "token": token,
        }
        messages = [record.message for record in records]
        if part:
            messages.append(msgspec.msgpack.encode(part[1]))
        return int(_ADVANCE(self.client, self.keys(group_id), argument, messages))

    def claim(self, group_id: str, slot: str, state: Slot) -> bool:
        """A worker received a header."""
        argument = {"slot": slot, "body": False, **state._asdict()}
        return bool(_CLAIM(self.client, self.keys(group_id), argument))

    def body_received(self, group_id: str, slot: str) -> None:
        """A worker received a body; after the last one the join is gone."""
        if _CLAIM(self.client, self.keys(group_id), {"slot": slot, "body": True}) == 2:
            self.unlist(group_id)

    def change(self, group_id: str, slot: str, seen: bytes, new: Slot | None) -> bool:
        """Changes a slot that still has the value `seen`; None: it is watched no longer."""
        values = [seen] if new is None else [seen, msgspec.msgpack.encode(new)]
        return bool(_CHANGE(self.client, self.keys(group_id), {"slot": slot}, values))

    def lease(self, group_id: str, *, seen: str, token: str) -> bool:
        """Takes or prolongs the lease to dispatch the body."""
        return bool(_LEASE(self.client, self.keys(group_id), {"seen": seen, "token": token}))

    def sent(self, group_id: str, *, token: str, records: Sequence[Record]) -> int:
        """The body is published as `records`. 2: nothing to wait for; 0: another process has the lease."""
        argument = {"token": token, "records": [record[:-1] for record in records]}
        messages = [record.message for record in records]
        answer = int(_SENT(self.client, self.keys(group_id), argument, messages))
        if answer == 2:
            self.unlist(group_id)
        return answer

    # -- reads and the index of joins --------------------------------------------------------------------------

    def due(self, now_ms: int | None) -> list[str]:
        """The joins to be looked at by `now_ms`; None: all."""
        found = self.client.zrangebyscore(self.index, "-inf", "+inf" if now_ms is None else now_ms)
        return [group_id.decode() for group_id in cast("list[bytes]", found)]

    def look_again(self, group_id: str, at_ms: int) -> None:
        """Sets when a listed join is looked at next."""
        self.client.zadd(self.index, {group_id: at_ms}, xx=True)

    def unlist(self, group_id: str) -> None:
        """Takes a join that is gone out of the index."""
        self.client.zrem(self.index, group_id)

    def read(self, group_id: str) -> Join | None:
        """The join as a whole, None when it is gone."""
        names = ("state", "lease", "at_ms", "quorum", "size", "body", "shape")
        found = self.client.hmget(self.keys(group_id)[0], names)
        state, lease, at_ms, quorum, size, body, shape = cast("list[bytes | None]", found)
        if state is None:
            return None
        return Join(
            cast(JoinState, state.decode()),
            (lease or b"").decode(),
            int(at_ms or 0),
            int(quorum or 0),
            int(size or 0),
            body or b"",
            shape or b"",
        )

    def parts(self, group_id: str) -> list[Part]:
        """The finished headers, in header order."""
        found = cast("list[bytes]", self.client.hvals(self.keys(group_id)[1]))
        return sorted((msgspec.msgpack.decode(raw, type=Part) for raw in found), key=lambda part: part.rank)

    def slots(self, group_id: str) -> dict[str, bytes]:
        """What is on its way: slot and its value (`Slot`, encoded)."""
        found = cast("dict[bytes, bytes]", self.client.hgetall(self.keys(group_id)[2]))
        return {slot.decode(): raw for slot, raw in found.items()}

    def slot(self, group_id: str, slot: str) -> bytes | None:
        """The value of one slot."""
        return cast("bytes | None", self.client.hget(self.keys(group_id)[2], slot))

    def message(self, group_id: str, slot: str) -> bytes | None:
        """The latest message of a slot, None when its publisher did not note it."""
        return cast("bytes | None", self.client.hget(self.keys(group_id)[3], slot))


def new_token() -> str:
    """A token for a dispatch lease."""
    return secrets.token_hex(8)


def decode_slot(raw: bytes) -> Slot:
    """A slot's value."""
    return msgspec.msgpack.decode(raw, type=Slot)


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
            found.update(task_id for raw in messages for task_id in _task_ids(raw))
            first += SLICE
        return found

    def _scan_unacked(self) -> list[tuple[str, str]]:
        name = f"{self._channel.global_keyprefix}{self._channel.unacked_key}"
        pairs: list[tuple[str, str]] = []
        cursor: Any = 0
        while True:
            cursor, found = self._client.execute_command("HSCAN", name, cursor, "COUNT", SLICE)
            pairs += [(task_id, tag.decode()) for tag, raw in found.items() for task_id in _task_ids(raw)]
            if not int(cursor):
                return pairs


def _task_ids(raw: bytes) -> list[str]:
    return [found.decode() for found in _CORRELATION_ID.findall(raw)]


class Mender(Protocol):
    """What the sweeper has done by the result backend."""

    def dispatch(self, group_id: str, token: str) -> None:
        """Publishes the body of a complete join."""

    def resend(self, message: bytes) -> None:
        """Publishes a message again."""

    def settle(self, group_id: str, slot: str, message: bytes | None) -> bool:
        """Counts the header whose success is stored although its part never came. False: there is none."""

    def fail(self, group_id: str, slot: str, message: bytes | None) -> None:
        """Records a header as failed: its worker died."""


class ChordSweeper:
    """Mends the joins whose process died or whose message is lost.

    A join is looked at again after a pause that doubles from the grace to 10 s, and at once when a worker died.
    What a dead worker had not acknowledged is put back into its queue, as the broker itself would do after its
    visibility timeout. A message counts as lost when two sweeps in a row found it nowhere: one alone may have come
    between a worker's popping and its claim. Only Redis brokers can be looked into; on others, only dispatches
    are mended.

    Args:
        chords: the joins.
        mender: acts for the sweeper.
        app: gives the broker's connection.
        grace_s: younger messages and leases are left alone.
        max_losses: a header that killed its worker so often fails.
    """

    def __init__(
        self, chords: Chords, *, mender: Mender, app: Celery, keys: Keys, grace_s: float, max_losses: int
    ) -> None:
        self._chords, self._mender, self._app, self._holders = chords, mender, app, keys
        self._grace_ms, self._max_losses = int(grace_s * 1000), max_losses
        self._alive: set[str] | None = None
        self._pauses: dict[str, int] = {}
        self._suspects: set[tuple[str, str, bytes]] = set()
        self._missing: set[tuple[str, str, bytes]] = set()

    def sweep(self) -> int:
        """Looks at every join that is due; returns how many messages or bodies were sent again."""
        now_ms = server_ms(self._chords.client)
        alive = self._live_names()
        somebody_died = self._alive is None or not self._alive <= alive
        due = self._chords.due(None if somebody_died else now_ms)
        if not due:
            self._alive = alive
            return 0
        forget_dead(self._chords.client, self._holders, before_ms=now_ms - FORGET_AFTER_MS)
        self._suspects, self._missing = self._missing, set()
        with self._app.connection_for_write() as connection:
            broker = _broker(connection)
            mended = sum(self._try_to_look(group_id, now_ms, broker) for group_id in due)
        self._alive = alive
        return mended

    def _live_names(self) -> set[str]:
        return {process.name for process in live_processes(self._chords.client, self._holders)}

    def _try_to_look(self, group_id: str, now_ms: int, broker: Broker | None) -> int:
        try:
            return self._look(group_id, now_ms, broker)
        except (RedisError, OperationalError, OSError):
            raise
        except Exception:
            log.exception("chord.broken", what="chord cannot be mended", chord=group_id)
            self._chords.look_again(group_id, now_ms + MAX_PAUSE_MS)
            return 0

    def _look(self, group_id: str, now_ms: int, broker: Broker | None) -> int:
        join = self._chords.read(group_id)
        if join is None:
            self._chords.unlist(group_id)
            self._pauses.pop(group_id, None)
            return 0
        if join.state == "ready":
            return self._dispatch(group_id, join, now_ms)
        slots = self._chords.slots(group_id)
        watch = _Watch(now_ms, self._live_names(), self._grace_ms)  # after the slots: who claims later lives
        concerns = [
            (slot, raw, state) for slot, raw in slots.items() if watch.concerns(state := decode_slot(raw))
        ]
        mended = 0
        if broker is not None:
            mended = sum(self._mend(group_id, *concern, broker) for concern in concerns)
        self._pause(group_id, now_ms, soon=bool(concerns) and broker is not None)
        return mended

    def _pause(self, group_id: str, now_ms: int, *, soon: bool) -> None:
        suspected = soon and any(group == group_id for group, _, _ in self._missing)
        pause = 0 if suspected else min(2 * self._pauses.get(group_id, self._grace_ms // 2), MAX_PAUSE_MS)
        if pause:
            self._pauses[group_id] = pause
        self._chords.look_again(group_id, now_ms + pause)

    def _dispatch(self, group_id: str, join: Join, now_ms: int) -> int:
        overdue_ms = join.at_ms + self._grace_ms
        token = new_token()
        self._chords.look_again(group_id, max(overdue_ms, now_ms))
        if overdue_ms > now_ms or not self._chords.lease(group_id, seen=join.lease, token=token):
            return 0
        log.warning("chord.dispatch", what="body was not dispatched, it is now", chord=group_id)
        self._mender.dispatch(group_id, token)
        return 1

    def _mend(self, group_id: str, slot: str, raw: bytes, state: Slot, broker: Broker) -> int:
        if broker.holds(state.queue, state.task_id):
            return self._wait(group_id, slot, raw, state)
        tag = broker.unacked_tag(state.task_id)
        if tag is not None and state.status == "c":
            return self._again(group_id, slot, raw, state, lambda: broker.restore(tag))
        if (group_id, slot, raw) not in self._suspects:
            self._missing.add((group_id, slot, raw))
            return 0
        message = self._chords.message(group_id, slot)
        if self._mender.settle(group_id, slot, message):
            return 0
        if tag is not None:
            return self._again(group_id, slot, raw, state, lambda: broker.restore(tag))
        if message is None or (state.status == "c" and not state.acks_late):
            return self._fail(group_id, slot, raw, message)
        return self._again(group_id, slot, raw, state, lambda: self._mender.resend(message))

    def _wait(self, group_id: str, slot: str, raw: bytes, state: Slot) -> int:
        """The message is in its queue: nothing to mend, but the claim of a dead process ends."""
        if state.status == "c":
            self._chords.change(group_id, slot, raw, _unclaimed(state, server_ms(self._chords.client), 0))
        return 0

    def _again(self, group_id: str, slot: str, raw: bytes, state: Slot, publish: Callable[[], None]) -> int:
        loss = int(state.status == "c")
        if state.losses + loss > self._max_losses:
            return self._fail(group_id, slot, raw, self._chords.message(group_id, slot))
        new = _unclaimed(state, server_ms(self._chords.client), loss)
        if not self._chords.change(group_id, slot, raw, new):
            return 0
        log.warning("chord.resend", what="task of a chord is sent again", chord=group_id, task=state.task_id)
        publish()
        return 1

    def _fail(self, group_id: str, slot: str, raw: bytes, message: bytes | None) -> int:
        if self._chords.slot(group_id, slot) == raw:
            log.warning("chord.lost", what="task of a chord is lost for good", chord=group_id, slot=slot)
            self._mender.fail(group_id, slot, message)
        return 0


class _Watch(NamedTuple):
    """Which slots may need mending."""

    now_ms: int
    alive: Collection[str]
    grace_ms: int

    def concerns(self, state: Slot) -> bool:
        if state.status == "c":
            return state.holder not in self.alive
        return state.at_ms + self.grace_ms <= self.now_ms


def _unclaimed(state: Slot, now_ms: int, loss: int) -> Slot:
    return state._replace(status="w", at_ms=now_ms, holder="", tag="", losses=state.losses + loss)


def _broker(connection: Any) -> Broker | None:
    return Broker(connection.default_channel) if connection.transport.driver_type == "redis" else None


_OPEN = Script("chord_open")
_ADVANCE = Script("chord_advance")
_CLAIM = Script("chord_claim")
_CHANGE = Script("chord_change")
_LEASE = Script("chord_lease")
_SENT = Script("chord_sent")
