"""On what terms a run is executed: what whoever submits it says beside its inputs."""

from __future__ import annotations

import math
import re
from typing import Any, get_args

import msgspec

from mosaic_queues.errors import InputError
from mosaic_queues.topology import MOST_URGENT, level_of
from mosaic_routing.targets import Objective
from mosaic_tasks.definition.plan import Plan

MOST_USD = 1_000_000_000
"""What a run may cost; a larger budget is none that the guards can keep."""
_TENANT = re.compile(r"[A-Za-z0-9._-]{0,100}")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a run; what is None is as its workflow says.

    Attributes:
        priority: 0 is the most urgent; or a name that the topology has for a level.
        objective: what the router cares for most.
        deadline_s: it fails when it takes longer.
        budget_usd: it may cost so much.
        tenant: on whose account.
    """

    priority: int | str = MOST_URGENT
    objective: Objective | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    tenant: str = ""

    def of(self, plan: Plan) -> Plan:
        """A plan on these terms.

        Raises:
            InputError: one of them makes no sense.
        """
        self._check()
        told: dict[str, Any] = {
            "priority": level_of(self.priority),
            "objective": self.objective or plan.objective,
            "deadline_s": plan.deadline_s if self.deadline_s is None else self.deadline_s,
            "budget_usd": plan.budget_usd if self.budget_usd is None else self.budget_usd,
            "tenant": self.tenant,
        }
        if all(getattr(plan, name) == value for name, value in told.items()):
            return plan
        return msgspec.structs.replace(plan, **told)

    def _check(self) -> None:
        known = get_args(Objective)
        if self.objective is not None and self.objective not in known:
            raise InputError(f"{self.objective!r} is no objective; give one of: {', '.join(known)}")
        if self.deadline_s is not None and not 0 < self.deadline_s < math.inf:
            raise InputError(f"a deadline of {self.deadline_s!r} s is none; give a number above 0")
        if self.budget_usd is not None and not 0 <= self.budget_usd <= MOST_USD:
            raise InputError(
                f"a budget of {self.budget_usd!r} US dollars is none; give a number from 0 to {MOST_USD:,}"
            )
        check_tenant(self.tenant)


def check_tenant(name: str) -> None:
    """Checks that this may be the name of a tenant.

    Raises:
        InputError: it may not.
    """
    if not _TENANT.fullmatch(name):
        raise InputError(f"{name!r} is no name of a tenant; use letters, digits and . _ - (100 at most)")


def check_key(key: str) -> None:
    """Checks that this may be an idempotency key: any text.

    Raises:
        InputError: it is no UTF-8.
    """
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"the key {key!r} is no text: it has half of a character, or bytes that were no UTF-8"
        ) from None


def without_terms(plan: Plan) -> Plan:
    """The same plan, whatever its terms."""
    return msgspec.structs.replace(
        plan, priority=MOST_URGENT, objective="latency", deadline_s=None, budget_usd=None, tenant=""
    )


__all__ = ["MOST_USD", "Terms", "check_key", "check_tenant", "without_terms"]
