"""Token buckets: how much may begin in a minute. Pure, in whole numbers.

A bucket is full at first, loses what is taken, and fills at an even rate. Levels are counted in `UNIT`ths, in which a
millisecond's refill is a whole number: the rate itself. So nothing drifts, however often a bucket is asked, and the
server's script, whose numbers are exact up to 2^53, comes to the same levels. The bounds below keep all products
under that.

An amount above the size of the bucket waits until it is full, and leaves a debt: over time the rate holds all the same.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

UNIT = 60_000
"""Milliseconds of a minute: a level is an amount times this."""
MAX_PER_MINUTE = 1_000_000_000
MAX_AMOUNT = 10_000_000_000
MAX_BURST_MINUTES = 60
"""A bucket holds no more than this many minutes of its rate."""
MAX_DEBT_MS = 3_600_000
"""No debt is remembered that takes longer than this to pay."""
MAX_REFILL_MS = MAX_DEBT_MS + MAX_BURST_MINUTES * UNIT
"""After so long every bucket is full."""
LONGEST_MS = 3_600_000
"""No pause that a provider asks for is believed beyond this."""


class BucketLimit(msgspec.Struct, frozen=True):
    """A rate, and what may be taken at once.

    Attributes:
        per_minute: how much comes back in a minute.
        burst: the size of the bucket; 0: what comes back in a minute.
    """

    per_minute: Annotated[int, msgspec.Meta(ge=1, le=MAX_PER_MINUTE)]
    burst: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        if not 1 <= self.per_minute <= MAX_PER_MINUTE:
            raise ValueError(f"a rate of {self.per_minute!r} a minute is not from 1 to {MAX_PER_MINUTE}")
        if not 0 <= self.burst <= MAX_BURST_MINUTES * self.per_minute:
            raise ValueError(
                f"a burst of {self.burst!r} is not from 0 to {MAX_BURST_MINUTES} minutes of {self.per_minute}"
            )

    @property
    def size(self) -> int:
        """What a full bucket holds."""
        return self.burst or self.per_minute

    @property
    def full(self) -> int:
        """The level of a full bucket."""
        return self.size * UNIT


class Bucket(msgspec.Struct, frozen=True):
    """A bucket at one moment.

    Attributes:
        level: what it holds, in `UNIT`ths; below 0: a debt.
        at_ms: the moment.
        held_until_ms: nothing may be taken before, because the provider said so.
    """

    level: int
    at_ms: int
    held_until_ms: int = 0

    @classmethod
    def new(cls, limit: BucketLimit, now_ms: int) -> Bucket:
        """A full one."""
        return cls(limit.full, now_ms)

    def now(self, limit: BucketLimit, now_ms: int) -> Bucket:
        """What has come back meanwhile is in it; a clock that went back brings nothing, and holds nobody for ever."""
        passed_ms = min(max(now_ms - self.at_ms, 0), MAX_REFILL_MS)
        return Bucket(
            level=min(limit.full, self.level + passed_ms * limit.per_minute),
            at_ms=now_ms,
            held_until_ms=min(self.held_until_ms, now_ms + LONGEST_MS) if self.held_until_ms > now_ms else 0,
        )

    def wait_ms(self, limit: BucketLimit, now_ms: int, amount: int) -> int:
        """Until so much can be taken, if nobody else takes; 0: now."""
        bucket = self.now(limit, now_ms)
        missing = min(amount * UNIT, limit.full) - bucket.level
        return max(-(-missing // limit.per_minute), bucket.held_until_ms - now_ms, 0)

    def take(self, limit: BucketLimit, now_ms: int, amount: int) -> tuple[Bucket, int]:
        """The bucket without the amount, and 0; or the bucket as it is, and how long to wait (ms)."""
        bucket, wait_ms = self.now(limit, now_ms), self.wait_ms(limit, now_ms, amount)
        if wait_ms:
            return bucket, wait_ms
        return bucket.settle(limit, now_ms, -amount), 0

    def settle(self, limit: BucketLimit, now_ms: int, amount: int) -> Bucket:
        """The bucket with so much more (of what was predicted and not used), or less, down to a debt."""
        bucket = self.now(limit, now_ms)
        level = min(limit.full, bucket.level + amount * UNIT)
        return msgspec.structs.replace(bucket, level=max(level, -limit.per_minute * MAX_DEBT_MS))

    def told(self, limit: BucketLimit, now_ms: int, *, remaining: int, reset_ms: int) -> Bucket:
        """The bucket after its provider told what is left, and when it is whole again. It never gains by that.

        Args:
            remaining: a negative number says nothing; above what the bucket holds it changes nothing.
            reset_ms: counts when nothing remains; believed up to `LONGEST_MS`.
        """
        bucket = self.now(limit, now_ms)
        if remaining < 0:
            return bucket
        held_until_ms = now_ms + min(max(reset_ms, 0), LONGEST_MS) if remaining == 0 else 0
        return Bucket(
            level=min(bucket.level, remaining * UNIT),
            at_ms=now_ms,
            held_until_ms=max(bucket.held_until_ms, held_until_ms),
        )
