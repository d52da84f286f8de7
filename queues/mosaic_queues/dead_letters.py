"""Messages that nobody can work on, kept with the reason until somebody looks at them.

They lie beside the queues, on a broker that is a Redis: a sorted set with the topology's name for them holds their ids
by time, a hash beside it the letters. A letter is noted in the step that acknowledges its message. There are at most
MOSAIC_DEAD_LETTERS of them; the oldest go first. On brokers of other kinds nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any

import msgspec
from celery import Celery
from redis import Redis

from mosaic_queues.broker import is_redis, see_all_levels
from mosaic_queues.errors import InputError
from mosaic_queues.intake import Intake
from mosaic_queues.settings import settings
from mosaic_queues.topology import topology

_LUA = resources.files("mosaic_queues").joinpath("lua")
_BURY = _LUA.joinpath("bury.lua").read_text("utf-8")
_UNBURY = _LUA.joinpath("unbury.lua").read_text("utf-8")


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that nobody can work on, or a call that none could.

    Attributes:
        id: the delivery tag of the message; of a call `RUN:CALL`, as its task events have it.
        at_ms: when it was noted, by the server's clock.
        queue: where it came from.
        worker: that noted it.
        task: name of the task; empty: not known.
        run, calls: of a message that runs calls.
        message: as kombu wrote it; None: there is none to send again.
        text: of what is no message at all.
    """

    id: str
    reason: str
    at_ms: int = 0
    queue: str = ""
    worker: str = ""
    task: str = ""
    run: str = ""
    calls: tuple[str, ...] = ()
    message: dict[str, Any] | None = None
    text: str = ""


class DeadLetters:
    """Those of a broker.

    Args:
        channel: of kombu's Redis transport.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        # kombu's own client would put a prefix before one of the keys, whose names are complete here.
        self._client = Redis(connection_pool=channel.pool)
        name = f"{channel.global_keyprefix}{topology().dead_letter}"
        self._ids, self._letters = name, f"{name}.letters"

    def add(self, letter: DeadLetter) -> None:
        """Notes something that came with no message of its own, once by its id."""
        self._bury(letter, tag="")

    def bury(self, message: Any, reason: str, *, worker: str) -> bool:
        """Notes a message of a consumer and acknowledges it; False when somebody else has it by now.

        Raises:
            RedisError: neither was done.
        """
        if isinstance(self._channel.qos, Intake):
            self._channel.qos.note()  # else it looks as if somebody else had it
        return self._bury(letter_of(message, reason, worker=worker), tag=message.delivery_tag)

    def _bury(self, letter: DeadLetter, *, tag: str) -> bool:
        unacked = [f"{self._channel.global_keyprefix}{name}" for name in _unacked(self._channel)]
        keys = (self._ids, self._letters, *unacked)
        text = msgspec.json.encode(letter)
        return self._run(_BURY, keys, letter.id, text, settings().dead_letters, tag)

    def all(self) -> list[DeadLetter]:
        """All of them, the newest first."""
        found: Any = self._client.zrange(self._ids, 0, -1, desc=True, withscores=True)
        texts: Any = self._client.hmget(self._letters, [name for name, _ in found]) if found else []
        return [_read(text, at_ms) for text, (_, at_ms) in zip(texts, found, strict=True) if text]

    def count(self) -> int:
        """How many there are."""
        found: Any = self._client.zcard(self._ids)
        return int(found)

    def get(self, letter_id: str) -> DeadLetter:
        """One of them.

        Raises:
            InputError: there is none with this id.
        """
        text: Any = self._client.hget(self._letters, letter_id)
        at_ms: Any = self._client.zscore(self._ids, letter_id)
        if text is None:
            raise InputError(
                f"there is no dead letter {letter_id!r}; `mosaic dead list` shows those that there are"
            )
        return _read(text, at_ms or 0.0)

    def drop(self, letter_id: str) -> bool:
        """Forgets one; False when it is gone already."""
        return self._run(_UNBURY, (self._ids, self._letters, self._letters), letter_id, "")

    def requeue(self, letter: DeadLetter) -> bool:
        """Puts a message at the end of the queue that it came from; False when somebody did so before.

        Raises:
            InputError: there is no message to send.
        """
        if letter.message is None:
            told = f"; run the call again with: mosaic rerun {letter.run} --node NODE" if letter.run else ""
            raise InputError(f"the dead letter {letter.id!r} has no message that could be sent again{told}")
        priority = letter.message["properties"].get("priority") or 0
        name = f"{self._channel.global_keyprefix}{self._channel._q_for_pri(letter.queue, priority)}"
        text = msgspec.json.encode(letter.message)
        return self._run(_UNBURY, (self._ids, self._letters, name), letter.id, text)

    def _run(self, script: str, keys: Sequence[str], *arguments: Any) -> bool:
        return bool(self._client.eval(script, len(keys), *keys, *arguments))


@contextmanager
def dead_letters(app: Celery) -> Iterator[DeadLetters | None]:
    """Those of an app's broker; None: it keeps none."""
    with app.connection_for_write() as connection, connection.channel() as channel:
        see_all_levels(channel)
        yield DeadLetters(channel) if is_redis(connection) else None


def letter_of(message: Any, reason: str, *, worker: str) -> DeadLetter:
    """What is noted of a message of kombu's."""
    run, calls = _named(message)
    return DeadLetter(
        id=message.delivery_tag,
        reason=reason,
        queue=message.delivery_info.get("routing_key") or "",
        worker=worker,
        task=task_of(message) or "",
        run=run,
        calls=calls,
        message=message._raw,
    )


def task_of(message: Any) -> str | None:
    """The name of a message's task; None: it tells none that can be read."""
    headers = message.headers if isinstance(message.headers, dict) else {}
    named = headers.get("task")
    return named if isinstance(named, str) else None


def _named(message: Any) -> tuple[str, tuple[str, ...]]:
    """Run and calls, as far as they can be read."""
    try:
        (run_id, calls), *_ = message.payload
    except Exception:  # noqa: BLE001  it may be broken in any way
        return "", ()
    is_named = isinstance(run_id, str) and isinstance(calls, list)
    return (run_id, tuple(map(str, calls))) if is_named else ("", ())


def _unacked(channel: Any) -> tuple[str, str]:
    return channel.unacked_key, channel.unacked_index_key


def _read(text: bytes, at_ms: float) -> DeadLetter:
    return msgspec.structs.replace(msgspec.json.decode(text, type=DeadLetter), at_ms=int(at_ms))


__all__ = ["DeadLetter", "DeadLetters", "dead_letters", "letter_of", "task_of"]
