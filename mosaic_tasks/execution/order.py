"""In which order the calls of a process wait: what is known of them here, for the policy that decides."""

from __future__ import annotations

import math
import time
from collections import OrderedDict

from mosaic_routing.ordering import Shares, Waiting, celery_level
from mosaic_tasks.execution.prepared import CallId, PreparedPlan
from mosaic_tasks.execution.sent import Sent

BUSY_S = 60.0
"""A tenant that sent nothing for so long has nothing that waits: nobody is ahead of it."""
_RUNS = 4_096
"""Runs of which it is kept how much they got."""


class Order:
    """What runs and tenants got through this process. Each process sees its own part; so do the others."""

    def __init__(self) -> None:
        self._attained_s: OrderedDict[str, float] = OrderedDict()
        self._seen_s: dict[str, float] = {}
        self._shares = Shares()

    def level(self, run_id: str, plan: PreparedPlan, call: str, sent: Sent, *, deadline_s: float) -> int:
        """The priority of the message of a call that is published now.

        Args:
            deadline_s: until the run's.
        """
        now_s, length_s, tenant = time.time(), sent.decision.latency_s, plan.plan.tenant
        number = CallId(call).node
        waiting = Waiting(
            level=plan.plan.priority,
            ready_s=now_s,
            length_s=length_s,
            deadline_s=math.inf if deadline_s == math.inf else now_s + deadline_s,
            path_s=length_s * plan.depth(number),
            fan_out=plan.fan_out(number),
            attained_s=self._attained_s.get(run_id, 0.0),
            lead_s=self._shares.lead_s(tenant),
        )
        self._count(run_id, tenant, length_s, now_s)
        return celery_level(waiting, now_s=now_s)

    def _count(self, run_id: str, tenant: str, length_s: float, now_s: float) -> None:
        self._attained_s[run_id] = self._attained_s.pop(run_id, 0.0) + length_s
        while len(self._attained_s) > _RUNS:
            self._attained_s.popitem(last=False)
        self._seen_s[tenant] = now_s
        self._seen_s = {name: at_s for name, at_s in self._seen_s.items() if now_s - at_s <= BUSY_S}
        self._shares = self._shares.with_call(tenant, length_s).with_waiting(frozenset(self._seen_s))


__all__ = ["Order"]
