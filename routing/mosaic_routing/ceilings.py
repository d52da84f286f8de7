"""Limits of how many calls run at once, as seen by whoever sends calls: pure.

A call that is sent where all places are taken waits there: in the slot of a worker, from which it is turned back after
a while, to be sent again. So no more are sent than have their turn soon, as far as is known how long calls take there.
The others wait in the ledger, which costs nothing, about until their turn; where places are free before that, the
sweeper wakes as many as there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from mosaic_routing.targets import Ask, Target

AHEAD_S = 1.0
"""Calls are sent so long before their turn, so that no place is idle between two looks of the sweeper."""
LONGEST_S = 60.0
"""No call waits for longer without being looked at."""
_LEAST_S = 1e-3


class Ceiling:
    """One limit at one moment, shared by all targets that it is about.

    Args:
        limit: calls at once.
        active: calls that were sent and have not ended, at all of these targets.
    """

    def __init__(self, limit: int, active: int) -> None:
        self._limit, self._active, self._waiting = limit, active, 0

    def room(self, service_s: float) -> int:
        """How many more calls may be sent now that take so long."""
        ahead = math.floor(self._limit * AHEAD_S / max(service_s, _LEAST_S))
        return max(self._limit + ahead - self._active, 0)

    def sent(self) -> None:
        """One more is sent."""
        self._active += 1

    def turn_s(self, service_s: float) -> float:
        """When one more has its turn that is not sent; it waits behind the others of which this was asked."""
        self._waiting += 1
        before = self._active - self._limit + self._waiting
        return min(max(before * service_s / self._limit - AHEAD_S, 0.0), LONGEST_S)


def predicted_s(target: Target, ask: Ask) -> float:
    """How long a call runs at a target, as far as its speed is known."""
    return (
        target.first_token_s
        + ask.input_tokens / target.prefill_tokens_s
        + ask.output_tokens / target.decode_tokens_s
    )


def room(ceilings: Iterable[Ceiling], service_s: float) -> int:
    """How many more calls all of these let be sent."""
    return min((ceiling.room(service_s) for ceiling in ceilings), default=0)


def turn_s(ceilings: Iterable[Ceiling], service_s: float) -> float:
    """When all of these have a turn for one more."""
    return max(ceiling.turn_s(service_s) for ceiling in ceilings)


__all__ = ["AHEAD_S", "LONGEST_S", "Ceiling", "predicted_s", "room", "turn_s"]
