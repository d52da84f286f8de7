"""What a call that ends tells those who read along: its streams end, and parts of its output are there."""

from __future__ import annotations

from typing import Any, NamedTuple

from mosaic_queues.errors import BindingError
from mosaic_queues.ledger import Claim, Field, Mark
from mosaic_tasks.definition.plan import Path, Ref
from mosaic_tasks.definition.references import read
from mosaic_tasks.execution.prepared import CallId, PreparedPlan, stream_name
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.publishing import Publication


class Ending(NamedTuple):
    """What the transition that records a call carries for its readers."""

    marks: list[Mark]
    fields: list[Field]


class Endings:
    """The endings of a run's calls."""

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan) -> None:
        self._process, self._run_id, self._plan = process, run_id, plan

    def of_value(self, call: CallId, value: Any, publication: Publication | None = None) -> Ending:
        """What a call that ends with a value tells those who read along: marks of its streams, and parts of its
        output."""
        number = call.node
        if call.item is not None:
            readers = self._plan.readers(str(number))
            return Ending([Mark(str(number), "item", call.item, 1, readers)] if readers else [], [])
        if publication is not None:
            parts = self._parts(number, value)
            return Ending(publication.finish(), publication.open_parts(parts))
        size = len(value) if isinstance(value, (list, str)) else 0
        streams = [stream_name(number, path) for path in self._plan.ended_paths(number)]
        marks = [Mark(stream, "end", size, 0, self._plan.readers(stream)) for stream in streams]
        return Ending(marks, self._parts(number, value))

    def of_skip(self, call: CallId, reason: str) -> Ending:
        """The same of a call that is skipped."""
        marks, _ = self.of_value(call, None)
        envelope = self._process.payloads.skipped(reason)
        return Ending(
            marks, [self._part(call.node, path, envelope) for path in self._plan.announced(call.node)]
        )

    def replaced(self, claim: Claim, *, holder: str, value: Any) -> Ending:
        """The same of a call that failed after it may have published: what it said is taken back for `value`."""
        call, node = CallId(claim.call), self._plan.node(CallId(claim.call).node)
        if not node.plan.publishes or call.item is not None:
            return self.of_value(call, value)
        publication = Publication(self._process, self._run_id, self._plan, claim, holder=holder, resumes=True)
        if node.plan.publishes == "item" and isinstance(value, list):
            publication.items(value)
        elif node.plan.publishes == "text" and isinstance(value, str):
            publication.text(value)
        return Ending(publication.finish(), publication.open_parts(self._parts(call.node, value)))

    def _parts(self, number: int, value: Any) -> list[Field]:
        """The parts of an output that calls wait for."""
        return [
            self._part(number, path, self._part_envelope(number, path, value))
            for path in self._plan.announced(number)
        ]

    def _part_envelope(self, number: int, path: Path, value: Any) -> bytes:
        payloads = self._process.payloads
        try:
            return payloads.pack(self._run_id, read(Ref(number, path), value, self._plan.label))
        except BindingError as error:
            return payloads.missing(f"it can no longer come: {error}")

    def _part(self, number: int, path: Path, envelope: bytes) -> Field:
        return Field(
            stream_name(number, path), envelope, [step.name for step in self._plan.announced(number)[path]]
        )
