"""What a reader of a node is told: what stands, of all that was there when it came; and to wait no longer than it will.

A node's stream also holds what a later `retract` cancels. Somebody who comes late need not hear that: events are held
back until all that was there is read, and cancelled ones are left out of them. A retraction remains where it cancels
what the reader had before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mosaic_queues.errors import WaitTimeout
from mosaic_queues.following import Found
from mosaic_queues.ledger import Ledger
from mosaic_queues.streams import Position, position_of
from mosaic_tasks.inspection.parts import Part, Source, StreamEvent
from mosaic_tasks.inspection.reading import AsyncReading, Reading


class Patience(NamedTuple):
    """How long a reader waits.

    Attributes:
        until_s: by the monotonic clock.
        what: what is told afterwards.
    """

    until_s: float
    what: str

    @property
    def left_s(self) -> float:
        """What is left of it, not below 0."""
        return max(self.until_s - time.monotonic(), 0.0)

    def check(self) -> None:
        """Raises `WaitTimeout` when it is over."""
        if not self.left_s:
            raise WaitTimeout(self.what)


class Standing:
    """A part that tells what stands.

    Args:
        part: how the node is read.
        is_ordered: the node's items come in the order of their places; those of a fan-out do not.
        is_fresh: the reader has nothing yet.
        patience: how long the reader waits once it has all that was there; None: to the end.
    """

    def __init__(
        self,
        part: Part[StreamEvent],
        source: Source,
        *,
        is_ordered: bool,
        is_fresh: bool,
        patience: Patience | None = None,
    ) -> None:
        self._part, self._is_ordered, self._is_fresh, self._patience = part, is_ordered, is_fresh, patience
        self._source = source
        self._there: dict[str, Position] | None = None
        self._held: list[StreamEvent] = []
        self._has_caught_up = self.is_over = False

    def cursors(self) -> Mapping[str, str]:
        """The streams to follow."""
        return self._part.cursors()

    @property
    def must_ask(self) -> bool:
        """Whether it needs answers to `ask`."""
        return self._part.must_ask

    def ask(self, pipe: Any) -> object:
        """What it has to know besides what its streams say."""
        return self._part.ask(pipe)

    def is_local(self, found: Found) -> bool:
        """Whether `take_in` needs no trip to the server for what was found."""
        return self._part.is_local(found)

    def take_in(self, found: Found) -> Iterator[StreamEvent]:
        """What came, without what was cancelled meanwhile; nothing until all that was there is read.

        Raises:
            WaitTimeout: the reader's patience is over.
        """
        if self._has_caught_up and self._patience is not None:
            self._patience.check()
        self._held += self._part.take_in(found)
        self.is_over = self._part.is_over
        if self.is_over or self._has_caught_up or not self._is_behind(found):
            self._has_caught_up = True
            yield from self._let_go()

    def _is_behind(self, found: Found) -> bool:
        """Whether there may be more that was there when it looked first. Whoever finds all at once need not look."""
        if not found.may_be_more:
            return False
        if self._there is None:
            self._there = {key: position_of(self._source.last_entry(key)) for key in found}
        newest = {key: position_of(entries[-1][0]) for key, entries in found.items()}
        return all(position <= self._there.get(key, position) for key, position in newest.items())

    def _let_go(self) -> list[StreamEvent]:
        told = standing(self._held, held_before=self._held_before())
        self._held = []
        self._is_fresh = self._is_fresh and not told
        return told

    def _held_before(self) -> float:
        """So many characters or items the reader has, at most."""
        if self._is_fresh or not self._held:
            return 0
        first = self._held[0]
        return first.offset if self._is_ordered and first.kind != "retract" else math.inf


def standing(events: Sequence[StreamEvent], *, held_before: float) -> list[StreamEvent]:
    """The events without what they cancel themselves; at most one retraction remains, of what came before them.

    Who goes on behind one of them is told nothing that it has: the last event before a retraction that is left out gets
    its id.
    """
    if not any(event.kind == "retract" for event in events):
        return list(events)
    lowest = min((event.offset for event in events if event.kind == "retract"), default=math.inf)
    kept: list[StreamEvent] = []
    most, passed = math.inf, None
    for event in reversed(events):
        if event.kind == "retract":
            is_told = event.offset == lowest < min(most, held_before)
            most = min(most, event.offset)
            left = event if is_told else None
            passed = passed if is_told else passed or event.id
        else:
            left = _cut(event, most)
        if left is not None:
            kept.append(left._replace(id=passed or left.id))
            passed = None
    return kept[::-1]


def _cut(event: StreamEvent, most: float) -> StreamEvent | None:
    """What is left of an event when all from the place `most` on is cancelled; None: nothing."""
    if event.kind == "end" or most == math.inf:
        return event
    if event.offset >= most:
        return None
    if event.kind == "value":
        return event
    return event._replace(value=event.value[: int(most) - event.offset])


class PatientReading(Reading[StreamEvent]):
    """A reading that waits no longer than its patience; None: to the end."""

    def __init__(
        self,
        ledger: Ledger,
        open_part: Callable[[], Part[StreamEvent]],
        *,
        follow: bool,
        stands: Callable[[], object],
        patience: Patience | None,
    ) -> None:
        self._patience = patience
        super().__init__(ledger, open_part, follow=follow, stands=stands)

    def _wait_s(self) -> float:
        """What is left of its patience."""
        return math.inf if self._patience is None else self._patience.left_s


class PatientAsyncReading(AsyncReading[StreamEvent]):
    """`PatientReading` for coroutines."""

    def __init__(
        self,
        ledger: Ledger,
        open_part: Callable[[], Part[StreamEvent]],
        *,
        follow: bool,
        stands: Callable[[], object],
        patience: Patience | None,
    ) -> None:
        self._patience = patience
        super().__init__(ledger, open_part, follow=follow, stands=stands)

    def _wait_s(self) -> float:
        """What is left of its patience."""
        return math.inf if self._patience is None else self._patience.left_s


__all__ = ["Patience", "PatientAsyncReading", "PatientReading", "Standing", "standing"]
