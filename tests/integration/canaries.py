"""Words that must not be told: where they are looked for, and in which forms."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from redis import Redis

_END = "the last command that is listened to"


def forms(word: str) -> frozenset[bytes]:
    """A word as it is, in capitals, in hex, and within a longer text in base64, wherever it begins there."""
    raw = word.encode()
    return frozenset({raw, raw.upper(), raw.hex().encode(), *(_in_base64(raw, at) for at in range(3))})


def _in_base64(raw: bytes, at: int) -> bytes:
    """The digits that depend on nothing but the word, which begins at this place of three."""
    before, whole_bits = 8 * at, 8 * (at + len(raw))
    return base64.b64encode(bytes(at) + raw)[-(-before // 6) : whole_bits // 6]


def has(found: object, *words: str) -> bool:
    """Whether one of the words is in it, in any form."""
    data = found if isinstance(found, bytes) else str(found).encode()
    return any(form in data for word in words for form in forms(word))


def values(client: Redis) -> dict[str, bytes]:
    """All that a server holds, as one text a key."""
    read: dict[bytes, Any] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"stream": client.xrange,
    }
    found = {}
    for key in client.scan_iter():
        value = read[cast(bytes, client.type(key))](key)
        found[key.decode()] = key + b" " + _flat(value)
    return found


def _flat(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        return _flat(list(value.items()))
    if isinstance(value, (list, tuple, set)):
        return b" ".join(map(_flat, value))
    return str(value).encode()


@contextmanager
def overheard(client: Redis) -> Iterator[list[str]]:
    """All commands that the server gets meanwhile, whole once the block is left: writes, messages, events."""
    heard = list[str]()
    with client.monitor() as monitor:

        def listen() -> None:
            while _END not in (command := monitor.next_command()["command"]):
                heard.append(command)

        thread = threading.Thread(target=listen, name="overheard")
        thread.start()
        try:
            yield heard
        finally:
            client.echo(_END)
            thread.join()
