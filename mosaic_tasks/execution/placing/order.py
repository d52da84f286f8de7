"""In which order calls wait: what is known of them when they are sent, for the policy that decides."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mosaic_routing.ordering import Waiting, celery_level
from mosaic_routing.service import Served, Service
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
        now_s, lengths_s = time.time(), [each.decision.latency_s for each in sent.values()]
        served = self._service.serve(run_id, plan.plan.tenant, lengths_s)
        return {
            call: celery_level(_waiting(call, plan, length_s, had, now_s, now_s + deadline_s), now_s=now_s)
            for call, length_s, had in zip(sent, lengths_s, served, strict=True)
        }


def _waiting(
    call: str, plan: PreparedPlan, length_s: float, had: Served, now_s: float, deadline_s: float
) -> Waiting:
    number = CallId(call).node
    return Waiting(
        level=plan.plan.priority,
        ready_s=now_s,
        length_s=length_s,
        deadline_s=deadline_s,
        path_s=length_s * plan.depth(number),
        fan_out=plan.fan_out(number),
        attained_s=had.attained_s,
        lead_s=had.lead_s,
    )


__all__ = ["Order"]
