"""What to do about a choice that turned out badly: pure.

*Late binding*: an idle target takes a call that waits at a fuller one. *Hedging*: a call that takes longer than 19 of
20 like it is sent a second time, elsewhere, within a budget; the first answer counts, and the ledger's claims see to
that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from mosaic_routing.targets import Decision, Target

SHARE = 0.05
"""So many calls more than without hedging, at most."""
SOONER = 0.75
"""A second time is worth it where it is done in so much of the time that the call took already."""
_MEMORY_CALLS = 1_000
"""Calls in which those before fade by a factor e. What was not used of the share in quiet hours is no stock for an
outage, in which all calls are stragglers."""
_GAIN = 1.5
"""A call is moved where the target that it leaves would take so many times as long for it."""


class Hedges(msgspec.Struct, frozen=True, kw_only=True):
    """How many calls were sent lately, and how many of them a second time.

    Attributes:
        calls: that were sent, without second times; faded.
        hedged: second times; faded.
        share: of the calls, at most; 0: no hedging.
    """

    calls: float = 0.0
    hedged: float = 0.0
    share: float = SHARE

    def with_call(self) -> Hedges:
        """One call more was sent."""
        kept = 1.0 - 1.0 / _MEMORY_CALLS
        return msgspec.structs.replace(self, calls=self.calls * kept + 1, hedged=self.hedged * kept)

    def with_hedge(self) -> Hedges:
        """One was sent a second time."""
        return msgspec.structs.replace(self, hedged=self.hedged + 1)

    @property
    def has_room(self) -> bool:
        """Whether one more second time keeps to the share."""
        return self.hedged + 1 <= self.share * self.calls


def hedge_after_s(decision: Decision, target: Target, *, output_tokens: float, p95: float) -> float:
    """After how many seconds a call is a straggler: as long as it takes with an answer of its 95th percentile.

    Args:
        output_tokens: that the decision was made with.
        p95: so many or fewer with a probability of 95 %.
    """
    return decision.latency_s + max(p95 - output_tokens, 0.0) / target.decode_tokens_s


def is_worth_hedging(
    *, elapsed_s: float, after_s: float, elsewhere: Decision, here_tokens_s: float, hedges: Hedges
) -> bool:
    """Whether to send a straggler to another target also.

    An answer that is longer than nearly all, with a heavy tail, takes as long again as it took already. So another
    target is worth asking where it would be done in clearly less than that. Where it is not, look again later: of a
    call that is stuck, the time grows.

    Args:
        elapsed_s: since the call was sent.
        after_s: what `hedge_after_s` said.
        elsewhere: where it would go, with its own target excluded and the 95th percentile as its length.
        here_tokens_s: what it is known to write in a second where it is; 0: it shows no progress.
    """
    if elapsed_s < after_s or not elsewhere.target or not hedges.has_room:
        return False
    return here_tokens_s <= 0.0 or elsewhere.latency_s < SOONER * elapsed_s


def steal(me: Target, targets: Iterable[Target], *, gain: float = _GAIN) -> Target | None:
    """The target from whose queue an idle one takes the next call; None: it waits for its own.

    It has calls that wait, of the model that the idle one has, and one that waits there would be done sooner here.

    Args:
        gain: by so many times sooner: a slow target does not take what a fast one has nearly begun.
    """
    if me.active >= me.slots or me.is_open or not me.decode_tokens_s > 0.0:
        return None
    fuller = [one for one in targets if one.name != me.name and one.model == me.model]
    worth = [one for one in fuller if _waiting(one) > 0 and _there_s(one) > gain * _here_s(me, one)]
    return max(worth, key=_there_s, default=None)


def _waiting(target: Target) -> int:
    return target.active - target.slots


def _there_s(fuller: Target) -> float:
    """Until the first call that waits there is done: a slot's wait and its own length; endless where nothing moves."""
    if fuller.is_open or fuller.slots < 1 or not fuller.decode_tokens_s > 0.0:
        return math.inf
    return _mean_tokens(fuller) / fuller.decode_tokens_s * (1.0 / fuller.slots + 1.0)


def _here_s(me: Target, fuller: Target) -> float:
    return me.round_trip_s + _mean_tokens(fuller) / me.decode_tokens_s


def _mean_tokens(target: Target) -> float:
    return target.backlog_tokens / target.active


__all__ = ["SHARE", "Hedges", "hedge_after_s", "is_worth_hedging", "steal"]
