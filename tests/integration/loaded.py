"""Loaded into a worker (`celery -I`): it knows the load of its targets at once, and gives things up without waiting."""

from __future__ import annotations

from mosaic_routing import degrading
from mosaic_tasks.execution.placing import fleets

degrading.HOLD_S = 0.0
fleets.REFRESH_S = -1.0
