"""Which limits there are, as people declare them, and what a call needs of each."""

from __future__ import annotations

from typing import Annotated

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mosaic_routing.guards.breakers import BreakerPolicy
from mosaic_routing.guards.buckets import (
    LONGEST_MS,
    MAX_AMOUNT,
    MAX_BURST_MINUTES,
    MAX_PER_MINUTE,
    BucketLimit,
)
from mosaic_routing.guards.budgets import MAX_MICROS, MICROS, Period, micros
from mosaic_routing.guards.leases import MAX_WEIGHT
from mosaic_routing.guards.values import Charge, Lease, Need, Take, Unit

EACH = "*"
"""The entry for each name that has none of its own."""

_Rate = Annotated[int, Field(ge=1, le=MAX_PER_MINUTE)]
_Dollars = Annotated[float, Field(ge=0, le=MAX_MICROS / MICROS, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(gt=0, le=LONGEST_MS / 1_000)]


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limit(_Declared):
    """What one provider, deployment, model or tenant may use; None: no limit.

    Attributes:
        requests_per_minute: calls that begin.
        tokens_per_minute: of prompts and answers.
        burst_minutes: how many minutes of these rates may be used at once.
        concurrency: calls that run at once.
        dollars_per_day: of the server's day, in UTC.
    """

    requests_per_minute: _Rate | None = None
    tokens_per_minute: _Rate | None = None
    burst_minutes: Annotated[float, Field(gt=0, le=MAX_BURST_MINUTES)] = 1.0
    concurrency: Annotated[int, Field(ge=1, le=MAX_WEIGHT)] | None = None
    dollars_per_day: _Dollars | None = None


class BreakerLimit(_Declared):
    """When a deployment is left alone; the fields of `BreakerPolicy`, in seconds and shares."""

    window_s: _Seconds = 30.0
    min_calls: Annotated[int, Field(ge=1)] = 10
    bad_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    slow_s: Annotated[float, Field(gt=0)] | None = None
    open_s: _Seconds = 1.0
    open_max_s: _Seconds = 60.0

    @model_validator(mode="after")
    def _ordered(self) -> BreakerLimit:
        if self.open_max_s < self.open_s:
            raise ValueError(f"open_max_s {self.open_max_s:g} is less than open_s {self.open_s:g}")
        return self

    def policy(self) -> BreakerPolicy:
        """In whole numbers."""
        return BreakerPolicy(
            window_ms=_ms(self.window_s),
            min_calls=self.min_calls,
            bad_percent=max(1, round(self.bad_share * 100)),
            slow_ms=_ms(self.slow_s) if self.slow_s else 0,
            open_ms=_ms(self.open_s),
            open_max_ms=_ms(self.open_max_s),
        )


class Limits(_Declared):
    """All limits; each by name, `*` for each name that is not there.

    Attributes:
        deployments: `h100/llama-3.1-8b`, `api.openai/gpt-5-mini`.
        providers: classes: `api.openai`. Their headers are about these limits.
        models: of the pool, wherever they run.
        tenants: who the runs are for.
        dollars_per_day: of all calls together.
        breaker: of each deployment.
    """

    deployments: dict[str, Limit] = {}
    providers: dict[str, Limit] = {}
    models: dict[str, Limit] = {}
    tenants: dict[str, Limit] = {}
    dollars_per_day: _Dollars | None = None
    breaker: BreakerLimit = BreakerLimit()

    def need(self, call: GuardedCall) -> Need:
        """What a call needs.

        Raises:
            ValueError: an amount of the call is negative, no number, or absurdly large.
        """
        cost = micros(call.dollars, f"what a call of deployment {call.deployment!r} may cost")
        limits = [(f"{scope}:{name}", limit) for scope, name, limit in self._scopes(call)]
        takes = [take for scope, limit in limits for take in _takes(scope, limit, call.tokens)]
        leases = [Lease(scope, 1, one.concurrency) for scope, one in limits if one.concurrency is not None]
        budgets: list[tuple[str, float | None, Period]] = [
            *((scope, limit.dollars_per_day, "day") for scope, limit in limits),
            ("all", self.dollars_per_day, "day"),
            (f"run:{call.run}", call.run_dollars if call.run else None, "total"),
        ]
        return Need(
            takes=tuple(takes),
            leases=tuple(leases),
            charges=tuple(
                Charge(account, cost, micros(dollars, f"the budget of {account!r}"), period)
                for account, dollars, period in budgets
                if dollars is not None
            ),
            breaker=call.deployment,
            policy=self.breaker.policy(),
        )

    def _scopes(self, call: GuardedCall) -> list[tuple[str, str, Limit]]:
        named = (
            ("provider", self.providers, call.deployment.partition("/")[0]),
            ("deployment", self.deployments, call.deployment),
            ("model", self.models, call.model),
            ("tenant", self.tenants, call.tenant),
        )
        found = ((scope, name, limits.get(name) or limits.get(EACH)) for scope, limits, name in named if name)
        return [(scope, name, limit) for scope, name, limit in found if limit is not None]


class GuardedCall(msgspec.Struct, frozen=True, kw_only=True):
    """What limits know a call by.

    Attributes:
        deployment: a model on a class or at a provider: `api.openai/gpt-5-mini`.
        model: its name in the pool; empty: no limit of a model.
        tokens: predicted, of prompt and answer.
        dollars: predicted.
        run_dollars: what the call's run may cost in all; None: no limit.
    """

    deployment: str
    model: str = ""
    tenant: str = ""
    run: str = ""
    tokens: int = 0
    dollars: float = 0.0
    run_dollars: float | None = None


def _takes(scope: str, limit: Limit, tokens: int) -> list[Take]:
    rates: tuple[tuple[Unit, int, int | None], ...] = (
        ("requests", 1, limit.requests_per_minute),
        ("tokens", min(tokens, MAX_AMOUNT), limit.tokens_per_minute),
    )
    is_told = scope.startswith(("provider:", "deployment:"))
    return [
        Take(f"{scope}:{unit}", amount, _bucket(rate, limit.burst_minutes), unit, is_told)
        for unit, amount, rate in rates
        if rate is not None
    ]


def _bucket(per_minute: int, burst_minutes: float) -> BucketLimit:
    return BucketLimit(per_minute, max(1, int(per_minute * burst_minutes)))


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1_000))
