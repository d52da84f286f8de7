"""The runs of a tenant, and those of all, newest first; also those that are over.

Two sorted sets whose members are run ids, all with the same score: run ids are UUIDs of version 7, so the server sorts
them by the time of their making, and an id says where a page begins. A run is entered before it is opened; so there are
ids of runs that are not yet, or not any more, and whoever reads skips them. The sets are bounded by age and by number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, cast

from redis import Redis

from mosaic_queues.keys import Keys

TRIM_EACH = 64
"""A process trims with each so manyth run that it enters: whoever enters only one does, too."""
OPENING_MS = 60_000
"""Within this a run that was entered is opened, or never."""


class History:
    """The history of runs in one server.

    Args:
        most: so many runs are kept of each tenant, and of all together.
    """

    def __init__(self, client: Redis, keys: Keys, *, most: int) -> None:
        self._client, self._keys, self._most = client, keys, most
        self._entered = itertools.count()

    def enter(self, pipe: Any, run_id: str, tenant: str, *, now_ms: int, keep_ms: int) -> None:
        """Adds a run, in a pipeline of the caller's; entering it again changes nothing."""
        trims = next(self._entered) % TRIM_EACH == 0
        for key in self.lists(tenant):
            pipe.zadd(key, {run_id: 0})
            pipe.pexpire(key, keep_ms)
            if trims:
                pipe.zremrangebylex(key, "-", f"({_first_id(now_ms - keep_ms)}")
                pipe.zremrangebyrank(key, 0, -self._most - 1)

    def lists(self, tenant: str) -> tuple[str, str]:
        """The keys of the sets that hold the runs of a tenant."""
        return self._keys.history(tenant), self._keys.history(None)

    def page(self, tenant: str | None, *, before: str | None, most: int) -> list[str]:
        """Run ids of a tenant, or of all (None), newest first.

        Args:
            before: the id of the run behind which the page begins.
        """
        start = "+" if before is None else f"({before}"
        found = self._client.zrevrangebylex(self._keys.history(tenant), start, "-", start=0, num=most)
        return [raw.decode() for raw in cast("list[bytes]", found)]

    def forget(self, tenant: str | None, run_ids: Iterable[str], *, now_ms: int) -> None:
        """Drops runs that are gone, so that nobody looks for them again; not those that may be about to open."""
        newest = _first_id(now_ms - OPENING_MS)
        old = [run_id for run_id in run_ids if run_id < newest]
        if old:
            self._client.zrem(self._keys.history(tenant), *old)


def _first_id(at_ms: int) -> str:
    """What sorts before all ids of runs that were made at this time, or later."""
    digits = f"{max(at_ms, 0):012x}"
    return f"{digits[:8]}-{digits[8:]}"
