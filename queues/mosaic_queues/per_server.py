"""What a process has once for each server, whoever in it asks first."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from redis import Redis

T = TypeVar("T")
_Key = tuple[int, str, str]


class PerServer(Generic[T]):
    """One object a server and a namespace; a forked child has none yet.

    Attributes:
        lock: held by whoever changes how an object is used, so that none is found while it ends.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._found: dict[_Key, T] = {}

    def get(self, client: Redis, namespace: str, make: Callable[[], T]) -> T:
        """The object of the client's server, made when there is none."""
        with self.lock:
            key = _key(client, namespace)
            if key not in self._found:
                self._found[key] = make()
            return self._found[key]

    def pop(self, client: Redis, namespace: str) -> T | None:
        """Forgets the object of the client's server, and gives it; None when there is none."""
        with self.lock:
            return self._found.pop(_key(client, namespace), None)

    def drop(self, ended: T) -> None:
        """Forgets an object that has ended."""
        with self.lock:
            self._found = {key: each for key, each in self._found.items() if each is not ended}


def _key(client: Redis, namespace: str) -> _Key:
    options = client.connection_pool.connection_kwargs
    place = options.get("path") or f"{options.get('host')}:{options.get('port')}"
    return os.getpid(), f"{place}/{options.get('db') or 0}", namespace
