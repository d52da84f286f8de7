"""What a process records and claims of a run in one step, as the ledger takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mosaic_queues.streams import ENTRIES_READ
from mosaic_queues.transitions import Done, JoinStep, Usage


class OtherPlan(Exception):
    """The run has another plan than the one that a transition was made for; nothing has happened."""


class Transition(NamedTuple):
    """See `Ledger.advance`, which has the same arguments."""

    run_id: str
    holder: str
    done: Sequence[Done] = ()
    joins: Sequence[JoinStep] = ()
    usages: Sequence[Usage] = ()
    claim: Sequence[str] = ()
    read: Sequence[str] = ()
    keep: int = 0
    serves: Sequence[str] = ()
    open_: Mapping[str, Sequence[str]] = {}
    fences: bool = False
    plan: str = ""

    @property
    def claims(self) -> bool:
        """Whether calls may be held when it is over."""
        return bool(self.claim or self.keep)

    def options(self) -> dict[str, Any]:
        """The arguments of `Ledger.advance` by name, but for the run."""
        return {name: value for name, value in self._asdict().items() if name != "run_id"}

    def argument(self) -> dict[str, Any]:
        """As the script takes it; the envelopes follow apart."""
        fields = [(place, field) for place, item in enumerate(self.done, 1) for field in item.fields]
        return {
            "holder": self.holder,
            "done": [_done(item) for item in self.done],
            "fields": [(place, field.name, field.joins) for place, field in fields],
            "joins": self.joins,
            "notes": [_usage_event(usage) for usage in self.usages],
            "claim": self.claim,
            "read": self.read,
            "open": list(self.open_.items()),
            "limit": ENTRIES_READ,
            "keep": self.keep,
            "serves": self.serves,
            "fences": self.fences,
            "plan": self.plan,
        }

    def envelopes(self) -> list[bytes]:
        """Of finished calls, then of their fields, and then of their chunks."""
        fields = [field.envelope for item in self.done for field in item.fields]
        chunks = [chunk.data for item in self.done for flush in item.flushes for chunk in flush.chunks]
        return [item.envelope for item in self.done] + fields + chunks


def _done(item: Done) -> tuple[Any, ...]:
    """As the script takes it."""
    flushes = [flush.argument() for flush in item.flushes]
    return item.call, item.fence, item.kind, item.joins, item.marks, flushes


def _usage_event(usage: Usage) -> tuple[Any, ...]:
    """As the script takes it: Lua's lists have no holes, so an unknown price is an empty text."""
    return ("usage", *usage._replace(cost_usd="" if usage.cost_usd is None else usage.cost_usd))  # type: ignore[arg-type]
