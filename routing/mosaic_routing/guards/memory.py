"""The limits of one process: the same steps as in the server, on values in memory. For tests and simulators.

The steps of the server stand in `lua/`; each function here has its twin there, and a test takes both through the same
steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from mosaic_routing.guards.breakers import Breaker
from mosaic_routing.guards.buckets import Bucket, BucketLimit
from mosaic_routing.guards.budgets import Account, Period, day_of, until_tomorrow_ms
from mosaic_routing.guards.leases import Total
from mosaic_routing.guards.values import (
    Answer,
    BreakerReading,
    Charge,
    Need,
    Query,
    Readings,
    Request,
    Settlement,
    Take,
    Telling,
)

TIDY = 64
"""At most so many permits lapse, and are forgotten, in one step."""
GRACE_MS = 10_000
"""After a pause in which nobody was heard nothing lapses for so long, or for the expiry of who is heard first; but for
what was overdue by that much before the pause, lest nothing lapses where calls are rare."""
FORGET_MS = 3_600_000
"""A lapsed permit is remembered for so long: its process may come back, and its call has cost something."""


class _Permit(msgspec.Struct):
    """A permit; `accounts` are those of its charges, each of its day. Lapsed ones hold nothing."""

    need: Need
    accounts: tuple[str, ...]
    began_ms: int
    expires_ms: int
    is_lapsed: bool = False


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryBackend:
    """Keeps limits in memory.

    Args:
        clock: milliseconds since 1970; a simulator gives its own.
    """

    blocks = False

    def __init__(self, clock: Callable[[], int] = _now_ms) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._on_ring: Callable[[str], None] = lambda _what: None
        self._permits: dict[str, _Permit] = {}
        self._buckets: dict[str, Bucket] = {}
        self._totals: dict[str, Total] = {}
        self._breakers: dict[str, Breaker] = {}
        self._accounts: dict[str, Account] = {}
        self._heard_ms = 0
        self._quiet_ms = 0

    def admit(self, request: Request) -> Answer:
        """Gives a permit, or says what blocks and for how long."""
        with self._mutex:
            now_ms, rings = self._tidy(request.expiry_ms)
            answer = self._admit(request, now_ms, rings)
        self._ring(rings)
        return answer

    def settle(self, settlement: Settlement, expiry_ms: int) -> None:
        """Takes a permit back, once; what its call used counts instead of what was predicted."""
        with self._mutex:
            now_ms, rings = self._tidy(expiry_ms)
            permit = self._permits.pop(settlement.permit, None)
            if permit is not None:
                if not permit.is_lapsed:
                    self._give_back(permit, rings)
                self._settle(permit, settlement, now_ms, rings)
        self._ring(rings)

    def tell(self, telling: Telling, expiry_ms: int) -> None:
        """Lowers the buckets of a call that runs to what their provider said."""
        with self._mutex:
            now_ms, rings = self._tidy(expiry_ms)
            permit = self._permits.get(telling.permit)
            for take in permit.need.takes if permit is not None else ():
                bucket = self._bucket(take.bucket, take.limit, now_ms)
                self._buckets[take.bucket] = _told(bucket, take, telling, now_ms)
        self._ring(rings)

    def renew(self, permits: Sequence[str], expiry_ms: int) -> tuple[str, ...]:
        """Prolongs permits, also lapsed ones; answers those that are unknown."""
        with self._mutex:
            now_ms, rings = self._tidy(expiry_ms)
            for permit in filter(None, map(self._permits.get, permits)):
                if permit.is_lapsed:
                    self._hold(permit)
                permit.expires_ms, permit.is_lapsed = now_ms + expiry_ms, False
            missing = tuple(name for name in permits if name not in self._permits)
        self._ring(rings)
        return missing

    def read(self, query: Query, expiry_ms: int) -> Readings:
        """How limits stand."""
        with self._mutex:
            now_ms, rings = self._tidy(expiry_ms)
            totals = (self._totals.get(name, Total()) for name in query.leases)
            breakers = (self._breakers.get(name, Breaker()) for name in query.breakers)
            accounts = (self._account(account_key(*each, now_ms=now_ms)) for each in query.accounts)
            readings = Readings(
                leases=tuple((total.active, total.weight) for total in totals),
                breakers=tuple(BreakerReading(each.state, each.wait_ms(now_ms)) for each in breakers),
                buckets=tuple(
                    self._bucket(name, limit, now_ms).wait_ms(limit, now_ms, 1)
                    for name, limit in query.buckets
                ),
                accounts=tuple((account.spent, account.reserved) for account in accounts),
            )
        self._ring(rings)
        return readings

    def listen(self, on_ring: Callable[[str], None]) -> bool:
        """Has rings told from now on; whether it was not so before."""
        is_new, self._on_ring = on_ring != self._on_ring, on_ring
        return is_new

    def close(self) -> None:
        """Nothing is held."""

    def _ring(self, rings: list[str]) -> None:
        for what in rings:
            self._on_ring(what)

    def _bucket(self, name: str, limit: BucketLimit, now_ms: int) -> Bucket:
        return (self._buckets.get(name) or Bucket.new(limit, now_ms)).now(limit, now_ms)

    def _account(self, key: str) -> Account:
        return self._accounts.get(key, Account())

    def _admit(self, request: Request, now_ms: int, rings: list[str]) -> Answer:
        old = self._permits.get(request.permit)
        if old is not None and not old.is_lapsed and not request.replaces:
            breaker = self._breakers.get(old.need.breaker, Breaker())
            return Answer(is_probe=breaker.probe == request.permit)
        for name in (request.permit, *request.replaces):
            replaced = self._permits.pop(name, None)
            if replaced is not None and not replaced.is_lapsed:
                self._give_back(replaced, rings)
        if not request.is_forced:
            blocked = self._blocked(request.need, now_ms, self._next_ms(now_ms, request.expiry_ms))
            if blocked.blocker:
                return blocked
        return self._begin(request, now_ms)

    def _begin(self, request: Request, now_ms: int) -> Answer:
        need, is_probe = request.need, False
        if not request.is_forced:
            for take in need.takes:
                bucket = self._bucket(take.bucket, take.limit, now_ms)
                self._buckets[take.bucket] = bucket.settle(take.limit, now_ms, -take.amount)
            if need.breaker:
                breaker = self._breakers.get(need.breaker, Breaker()).passed(request.permit, now_ms)
                self._breakers[need.breaker] = breaker
                is_probe = breaker.probe == request.permit
        accounts = tuple(account_key(each.account, each.period, now_ms=now_ms) for each in need.charges)
        permit = _Permit(need, accounts, now_ms, now_ms + request.expiry_ms)
        self._permits[request.permit] = permit
        self._hold(permit)
        return Answer(is_probe=is_probe)

    def _blocked(self, need: Need, now_ms: int, next_ms: int) -> Answer:
        """The longest wait that is known; else the first of which none is; else nothing."""
        longest, unknown = Answer(), Answer()
        for answer in self._blockers(need, now_ms):
            if answer.wait_ms < 0 and answer.blocker == "spent":
                return answer
            if answer.is_rung:
                unknown = unknown if unknown.blocker else answer._replace(wait_ms=next_ms)
            elif answer.wait_ms > longest.wait_ms:
                longest = answer
        return longest if longest.blocker else unknown

    def _blockers(self, need: Need, now_ms: int) -> list[Answer]:
        found = []
        for take in need.takes:
            bucket = self._bucket(take.bucket, take.limit, now_ms)
            found.append(Answer("bucket", take.bucket, bucket.wait_ms(take.limit, now_ms, take.amount)))
        if need.breaker:
            wait_ms = self._breakers.get(need.breaker, Breaker()).wait_ms(now_ms)
            found.append(Answer("probe" if wait_ms < 0 else "breaker", need.breaker, wait_ms))
        found.extend(
            Answer("lease", lease.of)
            for lease in need.leases
            if not self._totals.get(lease.of, Total()).fits(lease.weight, lease.limit)
        )
        found.extend(self._charge_block(charge, now_ms) for charge in need.charges)
        return found

    def _charge_block(self, charge: Charge, now_ms: int) -> Answer:
        account = self._account(account_key(charge.account, charge.period, now_ms=now_ms))
        if account.fits(charge.amount, charge.limit):
            return Answer()
        if account.may_fit(charge.amount, charge.limit):
            return Answer("budget", charge.account)
        comes_back = charge.period == "day" and Account().fits(charge.amount, charge.limit)
        return Answer("spent", charge.account, until_tomorrow_ms(now_ms) if comes_back else -1)

    def _next_ms(self, now_ms: int, expiry_ms: int) -> int:
        """Until the next permit lapses, if nobody renews it; who waits is heard in between."""
        expiries = (permit.expires_ms for permit in self._permits.values() if not permit.is_lapsed)
        lapse_ms = max(min(expiries, default=now_ms), self._quiet_ms) - now_ms
        return max(min(lapse_ms, min(expiry_ms, GRACE_MS) // 4), 1)

    def _hold(self, permit: _Permit, *, sign: int = 1) -> None:
        for lease in permit.need.leases:
            total = self._totals.get(lease.of, Total())
            self._totals[lease.of] = total.plus(lease.weight, sign=sign)
        for key, charge in zip(permit.accounts, permit.need.charges, strict=True):
            self._accounts[key] = self._account(key).reserve(sign * charge.amount)

    def _give_back(self, permit: _Permit, rings: list[str]) -> None:
        self._hold(permit, sign=-1)
        rings.extend(f"lease:{lease.of}" for lease in permit.need.leases if lease.limit is not None)
        rings.extend(f"budget:{each.account}" for each in permit.need.charges if each.limit is not None)

    def _settle(self, permit: _Permit, settlement: Settlement, now_ms: int, rings: list[str]) -> None:
        for take in permit.need.takes:
            bucket = self._bucket(take.bucket, take.limit, now_ms)
            if take.unit == "tokens" and settlement.tokens >= 0:
                bucket = bucket.settle(take.limit, now_ms, take.amount - settlement.tokens)
            self._buckets[take.bucket] = _told(bucket, take, settlement, now_ms)
        for key, charge in zip(permit.accounts, permit.need.charges, strict=True):
            spent = charge.amount if settlement.cost < 0 else settlement.cost
            self._accounts[key] = self._account(key).spend(spent)
        if permit.need.breaker:
            self._end(permit, settlement, now_ms, rings)

    def _end(self, permit: _Permit, settlement: Settlement, now_ms: int, rings: list[str]) -> None:
        name = permit.need.breaker
        breaker = self._breakers.get(name, Breaker())
        self._breakers[name] = breaker.ended(
            permit.need.policy,
            now_ms,
            permit=settlement.permit,
            began_ms=permit.began_ms,
            outcome=settlement.outcome,
            pause_ms=settlement.pause_ms,
            jitter=settlement.jitter,
        )
        if breaker.state == "half":
            rings.append(f"breaker:{name}")

    def _tidy(self, expiry_ms: int) -> tuple[int, list[str]]:
        """The time, and what may go on because permits lapsed."""
        now_ms, rings = self._clock(), list[str]()
        grace_ms, heard_ms = min(expiry_ms, GRACE_MS), self._heard_ms
        was_silent = now_ms - heard_ms > grace_ms // 2
        self._quiet_ms = now_ms + grace_ms if was_silent else min(self._quiet_ms, now_ms + grace_ms)
        self._heard_ms = now_ms
        if was_silent or now_ms >= self._quiet_ms:
            for name in self._due(heard_ms - grace_ms if was_silent else now_ms, is_lapsed=False):
                self._lapse(name, now_ms, rings)
        for name in self._due(now_ms, is_lapsed=True):
            del self._permits[name]
        return now_ms, rings

    def _due(self, now_ms: int, *, is_lapsed: bool) -> list[str]:
        due = [
            (permit.expires_ms, name)
            for name, permit in self._permits.items()
            if permit.is_lapsed is is_lapsed and permit.expires_ms <= now_ms
        ]
        return [name for _, name in sorted(due)[:TIDY]]

    def _lapse(self, name: str, now_ms: int, rings: list[str]) -> None:
        permit = self._permits[name]
        self._give_back(permit, rings)
        permit.is_lapsed, permit.expires_ms = True, now_ms + FORGET_MS
        breaker = self._breakers.get(permit.need.breaker)
        if breaker is not None and breaker.probe == name:
            self._breakers[permit.need.breaker] = breaker.freed(name)
            rings.append(f"breaker:{permit.need.breaker}")


def _told(bucket: Bucket, take: Take, said: Settlement | Telling, now_ms: int) -> Bucket:
    """A bucket after what its provider said of it, where that is about it."""
    if not take.is_told:
        return bucket
    told = said.tokens_told if take.unit == "tokens" else said.requests_told
    return bucket.told(take.limit, now_ms, remaining=told.remaining, reset_ms=told.reset_ms)


def account_key(account: str, period: Period, *, now_ms: int) -> str:
    """The name of an account, with its day where it is for one."""
    return f"{account}#{day_of(now_ms)}" if period == "day" else account
