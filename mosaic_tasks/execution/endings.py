"""What a call that ends tells those who read along: its streams end, and parts of its output are there."""

from __future__ import annotations

from typing import Any

from mosaic_queues.errors import BindingError
from mosaic_queues.transitions import Claim, Field, Mark
from mosaic_tasks.definition.plan import Path, Ref
from mosaic_tasks.definition.references import read
from mosaic_tasks.execution.outcomes import Ending
from mosaic_tasks.execution.prepared import CallId, PreparedPlan, stream_name
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.streams.publishing import Publication


class Endings:
    """The endings of a run's calls."""

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan) -> None:
        self._process, self._run_id, self._plan = process, run_id, plan

    def of_value(self, call: CallId, value: Any, publication: Publication | None = None) -> Ending:
        """What a call that ends with a value tells those who read along: marks of its streams, and parts of its
        output."""
        parts = self._parts(call, value)
        if publication is not None:
            return self._published(publication, parts)
        return Ending(self._marks(call, value), parts)

    def of_skip(self, call: CallId, reason: str) -> Ending:
        """The same of a call that is skipped."""
        return Ending(self._marks(call, None), self._skipped_parts(call, reason))

    def replaced(self, claim: Claim, value: Any, *, holder: str) -> Ending:
        """The same of a call that failed after it may have published: what it said is taken back for `value`."""
        call = CallId(claim.call)
        return self._instead(claim, value, self._parts(call, value), holder=holder)

    def taken_back(self, claim: Claim, reason: str, *, holder: str) -> Ending:
        """The same of a call that is skipped since it failed: what it may have said is taken back."""
        call = CallId(claim.call)
        return self._instead(claim, None, self._skipped_parts(call, reason), holder=holder)

    def _instead(self, claim: Claim, value: Any, parts: list[Field], *, holder: str) -> Ending:
        call = CallId(claim.call)
        publishes = self._plan.node(call.node).plan.publishes
        if not publishes or call.item is not None:
            return Ending(self._marks(call, value), parts)
        publication = Publication(self._process, self._run_id, self._plan, claim, holder=holder, resumes=True)
        for path in self._plan.ended_paths(call.node):
            content = self._content(Ref(call.node, path), value)
            if publishes == "text" and not path and isinstance(content, str):
                publication.text(content)
            elif (path or publishes == "item") and isinstance(content, list):
                publication.items(content, path)
        return self._published(publication, parts)

    def _content(self, part: Ref, value: Any) -> Any:
        try:
            return read(part, value, self._plan.label)
        except BindingError:
            return None

    def _published(self, publication: Publication, parts: list[Field]) -> Ending:
        """The ending of a call that published: only what was not announced is left."""
        marks, flushes = publication.finish()
        return Ending(marks, publication.open_parts(parts), flushes, publication)

    def _marks(self, call: CallId, value: Any) -> list[Mark]:
        """The ends of the streams of a call that published nothing; of an item, its place in its node's stream."""
        number = call.node
        if call.item is not None:
            readers = self._plan.readers(str(number))
            return [Mark(str(number), "item", call.item, 1, readers)] if readers else []
        size = len(value) if isinstance(value, (list, str)) else 0
        streams = [stream_name(number, path) for path in self._plan.ended_paths(number)]
        return [Mark(stream, "end", size, 0, self._plan.readers(stream)) for stream in streams]

    def _parts(self, call: CallId, value: Any) -> list[Field]:
        """The parts of an output that calls wait for; an item has none."""
        paths = self._plan.announced(call.node) if call.item is None else ()
        return [self._part(call.node, path, self._part_envelope(call.node, path, value)) for path in paths]

    def _skipped_parts(self, call: CallId, reason: str) -> list[Field]:
        envelope = self._process.payloads.skipped(reason)
        return [self._part(call.node, path, envelope) for path in self._plan.announced(call.node)]

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
