"""Loaded into a worker (`celery -I`): makes the limits of its host small, and counts the streams of its engines."""

from __future__ import annotations

import os
from typing import Any

from mosaic_tasks.engines.replay import ReplayEngine
from mosaic_tasks.execution import driver, hosting
from tests.integration.host_tools import note
from tests.integration.stream_tools import tell

for name in ("GRACE_S", "BLOCKED_S", "BLOCKING_PATIENCE_S"):
    if name in os.environ:
        setattr(hosting, name, float(os.environ[name]))

if "CLAIMS_EVERY_S" in os.environ:
    hosting.CLAIMS_EVERY_S = driver.CLAIMS_EVERY_S = float(os.environ["CLAIMS_EVERY_S"])

_stream = ReplayEngine.stream


async def _counted(self: ReplayEngine, request: Any) -> Any:
    note("streams", 1)
    tell("engine asked", 1)
    try:
        async for event in _stream(self, request):
            yield event
    finally:
        note("streams", -1)
        tell("engine left", 1)


ReplayEngine.stream = _counted  # type: ignore[method-assign]
