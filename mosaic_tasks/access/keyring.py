"""API keys, in the server: made, replaced, revoked, and asked for with each request. Of a key only its hash is kept."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Collection, Iterable
from typing import Any, cast, get_args

import msgspec
import structlog
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.errors import InputError, Unauthenticated
from mosaic_queues.keys import Keys
from mosaic_tasks.access.principal import Principal, Scope
from mosaic_tasks.access.scripts import AccessScript
from mosaic_tasks.access.secrets import hashed, id_of, make_key, make_token
from mosaic_tasks.definition.terms import check_tenant

log = structlog.get_logger(__name__)

USED_S = 60.0
"""A process notes the use of a key so often, and not with each request."""
GRACE_S = 86_400.0
SCOPES: tuple[Scope, ...] = get_args(Scope)
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,100}")
_NOBODY = hashed(make_token())  # compared with where there is no such key, so that this takes as long
_issue, _revoke = AccessScript("names", "issue"), AccessScript("names", "revoke")
_used = AccessScript("used")
_noted_s: dict[str, float] = {}
"""When this process noted the use of a key last; holds no more than the keys that there are."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a key; times in Unix milliseconds.

    Attributes:
        is_current: it is the one in force of its name, and not one that is being replaced.
        expires_ms: 0: never.
        used_ms: when it was used last, to within a minute or so; 0: never.
    """

    id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    is_current: bool
    made_ms: int
    expires_ms: int
    used_ms: int

    def principal(self) -> Principal:
        """Whoever shows it."""
        return Principal(
            subject=self.name,
            tenant=self.tenant,
            scopes=frozenset(self.scopes),
            key=self.id,
            until_ms=self.expires_ms,
        )


class KeyRing:
    """The API keys of a namespace."""

    def __init__(self, client: Redis, names: Keys) -> None:
        self._client, self._names = client, names

    def add(
        self, name: str, *, tenant: str = "", scopes: Collection[str], lifetime_s: float | None = None
    ) -> str:
        """Makes a key.

        Args:
            lifetime_s: it expires then; None: never.

        Returns:
            The key, which nobody can be told again.

        Raises:
            InputError: the name is taken, or a value makes no sense.
            redis.RedisError: the server is away; with the same name again it turns out whether the key was made.
        """
        _check(name, scopes, lifetime_s)
        check_tenant(tenant)
        made, lifetime_ms = make_key(), 0 if lifetime_s is None else _ms(lifetime_s)
        terms = {"tenant": tenant, "scopes": " ".join(each for each in SCOPES if each in scopes)}
        if not self._issued(name, made.id, made.text, lifetime_ms, **terms):
            raise InputError(
                f"there is a key {name!r} already; replace it by `mosaic keys rotate {name}`, or end it by "
                f"`mosaic keys revoke {name}`"
            )
        return made.text

    def rotate(self, name: str, *, grace_s: float = GRACE_S, lifetime_s: float | None = None) -> str:
        """Replaces a key by a new one of the same tenant and scopes.

        Args:
            grace_s: the old one stays valid for so long at most.
            lifetime_s: of the new one; None: as that of the old.

        Returns:
            The new key, which nobody can be told again. Who dies before it is read rotates once more.

        Raises:
            InputError: there is no such key, or a value makes no sense.
            redis.RedisError: the server is away.
        """
        _check(name, SCOPES, lifetime_s)
        if not grace_s >= 0:
            raise InputError(f"a grace of {grace_s!r} s is none; give 0 or more")
        made, lifetime_ms = make_key(), -1 if lifetime_s is None else _ms(lifetime_s)
        if not self._issued(name, made.id, made.text, lifetime_ms, grace=int(grace_s * 1000)):
            raise _unknown(name)
        return made.text

    def _issued(self, name: str, key_id: str, key: str, lifetime_ms: int, **terms: Any) -> bool:
        order = {"name": name, "id": key_id, "hash": hashed(key), "lifetime": lifetime_ms, **terms}
        return bool(_issue(self._client, [self._names.access("names")], order))

    def revoke(self, name: str) -> int:
        """Ends the keys of a name at once, those that are being replaced too; with them end their sessions.

        Returns:
            How many there were.

        Raises:
            InputError: there is none.
            redis.RedisError: the server is away.
        """
        revoked = cast("int", _revoke(self._client, [self._names.access("names")], {"name": name}))
        if not revoked:
            raise _unknown(name)
        return revoked

    def all(self) -> list[ApiKey]:
        """All keys by name, the one in force of each first; those that expired in the last days too.

        Raises:
            redis.RedisError: the server is away.
        """
        found = cast("dict[bytes, bytes]", self._client.hgetall(self._names.access("names")))
        ids = [each.decode() for name in sorted(found) if name for each in found[name].split()]
        current = {each.split()[0].decode() for name, each in found.items() if name}
        return [key for key in self._read(ids, current) if key is not None]

    def is_closed(self) -> bool:
        """Whether there is, or ever was, a key: then nobody enters without. One that was revoked opens no door.

        Raises:
            redis.RedisError: the server is away.
        """
        return bool(self._client.hexists(self._names.access("names"), ""))

    def admit(self, key: str) -> Principal:
        """Who shows a key.

        Raises:
            Unauthenticated: it is none, or not any more.
            redis.RedisError: the server is away.
        """
        key_id = id_of(key) or ""
        record, now_ms = self._record(key_id)
        if not hmac.compare_digest(record.get(b"hash", _NOBODY.encode()), hashed(key).encode()):
            raise Unauthenticated("this API key is not known here; it was mistyped, revoked, or never made")
        principal = _read_key(key_id, record, is_current=True).principal()
        if 0 < principal.until_ms <= now_ms:
            raise Unauthenticated(f"the API key {principal.subject!r} has expired; ask for a new one")
        self._note_use(key_id)
        return principal

    def holder(self, key_id: str) -> Principal | None:
        """Whoever holds the key of this id, as long as it is valid.

        Raises:
            redis.RedisError: the server is away.
        """
        record, now_ms = self._record(key_id)
        if not record:
            return None
        principal = _read_key(key_id, record, is_current=True).principal()
        return None if 0 < principal.until_ms <= now_ms else principal

    def _record(self, key_id: str) -> tuple[dict[bytes, bytes], int]:
        """What is kept of a key, nothing where there is none, and the server's time."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(self._names.access(f"key:{key_id}"))
            pipe.time()
            record, (seconds, micros) = pipe.execute()
        return record, seconds * 1000 + micros // 1000

    def _note_use(self, key_id: str) -> None:
        now_s = time.monotonic()
        if now_s - _noted_s.get(key_id, -USED_S) < USED_S:
            return
        _noted_s[key_id] = now_s
        try:
            _used(self._client, [self._names.access(f"key:{key_id}")], {})
        except RedisError as error:  # a full server still lets people in who only read
            log.warning("access.used", what="cannot note the use of a key", key=key_id, error=str(error))

    def _read(self, ids: Iterable[str], current: Collection[str]) -> list[ApiKey | None]:
        wanted = list(ids)
        with self._client.pipeline(transaction=False) as pipe:
            for key_id in wanted:
                pipe.hgetall(self._names.access(f"key:{key_id}"))
            records = pipe.execute()
        return [
            _read_key(key_id, record, is_current=key_id in current) if record else None
            for key_id, record in zip(wanted, records, strict=True)
        ]


def _read_key(key_id: str, record: dict[bytes, bytes], *, is_current: bool) -> ApiKey:
    scopes = record[b"scopes"].decode().split()
    return ApiKey(
        id=key_id,
        name=record[b"name"].decode(),
        tenant=record[b"tenant"].decode(),
        scopes=tuple(each for each in SCOPES if each in scopes),
        is_current=is_current,
        made_ms=int(record[b"made"]),
        expires_ms=int(record[b"expires"]),
        used_ms=int(record[b"used"]),
    )


def _check(name: str, scopes: Collection[str], lifetime_s: float | None) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r} is no name of a key; use letters, digits and . _ @ - (100 at most)")
    if unknown := sorted(set(scopes) - set(SCOPES)):
        raise InputError(f"{unknown[0]!r} is no scope; give some of: {', '.join(SCOPES)}")
    if not scopes:
        raise InputError(f"a key without a scope may do nothing; give some of: {', '.join(SCOPES)}")
    if lifetime_s is not None and not 0 < lifetime_s < 1e10:
        raise InputError(f"a lifetime of {lifetime_s!r} s is none; give a number above 0")


def _ms(lifetime_s: float) -> int:
    return max(1, int(lifetime_s * 1000))


def _unknown(name: str) -> InputError:
    return InputError(f"there is no key {name!r}; `mosaic keys list` shows them")


__all__ = ["GRACE_S", "SCOPES", "ApiKey", "KeyRing"]
