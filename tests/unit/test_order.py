"""The levels of what is sent, by what its run and tenant got."""

from __future__ import annotations

import math

import msgspec

from mosaic_routing.service import MemoryService
from mosaic_routing.targets import Decision
from mosaic_tasks import Workflow, compile_workflow
from mosaic_tasks.execution.placing.order import Order
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.sent import Sent

PLAN = compile_workflow(
    Workflow.from_yaml("name: w\nnodes:\n  a: {agent: {prompt: x, model: 'pool:sage'}}\noutput: a\n")
)


def plan(tenant: str) -> PreparedPlan:
    return PreparedPlan(tenant, msgspec.structs.replace(PLAN, priority=5, tenant=tenant))


def new_order() -> Order:
    return Order(MemoryService())


def level(
    order: Order, run_id: str, tenant: str = "", *, length_s: float = 1.0, deadline_s: float = math.inf
) -> int:
    sent = {"0": Sent(Decision(target="t", latency_s=length_s))}
    return order.levels(run_id, plan(tenant), sent, deadline_s=deadline_s)["0"]


def test_a_run_whose_deadline_is_near_goes_sooner() -> None:
    assert level(new_order(), "r", deadline_s=2.0) < level(new_order(), "r")


def test_a_run_that_got_much_goes_later_than_a_new_one() -> None:
    order = new_order()
    for _ in range(500):
        level(order, "long", length_s=10.0)
    assert level(order, "long") > level(order, "new")


def test_what_is_sent_together_counts_one_after_the_other() -> None:
    sent = {f"0.{number}": Sent(Decision(target="t", latency_s=100.0)) for number in range(100)}
    levels = new_order().levels("r", plan(""), sent, deadline_s=math.inf)
    assert list(levels.values()) == sorted(levels.values())
    assert levels["0.99"] > levels["0.0"]


def test_a_tenant_alone_is_ahead_of_nobody() -> None:
    order = new_order()
    for number in range(500):
        level(order, f"r{number}", "acme", length_s=10.0)
    assert level(order, "new", "acme") == level(new_order(), "new", "acme")


def test_a_tenant_that_got_more_waits_behind_another_as_long_as_that_is_busy() -> None:
    now_s = 0.0
    order = Order(MemoryService(lambda: now_s, busy_s=60.0))
    level(order, "first", "small")
    for number in range(200):
        level(order, f"r{number}", "large", length_s=10.0)
    assert level(order, "new", "large") > level(order, "other", "small")
    now_s = 61.0
    assert level(order, "new2", "large") == level(new_order(), "new2", "large")
