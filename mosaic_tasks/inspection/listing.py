"""Lists runs by their history, newest first, a page at a time."""

from __future__ import annotations

from typing import NamedTuple

from mosaic_queues.ledger import Ledger
from mosaic_queues.transitions import RunRecord, RunStatus

_AT_ONCE = 250
"""Runs that one trip looks at."""
_MOST_LOOKED_AT = 5_000
"""Runs that one page looks at, where few of them are wanted."""


class Wanted(NamedTuple):
    """Which runs to list.

    Attributes:
        tenant: those of one tenant; None: of all.
        status, workflow: those alone; None: any.
    """

    tenant: str | None = None
    status: RunStatus | None = None
    workflow: str | None = None

    def has(self, record: RunRecord) -> bool:
        """Whether a run of the tenant is wanted."""
        return self.status in (None, record.status) and self.workflow in (None, record.name)


class Page(NamedTuple):
    """Some runs, newest first.

    Attributes:
        next: the next page begins behind this run; None: there is none. A page may have few runs, and none.
    """

    records: list[RunRecord]
    next: str | None


def page_of_runs(ledger: Ledger, wanted: Wanted, *, limit: int, before: str | None, now_ms: int) -> Page:
    """The wanted runs that are behind a run, `limit` at most.

    Raises:
        redis.RedisError: the server does not answer.
    """
    records: list[RunRecord] = []
    for _ in range(0, _MOST_LOOKED_AT, _AT_ONCE):
        run_ids = ledger.history.page(wanted.tenant, before=before, most=_AT_ONCE)
        found = dict(zip(run_ids, ledger.runs(run_ids), strict=True))
        ledger.history.forget(wanted.tenant, [each for each in found if found[each] is None], now_ms=now_ms)
        records += [record for record in found.values() if record is not None and wanted.has(record)]
        if len(records) > limit:
            return Page(records[:limit], records[limit - 1].run_id)
        if len(run_ids) < _AT_ONCE:
            return Page(records, None)
        before = run_ids[-1]
    return Page(records, before)
