"""Weighted leases: how much of a thing is in use. Pure.

What is counted is the number of leases and the sum of their weights, so both are read at once however many there are.
With a limit they bound concurrency (each weighs 1); without one they tell a target's backlog (each weighs the predicted
tokens of its call). Which lease belongs to whom, and when it expires, stands in the permit that holds it.
"""

from __future__ import annotations

import msgspec

MAX_WEIGHT = 10_000_000_000


class Total(msgspec.Struct, frozen=True):
    """The leases of one thing.

    Attributes:
        active: how many there are.
        weight: of all together.
    """

    active: int = 0
    weight: int = 0

    def fits(self, weight: int, limit: int | None) -> bool:
        """Whether one more stays within the limit."""
        return limit is None or self.weight + weight <= limit

    def plus(self, weight: int, *, sign: int = 1) -> Total:
        """With one more lease of this weight, or with `sign=-1` one less."""
        return Total(self.active + sign, self.weight + sign * weight)
