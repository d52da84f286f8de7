"""Sessions of people in a browser, so that a key is shown once and not with each page. Of a token its hash is kept.

A session that an API key opened is worth what the key is: it asks for the key each time, has its scopes as they are
now, and ends with it.
"""

from __future__ import annotations

from typing import cast

import msgspec
from redis import Redis

from mosaic_queues.connection import server_ms
from mosaic_queues.errors import Unauthenticated
from mosaic_queues.keys import Keys
from mosaic_tasks.access.keyring import KeyRing
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.access.secrets import hashed, make_token

_decode = msgspec.json.Decoder(Principal).decode


class Sessions:
    """The sessions of a namespace.

    Args:
        keys: which a session goes on asking.
        longest_s: a session ends after this, however much it is used.
    """

    def __init__(self, client: Redis, names: Keys, keys: KeyRing, *, longest_s: float) -> None:
        self._client, self._names, self._keys = client, names, keys
        self.longest_s = longest_s

    def open(self, principal: Principal) -> str:
        """Begins a session of somebody who has shown who that is.

        Returns:
            Its token, for a cookie.

        Raises:
            Unauthenticated: nothing was shown that it could stand for, as at an open gate.
            redis.RedisError: the server is away, or full.
        """
        if not principal.key and not principal.until_ms:  # else it would outlast the open gate
            raise Unauthenticated("a session stands for an API key or a token, and none was shown")
        token, left_ms = make_token(), int(self.longest_s * 1000)
        if principal.until_ms:
            left_ms = max(1, min(left_ms, principal.until_ms - server_ms(self._client)))
        self._client.set(self._name(token), msgspec.json.encode(principal), px=left_ms)
        return token

    def admit(self, token: str) -> Principal:
        """Whose session it is.

        Raises:
            Unauthenticated: there is none, or its key is no more.
            redis.RedisError: the server is away.
        """
        raw = cast("bytes | None", self._client.get(self._name(token)))
        opened = _decode(raw) if raw else None
        principal = self._keys.holder(opened.key) if opened is not None and opened.key else opened
        if principal is None:
            raise Unauthenticated("the session is over; sign in again")
        return principal

    def close(self, token: str) -> None:
        """Ends a session; of an unknown one nothing.

        Raises:
            redis.RedisError: the server is away.
        """
        self._client.delete(self._name(token))

    def _name(self, token: str) -> str:
        return self._names.access(f"session:{hashed(token)}")
