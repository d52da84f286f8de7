"""What the routes of the status page share: the runs that were looked at, and where pages are made."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Annotated, NamedTuple, cast

from fastapi import Depends, Request

from mosaic_queues.ledger import Ledger
from mosaic_queues.settings import Settings
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.client import Run
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.gateway.callers import Gateway, Here, caller, gateway_of, run_seen_by
from mosaic_tasks.gateway.pages.changes import Changes
from mosaic_tasks.gateway.pages.charts import Charts
from mosaic_tasks.gateway.pages.live import Fragments, News, Studio
from mosaic_tasks.gateway.readers import EventStream, Readers
from mosaic_tasks.gateway.streams import readers_of


class Desk(NamedTuple):
    """What is kept from one request to the next."""

    ledger: Ledger
    charts: Charts
    changes: Changes
    studio: Studio
    config: Settings
    readers: Readers

    def renewed(
        self,
        gateway: Gateway,
        principal: Principal,
        key: Hashable,
        render: Callable[[], Fragments],
        news: News,
    ) -> EventStream:
        """The answer to the browser of an open page; `key`: all that it depends on (`Studio.renewed`)."""
        body = self.studio.renewed(key, render, news, silence_s=self.config.gateway_silence_s)
        held, patience_s = gateway.quotas.reading(principal), self.config.gateway_patience_s
        return EventStream(body, self.readers, held=held, patience_s=patience_s)


async def _desk_of(request: Request) -> Desk:
    state = request.app.state
    if not hasattr(state, "desk"):  # no other request comes between: there is nothing to await
        process = process_for(gateway_of(request).app)
        ledger, config = process.ledger, process.settings
        state.desk = Desk(ledger, Charts(ledger), Changes(ledger), Studio(), config, readers_of(request))
    return cast("Desk", state.desk)


def seen_by(who: Callable[..., Principal]) -> Callable[..., Run]:
    """A dependency: the run of an address, where it is the business of whoever asks.

    Args:
        who: the dependency that tells who asks. Give the one of the route: each admits anew, and enters that.
    """

    def run_of(run_id: str, gateway: Here, principal: Principal = Depends(who)) -> Run:  # noqa: B008
        return run_seen_by(principal, run_id, gateway)

    return run_of


_reader = caller("read")
AtDesk = Annotated[Desk, Depends(_desk_of)]
Reader = Annotated[Principal, Depends(_reader)]
Seen = Annotated[Run, Depends(seen_by(_reader))]
"""The run of an address, for a reader."""


__all__ = ["AtDesk", "Desk", "Reader", "Seen", "seen_by"]
