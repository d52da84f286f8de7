"""What changes the list of runs: an entry for each run that is opened, ends, or runs again, in one stream of them all.

The transition itself writes it (`tell` in `common.lua`), so there is none without the other. The stream keeps the last
thousand or so, and lives as long as what it tells of: it is for those who watch, the truth is with the runs. Whoever
watches looks at the list first, and again when an entry tells of what he shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from mosaic_queues.following import Entry
from mosaic_queues.transitions import RunStatus


class RunChange(NamedTuple):
    """A run whose status changed.

    Attributes:
        was: its status before; empty: it was opened. A run that runs may be run again.
    """

    run_id: str
    tenant: str
    name: str
    was: Literal["", RunStatus]
    status: RunStatus


_decode = msgspec.msgpack.Decoder(RunChange).decode


def changes_of(entries: Iterable[Entry]) -> list[RunChange]:
    """What entries of the stream tell."""
    return [_decode(fields[b"c"]) for _, fields in entries]


__all__ = ["RunChange", "changes_of"]
