"""What passes between a call that wants to begin and what keeps the limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from mosaic_routing.guards.breakers import BreakerPolicy, Outcome
from mosaic_routing.guards.buckets import MAX_AMOUNT, BucketLimit
from mosaic_routing.guards.budgets import Period, check_micros
from mosaic_routing.guards.leases import MAX_WEIGHT

Unit = Literal["requests", "tokens"]
Blocker = Literal["", "bucket", "breaker", "probe", "lease", "budget", "spent"]
"""What does not let a call through. `probe`: another call tries the deployment; `spent`: never will it."""

MAX_EXPIRY_MS = 86_400_000


class Take(msgspec.Struct, frozen=True):
    """So much of a token bucket.

    Attributes:
        bucket: its name: `provider:openai:tokens`.
        amount: 1 request, or tokens as predicted; what differs in the end is settled.
        is_told: the provider's headers are about this bucket.
    """

    bucket: str
    amount: int
    limit: BucketLimit
    unit: Unit = "requests"
    is_told: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.amount <= MAX_AMOUNT:
            raise ValueError(f"{self.amount!r} {self.unit} of {self.bucket!r} are not from 0 to {MAX_AMOUNT}")


class Lease(msgspec.Struct, frozen=True):
    """A part of something for as long as the call runs.

    Attributes:
        of: the name of the thing: a deployment, or a target's backlog.
        limit: of the weights of all; None: they are only counted.
    """

    of: str
    weight: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= MAX_WEIGHT:
            raise ValueError(f"a lease of {self.of!r} weighs {self.weight!r}, not from 0 to {MAX_WEIGHT}")
        if self.limit is not None and self.weight > self.limit:
            raise ValueError(
                f"a lease of {self.of!r} that weighs {self.weight} can never be within {self.limit}"
            )


class Charge(msgspec.Struct, frozen=True):
    """Money that a call may cost, of one budget.

    Attributes:
        account: whose: `run:ID`, `tenant:acme`, `all`.
        amount: micro-dollars, as predicted.
        limit: micro-dollars; None: what is spent is only counted.
    """

    account: str
    amount: int
    limit: int | None
    period: Period = "total"

    def __post_init__(self) -> None:
        check_micros(self.amount, f"what a call may cost on account {self.account!r}")
        if self.limit is not None:
            check_micros(self.limit, f"the budget of account {self.account!r}")


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """All that a call needs to begin; it gets all or nothing, in one step.

    Attributes:
        breaker: the deployment whose breaker it passes; empty: none.
    """

    takes: tuple[Take, ...] = ()
    leases: tuple[Lease, ...] = ()
    charges: tuple[Charge, ...] = ()
    breaker: str = ""
    policy: BreakerPolicy = BreakerPolicy()

    def __post_init__(self) -> None:
        names = (
            *(f"bucket:{take.bucket}" for take in self.takes),
            *(f"lease:{lease.of}" for lease in self.leases),
            *(f"budget:{charge.account}#{charge.period}" for charge in self.charges),
        )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"a call needs {', '.join(twice)} more than once; name each once, with the sum")

    def blockers(self) -> Iterator[str]:
        """What may not let it through, as `Answer.by` names it."""
        yield from (f"bucket:{take.bucket}" for take in self.takes)
        if self.breaker:
            yield f"breaker:{self.breaker}"
        yield from (f"lease:{lease.of}" for lease in self.leases if lease.limit is not None)
        yield from (f"budget:{charge.account}" for charge in self.charges if charge.limit is not None)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A call asks for a permit. Asking again for one that is there changes nothing.

    Attributes:
        permit: its name, unique; whoever knows it may settle it.
        expiry_ms: it lapses unless it is renewed in that time.
        is_forced: whatever the limits say, and nothing is taken from buckets: the call runs already.
        replaces: older permits that are given back first; one of this name, too, where it is named.
    """

    permit: str
    need: Need
    expiry_ms: int
    is_forced: bool = False
    replaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.expiry_ms <= MAX_EXPIRY_MS:
            raise ValueError(f"an expiry of {self.expiry_ms!r} ms is not from 1 to {MAX_EXPIRY_MS}")


class Answer(NamedTuple):
    """Whether a call may begin.

    Attributes:
        blocker: what does not let it; empty: it may.
        name: of the bucket, deployment, thing or account.
        wait_ms: when to ask again, at the latest; -1: never. Of `probe`, `lease` and `budget` the moment is not known
            before, and a ring tells it.
        is_probe: the call tries a deployment that failed.
    """

    blocker: Blocker = ""
    name: str = ""
    wait_ms: int = 0
    is_probe: bool = False

    @property
    def by(self) -> str:
        """What does not let it, in one word; also what a ring is about."""
        return f"{_KIND.get(self.blocker, self.blocker)}:{self.name}"

    @property
    def is_rung(self) -> bool:
        """Whether a ring tells the moment."""
        return self.blocker in ("probe", "lease", "budget")


_KIND = {"probe": "breaker", "spent": "budget"}


class Told(NamedTuple):
    """What a provider said of a limit of its own: what remains (-1: nothing was said), and when it is whole again."""

    remaining: int = -1
    reset_ms: int = 0


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended.

    Attributes:
        outcome: what that tells of the deployment.
        pause_ms: how long the provider asked to be left alone.
        jitter: by chance, from 0 to 1,000; spreads how long breakers stay open.
        tokens: used; -1: as predicted.
        cost: micro-dollars; -1: as predicted.
        requests_told, tokens_told: what the provider said of its limits.
    """

    permit: str
    outcome: Outcome = "none"
    pause_ms: int = 0
    jitter: int = 0
    tokens: int = -1
    cost: int = -1
    requests_told: Told = Told()
    tokens_told: Told = Told()


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider said of its limits while a call runs: all processes learn it at once.

    Attributes:
        permit: of the call.
        requests_told, tokens_told: as in a `Settlement`.
    """

    permit: str
    requests_told: Told = Told()
    tokens_told: Told = Told()


class BreakerReading(NamedTuple):
    """Of a breaker: its state, and how long until a call may pass; -1: until the probe has ended."""

    state: Literal["closed", "open", "half"]
    wait_ms: int


class Readings(NamedTuple):
    """How limits stand, in the order in which they were asked for.

    Attributes:
        leases: number and weight of each.
        breakers: state of each.
        buckets: milliseconds until one more may be taken of each.
        accounts: micro-dollars spent and reserved on each.
    """

    leases: tuple[tuple[int, int], ...]
    breakers: tuple[BreakerReading, ...]
    buckets: tuple[int, ...]
    accounts: tuple[tuple[int, int], ...]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What to read."""

    leases: tuple[str, ...] = ()
    breakers: tuple[str, ...] = ()
    buckets: tuple[tuple[str, BucketLimit], ...] = ()
    accounts: tuple[tuple[str, Period], ...] = ()
