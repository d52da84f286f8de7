"""The audit log: who did what to which run, when, from where, and what was refused.

Each entry is a line of the logger `mosaic.audit`, and an entry of a stream in the server. What changes something is
entered *before* it is done: where the entry cannot be written, it is not done. So there may be an entry of a deed that
a crash prevented, but no deed without an entry. What is refused stands in a stream of its own, so that nobody pushes
entries of deeds out by asking in vain; that it is refused does not depend on its entry.

No entry holds a secret, an input or an output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, cast

import msgspec
import structlog
from celery import Celery
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.errors import MosaicError
from mosaic_queues.keys import Keys
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.execution.process import process_for

log = structlog.get_logger("mosaic.audit")

KEEP_S = 400 * 86_400.0
"""The log is forgotten when nothing was entered for so long."""
_MOST_CHARS = 200
_BLOCK_MS = 5_000
Outcome = Literal["allowed", "refused"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line.

    Attributes:
        at_ms: when, by the server's clock; Unix milliseconds.
        outcome: what was allowed may have failed afterwards.
        action: what: method and route, or a word such as `key.add`.
        subject: who; empty: nobody that is known.
        key: the id of the API key that was shown.
        address: from where.
        run: to which run.
        reason: why it was refused.
    """

    at_ms: int
    outcome: Outcome
    action: str
    subject: str = ""
    tenant: str = ""
    key: str = ""
    address: str = ""
    run: str = ""
    reason: str = ""


class Deed(NamedTuple):
    """What somebody asks for.

    Attributes:
        action: as in an entry.
        address: from where.
        run: to which run; empty: to none, or to one that is not there yet.
    """

    action: str
    address: str = ""
    run: str = ""


class Audit:
    """The audit log of a namespace.

    Args:
        entries: of each kind, so many are kept; about.
        is_logged: they are lines of the logger too.
    """

    def __init__(self, client: Redis, names: Keys, *, entries: int, is_logged: bool = True) -> None:
        self._client, self._entries, self._is_logged = client, entries, is_logged
        self._streams: dict[Outcome, str] = {
            "allowed": names.access("audit"),
            "refused": names.access("audit:refused"),
        }

    def allowed(self, principal: Principal, deed: Deed) -> None:
        """Enters what is about to be done.

        Raises:
            redis.RedisError: it cannot be entered; do not do it.
        """
        self._write("allowed", _fields(principal, deed))

    def came_of(self, principal: Principal, deed: Deed) -> None:
        """Enters what came of something that is entered already."""
        self._write_if_possible("allowed", _fields(principal, deed))

    def refused(self, principal: Principal | None, deed: Deed, error: MosaicError) -> None:
        """Enters what was refused."""
        reason = _clean(f"{type(error).__name__}: {error}")
        self._write_if_possible("refused", {**_fields(principal, deed), "reason": reason})

    def _write_if_possible(self, outcome: Outcome, fields: dict[str, str]) -> None:
        try:
            self._write(outcome, fields)
        except RedisError as error:
            log.warning("audit.lost", what="cannot enter this in the server", error=str(error), **fields)

    def _write(self, outcome: Outcome, fields: dict[str, str]) -> None:
        if self._is_logged:
            log.info(f"audit.{outcome}", **fields)
        name = self._streams[outcome]
        with self._client.pipeline(
            transaction=False
        ) as pipe:  # an entry without the other step is one all the same
            pipe.xadd(name, cast("Any", fields), maxlen=self._entries, approximate=True)
            pipe.pexpire(name, int(KEEP_S * 1000))
            pipe.execute()

    def last(self, count: int) -> list[Entry]:
        """The last entries, the oldest first.

        Raises:
            redis.RedisError: the server is away.
        """
        return self._last(count)[0]

    def follow(self, count: int) -> Iterator[Entry]:
        """The last entries, and then new ones as they come, without end.

        Raises:
            redis.RedisError: the server is away.
        """
        entries, after = self._last(count)
        yield from entries
        outcomes = {name.encode(): outcome for outcome, name in self._streams.items()}
        while True:
            found = self._client.xread(cast("Any", after), block=_BLOCK_MS)
            for name, lines in cast("list[Any]", found or []):
                yield from (_entry(outcomes[name], *line) for line in lines)
                after[name.decode()] = lines[-1][0].decode()

    def _last(self, count: int) -> tuple[list[Entry], dict[str, str]]:
        """The last entries, and the id of the last one of each stream."""
        with self._client.pipeline(transaction=True) as pipe:
            for name in self._streams.values():
                pipe.xrevrange(name, count=count)
            found = dict(zip(self._streams, pipe.execute(), strict=True))
        after = {self._streams[one]: lines[0][0].decode() if lines else "0" for one, lines in found.items()}
        entries = [_entry(one, *line) for one, lines in found.items() for line in lines]
        return sorted(entries, key=lambda entry: entry.at_ms)[-count:], after


def audit_of(app: Celery, *, is_logged: bool = True) -> Audit:
    """The audit log of an app's server."""
    process = process_for(app)
    config, names = process.settings, process.ledger.keys
    return Audit(process.client, names, entries=config.audit_entries, is_logged=is_logged)


def _fields(principal: Principal | None, deed: Deed) -> dict[str, str]:
    who = (
        {"subject": principal.subject, "tenant": principal.tenant, "key": principal.key} if principal else {}
    )
    told = {"action": deed.action, **who, "address": deed.address, "run": deed.run}
    return {name: _clean(value) for name, value in told.items() if value or name == "action"}


def _clean(text: str) -> str:
    """In one line, bounded: what comes from outside writes no line of its own."""
    return "".join(each if each.isprintable() else "?" for each in text[:_MOST_CHARS])


def _entry(outcome: Outcome, entry_id: bytes, fields: dict[bytes, bytes]) -> Entry:
    told: dict[str, Any] = {name.decode(): value.decode() for name, value in fields.items()}
    return Entry(at_ms=int(entry_id.partition(b"-")[0]), outcome=outcome, **told)


__all__ = ["Audit", "Deed", "Entry", "audit_of"]
