"""Circuit breakers: a deployment that fails is left alone, and tried by one call at a time. Pure.

A breaker opens for one of two reasons, which also say when it closes:

*Dead.* A call failed. A deployment that answers nobody must cost one try each time the breaker lets one through, so
the first failure opens it, for a short time that doubles with each failure in a row. One that answers most closes it
again at once: by the success of any call that began later than the one that failed. Of calls that began before the
breaker last moved, failures tell nothing new.

*Unwell.* Of the calls that ended in the window, too many failed or were slow. Then only a probe that succeeds closes
it.

When the time is over it is *half* open: the next call is the probe, and others wait until that one ended. A probe
whose process died makes room for another.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mosaic_queues.errors import CallTimeout, ContextTooLong, EngineError, EngineRefused, OutputInvalid
from mosaic_routing.guards.buckets import LONGEST_MS
from mosaic_routing.guards.errors import Limited

State = Literal["closed", "open", "half"]
Outcome = Literal["good", "failed", "none"]
"""What the end of a call tells of the deployment; `none`: nothing."""

MAX_DOUBLINGS = 20
JITTER_PARTS = 1_000
JITTER_SHARE = 4
"""The longest jitter is this part of the time."""


class BreakerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a breaker opens, and for how long.

    Attributes:
        window_ms: outcomes are counted for so long.
        min_calls: fewer outcomes in the window do not tell that a deployment is unwell.
        bad_percent: from this share of failed and slow calls on it is.
        slow_ms: a call that takes longer is slow; 0: none is.
        open_ms: how long it opens first.
        open_max_ms: and at most.
    """

    window_ms: int = 30_000
    min_calls: int = 10
    bad_percent: int = 50
    slow_ms: int = 0
    open_ms: int = 1_000
    open_max_ms: int = 60_000

    def __post_init__(self) -> None:
        for name in ("window_ms", "min_calls", "bad_percent", "open_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"a breaker's {name} of {getattr(self, name)!r} is not at least 1")
        if self.slow_ms < 0:
            raise ValueError(f"a breaker's slow_ms of {self.slow_ms!r} is negative")
        if not self.open_ms <= self.open_max_ms <= LONGEST_MS:
            raise ValueError(
                f"a breaker's open_max_ms of {self.open_max_ms!r} is not from open_ms to {LONGEST_MS}"
            )


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker at one moment.

    Attributes:
        is_unwell: it opened for the second reason.
        moved_ms: when the state last changed.
        until_ms: of an open one: a probe may pass from then on.
        openings: in a row.
        failed_began_ms: when the call began, of those that failed, which began last.
        window_ms: when the window began.
        good, bad: outcomes in it.
        probe: the permit of the call that tries it; empty: none does.
    """

    state: State = "closed"
    is_unwell: bool = False
    moved_ms: int = 0
    until_ms: int = 0
    openings: int = 0
    failed_began_ms: int = 0
    window_ms: int = 0
    good: int = 0
    bad: int = 0
    probe: str = ""

    def wait_ms(self, now_ms: int) -> int:
        """Until a call may pass: 0: now; -1: when the probe has ended."""
        if self.state == "open":
            return max(min(self.until_ms - now_ms, 2 * LONGEST_MS), 0)
        return -1 if self.state == "half" and self.probe else 0

    def passed(self, permit: str, now_ms: int) -> Breaker:
        """After a call that may pass; where the breaker is not closed it is the probe."""
        if self.state == "closed":
            return self
        moved_ms = now_ms if self.state == "open" else self.moved_ms
        return msgspec.structs.replace(self, state="half", probe=permit, moved_ms=moved_ms)

    def freed(self, permit: str) -> Breaker:
        """Without this probe, whose process died or which told nothing."""
        return msgspec.structs.replace(self, probe="") if self.probe == permit else self

    def ended(
        self,
        policy: BreakerPolicy,
        now_ms: int,
        *,
        permit: str,
        began_ms: int,
        outcome: Outcome,
        pause_ms: int = 0,
        jitter: int = 0,
    ) -> Breaker:
        """After a call ended.

        Args:
            began_ms: when it was let through.
            pause_ms: how long the provider asked to be left alone; 0: it did not.
            jitter: by chance, from 0 to `JITTER_PARTS`; prolongs the time by up to a `JITTER_SHARE`th.
        """
        if outcome == "none":
            return self.freed(permit)
        is_slow = 0 < policy.slow_ms <= now_ms - began_ms
        is_bad = outcome == "failed" or is_slow
        counted = self._counted(policy, now_ms, is_bad=is_bad)
        if outcome == "failed":
            latest = max(self.failed_began_ms, began_ms)
            counted = msgspec.structs.replace(counted, failed_began_ms=latest)
        if self.state == "half" and self.probe == permit:
            if is_bad:
                return counted._opened(policy, now_ms, pause_ms, jitter, is_unwell=self.is_unwell)
            return counted._closed(now_ms)
        if self.state == "closed":
            is_unwell = is_bad and counted._is_unwell(policy)
            if is_unwell or (outcome == "failed" and began_ms >= self.moved_ms):
                return counted._opened(policy, now_ms, pause_ms, jitter, is_unwell=is_unwell)
        elif outcome == "failed":
            return counted._paused(now_ms, pause_ms)
        elif not self.is_unwell and not is_bad and began_ms > self.failed_began_ms:
            return counted._closed(now_ms)
        return counted

    def _counted(self, policy: BreakerPolicy, now_ms: int, *, is_bad: bool) -> Breaker:
        is_new = not 0 <= now_ms - self.window_ms < policy.window_ms
        good, bad = (0, 0) if is_new else (self.good, self.bad)
        return msgspec.structs.replace(
            self,
            window_ms=now_ms if is_new else self.window_ms,
            good=good + (not is_bad),
            bad=bad + is_bad,
        )

    def _is_unwell(self, policy: BreakerPolicy) -> bool:
        calls = self.good + self.bad
        return calls >= policy.min_calls and self.bad * 100 >= policy.bad_percent * calls

    def _opened(
        self, policy: BreakerPolicy, now_ms: int, pause_ms: int, jitter: int, *, is_unwell: bool
    ) -> Breaker:
        is_calm = self.state == "closed" and now_ms - self.moved_ms >= policy.window_ms
        openings = 1 if is_calm else self.openings + 1
        open_ms = min(policy.open_max_ms, policy.open_ms * 2 ** min(openings - 1, MAX_DOUBLINGS))
        open_ms += open_ms * jitter // (JITTER_PARTS * JITTER_SHARE)
        return msgspec.structs.replace(
            self,
            state="open",
            is_unwell=is_unwell,
            moved_ms=now_ms,
            until_ms=now_ms + max(open_ms, min(pause_ms, LONGEST_MS)),
            openings=openings,
            probe="",
        )

    def _paused(self, now_ms: int, pause_ms: int) -> Breaker:
        if self.state != "open":
            return self
        until_ms = max(self.until_ms, now_ms + min(pause_ms, LONGEST_MS))
        return msgspec.structs.replace(self, until_ms=until_ms)

    def _closed(self, now_ms: int) -> Breaker:
        """One that was unwell is counted anew, and opens for longer if it is again."""
        closed = Breaker(moved_ms=now_ms, failed_began_ms=self.failed_began_ms)
        if self.is_unwell:
            return msgspec.structs.replace(closed, openings=self.openings, window_ms=now_ms)
        return msgspec.structs.replace(closed, window_ms=self.window_ms, good=self.good, bad=self.bad)


def outcome_of(error: BaseException | None) -> Outcome:
    """What the end of a call tells of its deployment.

    One that refuses a prompt, or answers what does not fit the schema, is well. A wrong key, a cancelled call and
    errors of our own tell nothing.
    """
    match error:
        case None | ContextTooLong() | OutputInvalid():
            return "good"
        case Limited():
            return "none"
        case EngineRefused():
            return "good" if type(error) is not EngineRefused else "none"
        case EngineError() | CallTimeout() | TimeoutError() | ConnectionError():
            return "failed"
    return "none"
