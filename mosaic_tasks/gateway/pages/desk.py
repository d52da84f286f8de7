"""What the routes of the status page share: the runs that were looked at, and where pages are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple, cast

from fastapi import Depends, Request

from mosaic_queues.ledger import Ledger
from mosaic_queues.settings import Settings
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.client import Run
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.gateway.callers import Gateway, Here, caller, gateway_of, run_seen_by
from mosaic_tasks.gateway.pages.charts import Charts
from mosaic_tasks.gateway.pages.live import Fragments, News, Studio
from mosaic_tasks.gateway.readers import EventStream, Readers
from mosaic_tasks.gateway.streams import readers_of


class Desk(NamedTuple):
    """What is kept from one request to the next."""

    ledger: Ledger
    charts: Charts
    studio: Studio
    config: Settings
    readers: Readers

    def renewed(
        self, gateway: Gateway, principal: Principal, render: Callable[[], Fragments], news: News
    ) -> EventStream:
        """The answer to the browser of an open page."""
        body = self.studio.renewed(render, news, silence_s=self.config.gateway_silence_s)
        held, patience_s = gateway.quotas.reading(principal), self.config.gateway_patience_s
        return EventStream(body, self.readers, held=held, patience_s=patience_s)


async def _desk_of(request: Request) -> Desk:
    state = request.app.state
    if not hasattr(state, "desk"):  # no other request comes between: there is nothing to await
        process = process_for(gateway_of(request).app)
        ledger, config = process.ledger, process.settings
        state.desk = Desk(ledger, Charts(ledger), Studio(), config, readers_of(request))
    return cast("Desk", state.desk)


AtDesk = Annotated[Desk, Depends(_desk_of)]
Reader = Annotated[Principal, Depends(caller("read"))]


def _run_of(run_id: str, principal: Reader, gateway: Here) -> Run:
    return run_seen_by(principal, run_id, gateway)


Seen = Annotated[Run, Depends(_run_of)]
"""The run of an address, where it is the caller's business."""


__all__ = ["AtDesk", "Desk", "Reader", "Seen"]
