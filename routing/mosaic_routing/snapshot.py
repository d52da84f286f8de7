"""The targets as a process knows them at one moment, arranged so that a decision costs next to nothing for each target.

Made anew at each refresh, in O(targets); between two, a process counts what it sends itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from mosaic_routing.targets import Decision, Target

FULL: Final = 2.0
"""Beyond so many requests for each slot, one more makes nothing worse for the rest: they wait anyway."""


class Row:
    """A target with what follows from it alone; times in seconds, prices in US dollars for a token.

    Attributes:
        wait_s: until a slot is free for one more.
        fixed_s: to the first token of an empty prompt, and the round trip.
        fill: requests for each slot, at most `FULL`.
        per_input: work of a prompt token, in tokens of the answer: what could be written while it is read.
        share: of the capacity of all targets, 0 to 1.
    """

    __slots__ = (
        "active",
        "backlog_tokens",
        "context_tokens",
        "fill",
        "fixed_s",
        "input_price",
        "input_s",
        "name",
        "output_price",
        "output_s",
        "per_input",
        "quality",
        "share",
        "target",
        "wait_s",
    )

    def __init__(self, target: Target, *, capacity_tokens_s: float) -> None:
        self.target = target
        self.name = target.name
        self.fixed_s = target.first_token_s + target.round_trip_s
        self.input_s = 1.0 / target.prefill_tokens_s
        self.output_s = 1.0 / target.decode_tokens_s
        self.per_input = target.decode_tokens_s / target.prefill_tokens_s
        self.input_price = target.input_price / 1e6
        self.output_price = target.output_price / 1e6
        self.quality = max(target.quality, 1e-3)
        self.context_tokens = target.context_tokens
        self.share = target.slots * target.decode_tokens_s / capacity_tokens_s
        self.active, self.backlog_tokens = target.active, target.backlog_tokens
        self._refresh()

    def add(self, work_tokens: float) -> None:
        """A call was sent there."""
        self.active += 1
        self.backlog_tokens += work_tokens
        self._refresh()

    def _refresh(self) -> None:
        slots = self.target.slots
        self.fill = min(self.active / slots, FULL)
        self.wait_s = wait_s(self.active, self.backlog_tokens, slots=slots, output_s=self.output_s)


def wait_s(active: int, backlog_tokens: float, *, slots: int, output_s: float) -> float:
    """Until a slot is free for one more request.

    Nothing as long as there is one. Otherwise as many requests must end as wait before it, and one more; of `slots`
    that run side by side, each of the mean length of those that are there, one ends in each `length / slots`. Backlog
    over throughput would be wrong on both ends: above nothing with free slots, and too short with few long requests.

    Args:
        active: requests that were sent there and have not ended.
        output_s: for a token of an answer.
    """
    if active < slots:
        return 0.0
    return (active - slots + 1) / slots * (backlog_tokens / active) * output_s


class Snapshot:
    """Targets at one moment.

    Args:
        targets: with unique names.
        stale_s: one whose last report is older is not counted on.
    """

    def __init__(self, targets: Iterable[Target], *, stale_s: float = 5.0) -> None:
        self._closed: list[Closed] = []
        opened: list[Target] = []
        for target in targets:
            closed = _closed(target, stale_s=stale_s)
            self._closed.append(closed) if closed else opened.append(target)
        capacity = sum(target.slots * target.decode_tokens_s for target in opened)
        self._rows = {target.name: Row(target, capacity_tokens_s=capacity) for target in opened}
        self._groups: dict[tuple[str, ...], Group] = {}

    def group(self, deployments: tuple[str, ...]) -> Group:
        """The targets of these deployments; of all, where none is named."""
        if deployments not in self._groups:
            self._groups[deployments] = self._new_group(frozenset(deployments))
        return self._groups[deployments]

    def sent(self, decision: Decision) -> None:
        """Counts a call that this process sends, until the next snapshot knows it."""
        self._rows[decision.target].add(decision.work_tokens)

    def _new_group(self, wanted: frozenset[str]) -> Group:
        rows = [row for row in self._rows.values() if not wanted or row.target.deployment in wanted]
        closed = [one for one in self._closed if not wanted or one.target.deployment in wanted]
        return Group(rows, closed)


class Closed(NamedTuple):
    """A target that takes nothing now: why, and when to look again; infinite where that is not known."""

    target: Target
    reason: str
    ready_in_s: float = math.inf


class Group:
    """The targets of a snapshot that one kind of ask can use.

    Attributes:
        names: of all of them, so that the ring stays as it is while one is closed.
        rows: of those that can take a call now.
        fastest_s: for a token of an answer, at the fastest of these.
    """

    __slots__ = ("closed", "fastest_s", "names", "rows")

    def __init__(self, rows: list[Row], closed: list[Closed]) -> None:
        self.rows, self.closed = rows, closed
        self.names = frozenset(row.name for row in rows) | {one.target.name for one in closed}
        self.fastest_s = min((row.output_s for row in rows), default=0.0)


def _closed(target: Target, *, stale_s: float) -> Closed | None:
    if target.age_s > stale_s:
        return Closed(target, f"its last report is {target.age_s:.1f} s old, more than {stale_s:.1f} s")
    if target.is_open:
        return Closed(target, "its circuit breaker is open", target.ready_in_s or math.inf)
    if target.ready_in_s > 0.0:
        return Closed(target, "its limits let nothing through now", target.ready_in_s)
    if target.slots < 1:
        return Closed(target, "it has no slot for a request")
    if not (target.decode_tokens_s > 0.0 and target.prefill_tokens_s > 0.0):
        return Closed(target, f"it reports a speed of {target.decode_tokens_s!r} tokens a second")
    return None


__all__ = ["FULL", "Closed", "Group", "Row", "Snapshot", "wait_s"]
