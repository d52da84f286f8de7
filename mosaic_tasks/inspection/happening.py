"""Reads what happens to a run while it happens, through the process's hub (`mosaic_queues.following`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mosaic_queues.errors import InputError
from mosaic_queues.events import Event, events_of, is_after
from mosaic_queues.following import NOTHING, Found, last_entry
from mosaic_queues.ledger import Ledger
from mosaic_queues.streams import position_of

_EVENT_ID = re.compile(r"0|\d{1,15}-\d{1,15}(/\d{1,9})?")
_NEWEST = 2**64 - 1


class Happenings:
    """A run's events, as a part that can be read; see `mosaic_tasks.inspection.parts.Part`.

    Args:
        after: the id of the last event already seen.

    Raises:
        InputError: `after` is no id of an event.
    """

    def __init__(self, ledger: Ledger, run_id: str, after: str) -> None:
        if _EVENT_ID.fullmatch(after) is None:
            raise InputError(f"{after!r} is no id of an event; take one from: mosaic events RUN --json")
        self._ledger, self._run_id, self._after = ledger, run_id, after
        self._stream = ledger.keys.run(run_id)[3]
        self._cursor = _before(after)
        if self._cursor != NOTHING:
            self._cursor = min(self._cursor, last_entry(ledger.client, self._stream), key=position_of)
        self.must_ask, self.is_over = True, False

    def cursors(self) -> Mapping[str, str]:
        """The stream of the run's events."""
        return {self._stream: self._cursor}

    def ask(self, pipe: Any) -> None:
        """Whether the run goes on."""
        self._ledger.ask_status(pipe, self._run_id)

    def is_local(self, _: Found) -> bool:
        """Always: what says that the run may be over only has it ask."""
        return True

    def take_in(self, found: Found) -> Iterator[Event]:
        """New events. A run that is over ends it, unless it ran again since and there is more to tell."""
        is_over = bool(found.answers) and not self._ledger.is_running(self._run_id, *found.answers)
        self.is_over = is_over and not found.may_be_more
        self.must_ask = is_over and found.may_be_more
        for event in events_of(found.get(self._stream, ())):
            self.must_ask = self.must_ask or (event.kind == "closed" and not is_over)
            if is_after(event, self._after):
                yield event


def _before(event_id: str) -> str:
    """The place right before the entry of an event, some of whose events may not be seen yet."""
    ms, number = position_of(event_id.partition("/")[0])
    if number:
        return f"{ms}-{number - 1}"
    return f"{ms - 1}-{_NEWEST}" if ms else NOTHING
