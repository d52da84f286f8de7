"""What providers say of their limits while a call asks them: all processes know it at once, not only as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import ServerError
from mosaic_routing.guards import Guards, Permit
from mosaic_tasks.engines.limits import hearing_limits

log = structlog.get_logger(__name__)


@asynccontextmanager
async def telling_limits(guards: Guards, permit: Permit) -> AsyncIterator[None]:
    """Around the asking of an engine in the name of a permit."""
    telling: list[asyncio.Task[None]] = []

    def hear(headers: Mapping[str, str]) -> None:
        permit.answered(headers)
        if permit.has_news:
            telling.append(asyncio.create_task(asyncio.to_thread(_tell, guards, permit)))

    with hearing_limits(hear):
        try:
            yield
        finally:
            await asyncio.gather(*telling)


def _tell(guards: Guards, permit: Permit) -> None:
    try:
        guards.tell(permit)
    except (ServerError, RedisError) as error:
        log.info(
            "limits.untold",
            what="what a provider said of its limits is told as the call ends",
            permit=permit.name,
            error=str(error),
        )


__all__ = ["telling_limits"]
