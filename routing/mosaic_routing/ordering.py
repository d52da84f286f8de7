"""Which of the waiting calls is next: pure. One number for each, its due time; the earliest is next.

    due = ready + AGEING_S * (level + shift)

*Level* is the priority that the run was given, 0 to 9. *Ready* is when the call became ready, by the server's clock. So
a call moves up by one level for each `AGEING_S` that it waits, without anybody counting: whatever its level, it goes
before all that becomes ready later than `LONGEST_S` after it, and nothing starves.

*Shift*, in levels, is the sum of these, from -2 (sooner) to +1 (later) together:

| what | levels | why |
|---|---|---|
| deadline slack | -2 (none left) to 0 (a minute and more) | it is worth nothing later |
| critical path: time from here to the run's end | -0.5 (long) to 0 | it decides when the run ends |
| fan-out: nodes that wait for it | -0.5 (many) to 0 | it gives others work |
| attained service of the run | 0 to +1 (much) | who got little is likely to be short (least attained service) |
| length of the call | 0 to +0.5 (long) | short ones first makes the mean wait short |
| lead of the tenant in virtual time | 0 to +1 (large) | fair shares |

So a `batch` call (9) is at 7 at best when it becomes ready, and a `default` one (5) at 6 at worst: batch work stays
behind default and interactive work until it has waited for a level's time or more. Waiting batch work is put off by
each interactive call that comes; what runs is not stopped.

The same number in two forms: `celery_level` for a message (0 to 9, lower first; whoever publishes a waiting call again
gives it the level of that time), and `engine_priority` for engines that order requests by an integer (vLLM, lower
first), where it ages by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

AGEING_S = 30.0
"""A call that waits for so long moves up by one level."""
SOONEST, LATEST = -2.0, 1.0
"""Bounds of the shift, in levels."""
FIRST, LAST = 0, 9
"""Levels of a message, as Celery has them on Redis."""
LONGEST_S = AGEING_S * (LAST - FIRST + LATEST - SOONEST)
"""A call is never passed by one that becomes ready so much later."""
_SLACK_S = 60.0
_PATH_S = 60.0
_SERVICE_S = 60.0
_LEAD_S = 60.0
_LENGTH_S = 10.0
_FAN_OUT = 8.0


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits, as far as its order goes.

    Attributes:
        level: of its run, 0 (first) to 9.
        ready_s: when it became ready, by the server's clock.
        length_s: predicted.
        deadline_s: of its run, by the same clock; infinite: it has none.
        path_s: predicted from its start to the end of its run, itself included.
        fan_out: nodes that wait for it.
        attained_s: what its run got of workers so far.
        lead_s: how far its tenant is ahead of its fair share, see `Shares`.
    """

    level: int = 5
    ready_s: float = 0.0
    length_s: float = 0.0
    deadline_s: float = math.inf
    path_s: float = 0.0
    fan_out: int = 0
    attained_s: float = 0.0
    lead_s: float = 0.0


def due_s(call: Waiting) -> float:
    """When a call is due, by the clock of `ready_s`; the call that is due first is next."""
    return call.ready_s + AGEING_S * (min(max(call.level, FIRST), LAST) + shift(call))


def shift(call: Waiting) -> float:
    """By how many levels a call goes sooner (below 0) or later than its run's priority says."""
    slack_s = call.deadline_s - call.ready_s - max(call.path_s, call.length_s)
    levels = (
        -2.0 * (1.0 - min(max(slack_s / _SLACK_S, 0.0), 1.0))
        - 0.5 * _part(call.path_s, _PATH_S)
        - 0.5 * _part(call.fan_out, _FAN_OUT)
        + 1.0 * _part(call.attained_s, _SERVICE_S)
        + 0.5 * _part(call.length_s, _LENGTH_S)
        + 1.0 * _part(call.lead_s, _LEAD_S)
    )
    return min(max(levels, SOONEST), LATEST)


def celery_level(call: Waiting, *, now_s: float) -> int:
    """The priority of its message when it is published now: 0 to 9, lower ones are taken first.

    Celery's `priority_steps` must tell all ten apart (`range(10)`); by default it has four.
    """
    return int(min(max((due_s(call) - now_s) // AGEING_S, FIRST), LAST))


def engine_priority(call: Waiting) -> int:
    """The integer by which vLLM orders its waiting requests, lower ones first: the due time in milliseconds."""
    return round(due_s(call) * 1000)


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Fair shares between tenants, by start-time fair queueing (Goyal, Vin and Cheng, 1996).

    Each tenant has a virtual time, to which its calls add their length over its weight. The virtual time of all is that
    of the tenant that was served least, of those that have work; one that comes back begins there and has saved nothing
    up.

    Attributes:
        times: virtual time of each tenant that is ahead of `now`.
        now: virtual time of all.
    """

    times: Mapping[str, float] = {}
    now: float = 0.0

    def lead_s(self, tenant: str) -> float:
        """How far a tenant is ahead of its fair share, in seconds of service."""
        return max(self.times.get(tenant, 0.0) - self.now, 0.0)

    def with_call(self, tenant: str, length_s: float, *, weight: float = 1.0) -> Shares:
        """A call of a tenant begins.

        Raises:
            ValueError: the weight is not above 0.
        """
        if not weight > 0.0:
            raise ValueError(f"{weight!r} is no weight of a tenant; give a number above 0")
        start = max(self.times.get(tenant, 0.0), self.now)
        return msgspec.structs.replace(self, times={**self.times, tenant: start + length_s / weight})

    def with_waiting(self, tenants: frozenset[str]) -> Shares:
        """Only these have calls that wait: the least served of them tells the time."""
        least = min((self.times.get(tenant, 0.0) for tenant in tenants), default=self.now)
        now = max(self.now, least)
        return Shares(times={name: time for name, time in self.times.items() if time > now}, now=now)


def _part(value: float, half: float) -> float:
    """From 0 to 1, and a half at `half`; values that make no sense are none."""
    return value / (value + half) if 0.0 < value < math.inf else float(value == math.inf)


__all__ = [
    "AGEING_S",
    "FIRST",
    "LAST",
    "LATEST",
    "LONGEST_S",
    "SOONEST",
    "Shares",
    "Waiting",
    "celery_level",
    "due_s",
    "engine_priority",
    "shift",
]
