"""What a process keeps of what runs and tenants got."""

from __future__ import annotations

import math

import msgspec
import pytest

from mosaic_routing.targets import Decision
from mosaic_tasks import Workflow, compile_workflow
from mosaic_tasks.execution import order
from mosaic_tasks.execution.order import Order
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.sent import Sent

PLAN = compile_workflow(
    Workflow.from_yaml("name: w\nnodes:\n  a: {agent: {prompt: x, model: 'pool:sage'}}\noutput: a\n")
)


def plan(tenant: str) -> PreparedPlan:
    return PreparedPlan(tenant, msgspec.structs.replace(PLAN, priority=5, tenant=tenant))


def level(
    kept: Order, run_id: str, tenant: str = "", *, length_s: float = 1.0, deadline_s: float = math.inf
) -> int:
    sent = Sent(Decision(target="t", latency_s=length_s))
    return kept.level(run_id, plan(tenant), "0", sent, deadline_s=deadline_s)


def test_a_run_whose_deadline_is_near_goes_sooner() -> None:
    assert level(Order(), "r", deadline_s=2.0) < level(Order(), "r")


def test_a_run_that_got_much_goes_later_than_a_new_one() -> None:
    kept = Order()
    for _ in range(500):
        level(kept, "long", length_s=10.0)
    assert level(kept, "long") > level(kept, "new")


def test_a_tenant_alone_is_ahead_of_nobody() -> None:
    kept = Order()
    for number in range(500):
        level(kept, f"r{number}", "acme", length_s=10.0)
    assert level(kept, "new", "acme") == level(Order(), "new", "acme")


def test_a_tenant_that_got_more_waits_behind_another_as_long_as_that_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Order()
    level(kept, "first", "small")
    for number in range(200):
        level(kept, f"r{number}", "large", length_s=10.0)
    assert level(kept, "new", "large") > level(kept, "other", "small")
    monkeypatch.setattr(order, "BUSY_S", 0.0)
    level(kept, "later", "large")
    assert level(kept, "new2", "large") == level(Order(), "new2", "large")
