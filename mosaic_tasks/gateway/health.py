"""Whether the gateway lives, and whether it can serve."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from mosaic_queues.connection import server_errors
from mosaic_tasks.execution.process import ledger_url, process_for
from mosaic_tasks.gateway.answers import problems
from mosaic_tasks.gateway.callers import Here

router = APIRouter(prefix="/health", tags=["health"], responses=problems(414, 421))


class Health(BaseModel):
    """It goes well."""

    status: Literal["ok"] = Field(
        default="ok", description="Whatever else is told by the status of the answer."
    )


@router.get("/live", operation_id="live", summary="Whether the process answers")
async def live() -> Health:
    """Says so by answering; asks nobody."""
    return Health()


@router.get(
    "/ready",
    operation_id="ready",
    summary="Whether runs can be started and read",
    responses=problems(503),
)
def ready(here: Here) -> Health:
    """Asks the server behind the gateway, without patience."""
    with server_errors(ledger_url(here.app)):
        process_for(here.app).once.ping()
    return Health()
