"""What runs and tenants got so far, over all processes: what their order goes by.

It is kept in the server, in keys `<namespace>:{order}:...` of one slot: a tenant's share is of all that is sent
anywhere. A process that sends calls of a run counts them in one step. Should the server lose the keys, or nobody send
anything for an hour, everybody begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import resources
from typing import NamedTuple, Protocol, cast

from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_routing.ordering import Shares

BUSY_S = 60.0
"""A tenant that sent nothing for so long has nothing that waits: nobody is ahead of it."""
KEEP_S = 3_600.0
"""A run that sent nothing for so long counts as a new one."""
LONGEST_S = 86_400.0
"""No call is counted for more."""
_SCRIPT = resources.files("mosaic_routing").joinpath("service.lua").read_text("utf-8")


class Served(NamedTuple):
    """What there was before a call.

    Attributes:
        attained_s: what its run had got.
        lead_s: how far its tenant was ahead of its fair share.
    """

    attained_s: float
    lead_s: float


class Service(Protocol):
    """Counts what is sent."""

    def serve(self, run_id: str, tenant: str, lengths_s: Sequence[float]) -> list[Served]:
        """Calls of a run begin, one after the other, that are predicted to take so long; what there was before each."""


class ServerService:
    """Counts in the server, for all processes.

    Args:
        busy_s: one that sends nothing counts as busy for so long.
    """

    def __init__(self, client: Redis, keys: Keys, *, busy_s: float = BUSY_S) -> None:
        self._script = client.register_script(_SCRIPT)
        self._prefix = f"{keys.namespace}:{{order}}:"
        self._busy_s = busy_s

    def serve(self, run_id: str, tenant: str, lengths_s: Sequence[float]) -> list[Served]:
        """Calls of a run begin, one after the other, that are predicted to take so long; what there was before each.

        Raises:
            redis.RedisError: the server is away, or full.
        """
        names = (f"run:{run_id}", "seen", "busy", "idle", "now")
        told = self._script(
            keys=[self._prefix + name for name in names],
            args=[tenant, _ms(self._busy_s), _ms(KEEP_S), *map(_ms, lengths_s)],
        )
        seconds = iter([ms / 1_000 for ms in cast("list[int]", told)])
        return [Served(*pair) for pair in zip(seconds, seconds, strict=True)]


class MemoryService:
    """Counts in memory, for one process, on any clock: the same steps for tests and simulators."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, busy_s: float = BUSY_S) -> None:
        self._clock, self._busy_s = clock, busy_s
        self._attained_s: dict[str, float] = {}
        self._seen_s: dict[str, float] = {}
        self._shares = Shares()

    def serve(self, run_id: str, tenant: str, lengths_s: Sequence[float]) -> list[Served]:
        """Calls of a run begin, one after the other, that are predicted to take so long; what there was before each."""
        now_s = self._clock()
        self._seen_s[tenant] = now_s
        self._seen_s = {name: at_s for name, at_s in self._seen_s.items() if now_s - at_s <= self._busy_s}
        return [self._serve(run_id, tenant, length_s) for length_s in lengths_s]

    def _serve(self, run_id: str, tenant: str, length_s: float) -> Served:
        self._shares = self._shares.with_waiting(frozenset(self._seen_s))
        attained_s = self._attained_s.get(run_id, 0.0)
        served = Served(attained_s, self._shares.lead_s(tenant))
        self._attained_s[run_id] = attained_s + min(length_s, LONGEST_S)
        self._shares = self._shares.with_call(tenant, min(length_s, LONGEST_S))
        return served


def _ms(seconds: float) -> int:
    return round(min(seconds, LONGEST_S) * 1_000)


__all__ = ["BUSY_S", "MemoryService", "Served", "ServerService", "Service"]
