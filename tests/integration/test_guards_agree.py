"""The server's scripts and the pure values come to the same, step for step, on any clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_routing.guards import (
    BreakerPolicy,
    BucketLimit,
    Charge,
    Lease,
    MemoryBackend,
    Need,
    Query,
    Request,
    ServerBackend,
    Settlement,
    Take,
    Telling,
    Told,
)
from mosaic_routing.guards.breakers import Outcome
from mosaic_routing.guards.buckets import MAX_AMOUNT, MAX_PER_MINUTE
from mosaic_routing.guards.budgets import DAY_MS, MAX_MICROS
from mosaic_routing.guards.values import Unit

pytestmark = pytest.mark.integration

START_MS = 1_800_000_000_000
EXPIRY_MS = 10_000
CLOCK = "local function server_ms() return tonumber(redis.call('GET', 'clock')) end"
BUCKETS = {
    "slow": BucketLimit(7),
    "tokens": BucketLimit(30_000, 10_000),
    "vast": BucketLimit(MAX_PER_MINUTE, 60 * MAX_PER_MINUTE),
}
POLICY = BreakerPolicy(
    window_ms=5_000, min_calls=3, bad_percent=50, slow_ms=4_000, open_ms=500, open_max_ms=8_000
)
QUERY = Query(
    leases=("free", "few"),
    breakers=("dep",),
    buckets=tuple(BUCKETS.items()),
    accounts=(("run", "total"), ("day", "day")),
)

AMOUNTS = [0, 1, 2, 5, 1_000, 20_000, MAX_AMOUNT]
MONEY = [0, 1, 200_000, 400_000, 1_000_000, MAX_MICROS]
PASSED_MS = [
    1,
    1,
    40,
    180,
    180,
    700,
    3_000,
    4_900,
    7_000,
    7_000,
    12_000,
    90_000,
    8_000_000,
    DAY_MS,
    -250,
    -600_000,
]
PERMITS = ["a", "b", "c", "d"]


class Walk:
    """Steps by chance, more often those after which something is to be seen."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def steps(self) -> Iterator[tuple[str, Any]]:
        kinds = ["pass"] * 4 + ["admit"] * 5 + ["settle"] * 4 + ["tell", "renew"]
        for _ in range(120):
            kind = self._random.choice(kinds)
            yield kind, getattr(self, f"_{kind}")()

    def _pass(self) -> int:
        return self._random.choice(PASSED_MS)

    def _admit(self) -> Request:
        return Request(
            permit=self._random.choice(PERMITS),
            need=self._need(),
            expiry_ms=self._random.choice([400, 3_000, EXPIRY_MS, 60_000]),
            is_forced=self._random.random() < 0.1,
            replaces=self._random.choice([(), (), (), tuple(self._random.choices(PERMITS, k=2))]),
        )

    def _need(self) -> Need:
        pick = self._random
        return Need(
            takes=tuple(self._take(name) for name in BUCKETS if pick.random() < 0.2),
            leases=tuple(
                lease
                for lease in (Lease("free", pick.choice(AMOUNTS)), Lease("few", pick.randint(0, 3), 3))
                if pick.random() < 0.4
            ),
            charges=tuple(
                Charge(account, pick.choice(MONEY), pick.choice([1_000_000, 1_000_000, None]), period)
                for account, period in QUERY.accounts
                if pick.random() < 0.4
            ),
            breaker=pick.choice(["", "dep", "dep", "dep"]),
            policy=POLICY,
        )

    def _take(self, name: str) -> Take:
        unit: Unit = self._random.choice(["requests", "tokens"])  # type: ignore[assignment]
        return Take(name, self._random.choice(AMOUNTS), BUCKETS[name], unit, self._random.random() < 0.5)

    def _settle(self) -> Settlement:
        pick = self._random
        outcome: Outcome = pick.choice(["good", "good", "failed", "failed", "none"])  # type: ignore[assignment]
        return Settlement(
            permit=pick.choice(PERMITS),
            outcome=outcome,
            pause_ms=pick.choice([0, 0, 2_500, 10**12]),
            jitter=pick.randint(0, 1_000),
            tokens=pick.choice([-1, 0, 3, 50_000, MAX_AMOUNT]),
            cost=pick.choice([-1, 0, 0, MAX_MICROS]),
            requests_told=self._told(),
            tokens_told=self._told(),
        )

    def _tell(self) -> Telling:
        return Telling(
            permit=self._random.choice(PERMITS), requests_told=self._told(), tokens_told=self._told()
        )

    def _told(self) -> Told:
        return Told(
            self._random.choice([-5, -1, 0, 1, 10_000, MAX_AMOUNT]), self._random.choice([0, 900, 10**12])
        )

    def _renew(self) -> list[str]:
        return self._random.sample(PERMITS, 2)


class Pair:
    """Both backends on one clock."""

    def __init__(self, client: Redis) -> None:
        self.now_ms = START_MS
        self._client = client
        client.flushdb()
        client.set("clock", self.now_ms)
        self._memory = MemoryBackend(lambda: self.now_ms)
        self._server = ServerBackend(client, Keys("mosaic"), clock=CLOCK)

    def step(self, kind: str, what: Any) -> None:
        if kind == "pass":
            self.now_ms += what
            self._client.set("clock", self.now_ms)
        elif kind == "admit":
            assert self._server.admit(what) == self._memory.admit(what)
        elif kind == "settle":
            self._server.settle(what, EXPIRY_MS)
            self._memory.settle(what, EXPIRY_MS)
        elif kind == "tell":
            self._server.tell(what, EXPIRY_MS)
            self._memory.tell(what, EXPIRY_MS)
        else:
            assert self._server.renew(what, EXPIRY_MS) == self._memory.renew(what, EXPIRY_MS)

    def check(self) -> None:
        readings = self._server.read(QUERY, EXPIRY_MS)
        assert readings == self._memory.read(QUERY, EXPIRY_MS)
        assert all(active >= 0 and weight >= 0 for active, weight in readings.leases)
        assert all(spent >= 0 and reserved >= 0 for spent, reserved in readings.accounts)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_the_scripts_and_the_pure_steps_agree(redis_client: Redis, seed: int) -> None:
    pair = Pair(redis_client)
    for kind, what in Walk(seed).steps():
        pair.step(kind, what)
        pair.check()
