"""The joins of chords: every transition of theirs, as one typed class over the Lua scripts.

A join waits for the headers of one chord. Each header has a *slot* (task id and index). A finished header is a
*part* of its slot: the first one counts. What a slot waits for is its latest task message: a retry, a replacement or
the next step of a chain takes the place of the one before (`Order` grows), so a slot has one message at a time, which
is either in a queue or claimed by a worker's main process. Recovery compares that with what lives.

A join is *open*, then *ready* (complete; whoever holds the lease dispatches the body), then *sent* (the body's messages
are slots now, until a worker received them), then gone.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec
from redis import Redis

from mosaic_queues.scripts import Script

JoinState = Literal["open", "ready", "sent"]
Order = tuple[int, int, int]
"""Which message of a slot is the latest: replacements, minus the chain steps that follow, retries."""

INDEX_EXPIRE_S = 30 * 86_400


class Record(NamedTuple):
    """A published task message of a slot."""

    slot: str
    order: Order
    queue: str
    task_id: str
    message: bytes


class HeaderPart(NamedTuple):
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

    def waiting(self, *, since_ms: int, lost: bool) -> Slot:
        """The slot when its message is back in its queue; `lost` counts the process that had claimed it."""
        return self._replace(status="w", at_ms=since_ms, holder="", tag="", losses=self.losses + lost)


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
        part: tuple[str, HeaderPart] | None = None,
    ) -> int:
        """Notes messages, seals, grows, counts a part. 1: complete, `token` dispatches; -1: no such join."""
        rows, messages = _rows_and_messages(records)
        argument = {
            "records": rows,
            "size": False if size is None else size,
            "grow": grow,
            "part": [part[0], part[1].ok] if part else False,
            "token": token,
        }
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
        rows, messages = _rows_and_messages(records)
        answer = int(_SENT(self.client, self.keys(group_id), {"token": token, "records": rows}, messages))
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

    def parts(self, group_id: str) -> list[HeaderPart]:
        """The finished headers, in header order."""
        found = cast("list[bytes]", self.client.hvals(self.keys(group_id)[1]))
        return sorted(
            (msgspec.msgpack.decode(raw, type=HeaderPart) for raw in found), key=lambda part: part.rank
        )

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


def _rows_and_messages(records: Sequence[Record]) -> tuple[list[tuple[Any, ...]], list[bytes]]:
    """Records as a script takes them: the messages beside the rest, since they are bytes."""
    return [record[:-1] for record in records], [record.message for record in records]


_OPEN = Script("chords/open")
_ADVANCE = Script("chords/advance")
_CLAIM = Script("chords/claim")
_CHANGE = Script("chords/change")
_LEASE = Script("chords/lease")
_SENT = Script("chords/sent")
