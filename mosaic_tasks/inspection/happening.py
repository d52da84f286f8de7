"""Reads what happens to a run while it happens, through the process's hub (`mosaic_queues.following`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mosaic_queues.errors import InputError
from mosaic_queues.events import Event, events_of, is_after
from mosaic_queues.following import Found, last_entry
from mosaic_queues.ledger import Ledger
from mosaic_queues.streams import position_of

_EVENT_ID = re.compile(r"0|\d{1,15}-\d{1,15}(/\d{1,9})?")
_NEWEST = 2**64 - 1
_NOTHING = "0-0"


class Happenings:
    """A run's events, as a part that can be read; see `mosaic_tasks.inspection.reading.Part`.

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
        self._cursor = min(_before(after), self._last_entry(), key=position_of)
        self._may_be_over, self.is_over = True, False

    def cursors(self) -> Mapping[str, str]:
        """The stream of the run's events."""
        return {self._stream: self._cursor}

    def is_local(self, found: Found) -> bool:
        """Whether nothing says that the run may be over."""
        entries = found.get(self._stream, ())
        return not self._may_be_over and all(b"closed" not in fields[b"e"] for _, fields in entries)

    def take_in(self, found: Found) -> Iterator[Event]:
        """New events. A run that is over ends it, unless it ran again since and there is more to tell."""
        entries = found.get(self._stream, [])
        for event in events_of(entries):
            self._may_be_over = self._may_be_over or event.kind == "closed"
            if is_after(event, self._after):
                yield event
        if entries:
            self._cursor = entries[-1][0].decode()
        if self._may_be_over:
            is_running = (
                self._ledger.run(self._run_id).status == "running"
            )  # asked first: its end is an entry too
            self._may_be_over = self._last_entry() != self._cursor
            self.is_over = not (is_running or self._may_be_over)

    def _last_entry(self) -> str:
        return last_entry(self._ledger.client, self._stream)


def _before(event_id: str) -> str:
    """The place right before the entry of an event, some of whose events may not be seen yet."""
    ms, number = position_of(event_id.partition("/")[0])
    if number:
        return f"{ms}-{number - 1}"
    return f"{ms - 1}-{_NEWEST}" if ms else _NOTHING
