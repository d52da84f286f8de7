"""What a claimed call publishes in one step, as the ledger takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mosaic_queues.streams import Flush, Letter
from mosaic_queues.transitions import Claim, Field, JoinStep


class Delivery(NamedTuple):
    """Chunks of a call that runs, and parts of its output that are complete.

    Attributes:
        holder: in whose name the call is claimed.
        joins: what the fields may release.
        letters: of readers; a reader that is woken and has one is sent it in the same step.
    """

    run_id: str
    claim: Claim
    holder: str
    flushes: Sequence[Flush]
    fields: Sequence[Field] = ()
    joins: Sequence[JoinStep] = ()
    letters: Sequence[Letter] = ()

    def argument(self) -> dict[str, Any]:
        """As the script takes it; the data follow apart."""
        return {
            "holder": self.holder,
            "id": self.claim.call,
            "fence": self.claim.fence,
            "flushes": [flush.argument() for flush in self.flushes],
            "fields": [(field.name, field.joins) for field in self.fields],
            "joins": self.joins,
            "letters": {letter.call: letter[1:] for letter in self.letters},
        }

    def data(self) -> list[bytes]:
        """Chunks and fields, in the order of the script."""
        chunks = [chunk.data for flush in self.flushes for chunk in flush.chunks]
        return chunks + [field.envelope for field in self.fields]
