"""In which order calls wait: what is known of them when they are sent, for the policy that decides."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from mosaic_routing.ordering import Waiting, celery_level
from mosaic_routing.service import Service
from mosaic_tasks.execution.prepared import CallId, PreparedPlan
from mosaic_tasks.execution.sent import Sent


class Order:
    """The levels of what is sent.

    Args:
        service: knows what runs and tenants got.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def levels(
        self, run_id: str, plan: PreparedPlan, sent: Mapping[str, Sent], *, deadline_s: float
    ) -> dict[str, int]:
        """The priorities of the messages of calls that are published now.

        Args:
            sent: where each of them goes.
            deadline_s: until the run's.
        """
        if not sent:
            return {}
        now_s, tenant = time.time(), plan.plan.tenant
        lengths_s = [each.decision.latency_s for each in sent.values()]
        levels = {}
        served = self._service.serve(run_id, tenant, lengths_s)
        for call, length_s, (attained_s, lead_s) in zip(sent, lengths_s, served, strict=True):
            number = CallId(call).node
            waiting = Waiting(
                level=plan.plan.priority,
                ready_s=now_s,
                length_s=length_s,
                deadline_s=math.inf if deadline_s == math.inf else now_s + deadline_s,
                path_s=length_s * plan.depth(number),
                fan_out=plan.fan_out(number),
                attained_s=attained_s,
                lead_s=lead_s,
            )
            levels[call] = celery_level(waiting, now_s=now_s)
        return levels


__all__ = ["Order"]
