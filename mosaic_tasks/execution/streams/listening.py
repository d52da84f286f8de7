"""What is published of an agent's answer while it is written: its text, the fields that are complete, the elements of
lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mosaic_queues.errors import BindingError
from mosaic_tasks.definition.plan import Path, Ref
from mosaic_tasks.definition.references import read
from mosaic_tasks.execution.streams.publishing import Publication
from mosaic_tasks.execution.streams.readiness import FieldReader


class Listener:
    """Hears an answer piece by piece.

    Args:
        fields: the parts of the answer that calls wait for.
        lists: the parts whose elements somebody reads one by one.
        schema: of the answer; None for prose, which has no parts.
    """

    def __init__(
        self,
        publication: Publication,
        *,
        fields: Sequence[Path],
        lists: Sequence[Path],
        schema: dict[str, Any] | None,
    ) -> None:
        self._publication, self._lists = publication, lists
        self._reader = FieldReader(fields, schema, elements=lists) if schema is not None else None

    def hear(self, piece: str) -> None:
        """The answer goes on."""
        self._publication.text(piece)
        for ready in self._reader.feed(piece) if self._reader is not None else ():
            if ready.path and ready.path[:-1] in self._lists:
                self._publication.items([ready.value], ready.path[:-1])
            else:
                self._publication.field(ready.path, ready.value)

    def settle(self, text: str, value: Any) -> None:
        """This is the answer in the end: where it was repaired, what was said before is corrected."""
        self._publication.settle(text)
        for path in self._lists:
            try:
                whole = read(Ref(0, path), value)
            except BindingError:
                whole = []
            self._publication.settle(whole if isinstance(whole, list) else [], path)
