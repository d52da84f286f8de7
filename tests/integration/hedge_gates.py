"""Loaded into a worker (`celery -I`): its engines answer once a gate is open, any call is a straggler soon, and it may
be killed at a step of hedging."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from mosaic_queues.errors import EngineError
from mosaic_queues.ledger import Ledger
from mosaic_tasks.engines.replay import ReplayEngine
from mosaic_tasks.execution.placing import dispatching, fleets
from mosaic_tasks.execution.process import Process
from tests.integration.stream_tools import GATE_S, tell

GATE_MS = int(1000 * GATE_S)

dispatching.Hedges = partial(dispatching.Hedges, calls=1_000.0)  # type: ignore[misc, assignment]
dispatching.hedge_after_s = lambda *_args, **_options: 0.05
fleets.LEASE_S = 3_600.0  # what is not given back stays
_stream = ReplayEngine.stream


async def _gated(self: ReplayEngine, request: Any) -> Any:
    name = Path(request.model).stem
    tell(f"asked {name}", 1)
    try:
        async with Redis.from_url(os.environ["MOSAIC_REDIS_URL"], socket_timeout=None) as server:
            async for event in _stream(self, request):
                yield event
                if await server.exists(f"test:broken:{name}"):
                    raise EngineError("it is broken")
                await server.xread({f"test:open:{name}": "0"}, block=GATE_MS)
    finally:
        tell(f"left {name}", 1)


ReplayEngine.stream = _gated  # type: ignore[method-assign]


def _dies_in(owner: type, name: str, *, after: bool) -> None:
    """Has the process killed by its call of a method, before or after that does what it does."""
    method = getattr(owner, name)

    def dying(self: Any, *args: Any, **options: Any) -> Any:
        if after:
            method(self, *args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dying)


match os.environ.get("DIES"):
    case "before the message":
        _dies_in(Process, "publish_placed", after=False)
    case "before it takes over":
        _dies_in(Ledger, "overtake", after=False)
    case "after it took over":
        _dies_in(Ledger, "overtake", after=True)
