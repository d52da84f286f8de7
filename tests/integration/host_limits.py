"""Loaded into a worker (`celery -I`): makes the limits of its host small, and counts the streams of its engines."""

from __future__ import annotations

import os
from typing import Any

from mosaic_tasks.engines.replay import ReplayEngine
from mosaic_tasks.execution import hosting
from tests.integration.host_tools import note

for name in ("GRACE_S", "BLOCKED_S", "BLOCKING_PATIENCE_S"):
    if name in os.environ:
        setattr(hosting, name, float(os.environ[name]))

_stream = ReplayEngine.stream


async def _counted(self: ReplayEngine, request: Any) -> Any:
    note("streams", 1)
    try:
        async for event in _stream(self, request):
            yield event
    finally:
        note("streams", -1)


ReplayEngine.stream = _counted  # type: ignore[method-assign]
