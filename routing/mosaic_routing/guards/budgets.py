"""Budgets: money that is reserved before a call and settled after it. Pure, in whole micro-dollars."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Period = Literal["total", "day"]
"""A budget is for good, or for each day of the server, in UTC."""

MICROS = 1_000_000
MAX_MICROS = 1_000_000_000_000_000
"""A thousand million dollars; sums of a few of these are still exact in the server."""
DAY_MS = 86_400_000


def micros(dollars: float, what: str) -> int:
    """The amount in micro-dollars, rounded up.

    Args:
        what: it is, for the error: `the budget of tenant 'acme'`.

    Raises:
        ValueError: it is negative, no number, or absurdly large.
    """
    if not 0 <= dollars <= MAX_MICROS / MICROS:  # which NaN is not either
        raise ValueError(
            f"{what} is {dollars!r} dollars; give a number from 0 to {MAX_MICROS // MICROS}, none for no limit"
        )
    return math.ceil(round(dollars * MICROS, 6))


def shown(amount: int) -> str:
    """Micro-dollars, for people."""
    whole, part = divmod(amount, MICROS)
    return f"${whole}.{f'{part:06d}'.rstrip('0').ljust(2, '0')}"


def check_micros(amount: int, what: str) -> None:
    """Refuses an amount that is none.

    Raises:
        ValueError: it is negative or absurdly large.
    """
    if not 0 <= amount <= MAX_MICROS:
        raise ValueError(f"{what} is {amount!r} micro-dollars; give a whole number from 0 to {MAX_MICROS}")


class Account(msgspec.Struct, frozen=True):
    """What a budget has come to.

    Attributes:
        spent: micro-dollars, by calls that ended.
        reserved: by calls that run.
    """

    spent: int = 0
    reserved: int = 0

    def fits(self, amount: int, limit: int | None) -> bool:
        """Whether so much more may be reserved."""
        return limit is None or self.spent + self.reserved + amount <= limit

    def may_fit(self, amount: int, limit: int | None) -> bool:
        """Whether it may once others have settled for less than they reserved."""
        return limit is None or self.spent + amount <= limit

    def reserve(self, amount: int) -> Account:
        """With so much more reserved; less, where it is negative."""
        return Account(self.spent, self.reserved + amount)

    def spend(self, amount: int) -> Account:
        """With so much more spent."""
        return Account(min(self.spent + amount, 2 * MAX_MICROS), self.reserved)


def day_of(now_ms: int) -> int:
    """Number of the day since 1970, in UTC."""
    return now_ms // DAY_MS


def until_tomorrow_ms(now_ms: int) -> int:
    """How long the day lasts yet."""
    return DAY_MS - now_ms % DAY_MS
