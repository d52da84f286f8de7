"""What calls read: outputs of other nodes, parts of them, items; decoded once, and shared by the calls of a process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mosaic_queues.errors import BindingError, ClaimLost, ToolError
from mosaic_queues.transitions import INPUTS_CALL
from mosaic_tasks.definition.plan import INPUTS, ITEM, Path, Ref
from mosaic_tasks.definition.references import read
from mosaic_tasks.execution.observing import with_fences
from mosaic_tasks.execution.prepared import CallId, PreparedNode, PreparedPlan, stream_name
from mosaic_tasks.execution.process import Process

VALUES_KEPT = 4096
"""Decoded outputs that are kept at hand."""
VALUES_READ = 200
"""Outputs that come with a claim; more are fetched in a trip of their own."""

Early = Mapping[int, Any]
"""By producer that has not closed, what a call may read of it, in its place."""


class SkippedError(Exception):
    """A producer that a call reads was skipped; the text is the reason."""


class Inputs:
    """What the calls of one run read, in one epoch and one thread."""

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan, *, epoch: int) -> None:
        self._process, self._run_id, self._plan, self._epoch = process, run_id, plan, epoch
        self._decoded: dict[int, Any] = {}
        self._grown: dict[str, Any] = {}

    # -- fetching ----------------------------------------------------------------------------------------------

    def absent(self, calls: Iterable[str]) -> list[str]:
        """The outputs that these calls read and that are not at hand; the ledger sends them with the claims."""
        nodes = [self._plan.node(number) for number in dict.fromkeys(CallId(call).node for call in calls)]
        sources = dict.fromkeys(source for node in nodes for source in node.required + node.optional)
        named = [output_call(source) for source in sources if source not in self._decoded]
        return with_fences(
            self._process, [call for call in named if self._at_hand(call) is None][:VALUES_READ]
        )

    def _at_hand(self, call: str) -> bytes | None:
        return self._process.value(self._run_id, self._epoch, call)

    def fetch(self, calls: Iterable[str]) -> None:
        """Gets what is absent for these calls, in one round trip; another one for items of fan-outs that grow."""
        grown = [
            CallId(call).own
            for call in calls
            if CallId(call).item is not None and _is_given(self._plan.node(CallId(call).node))
        ]
        if grown:
            self._fetch_grown(grown)
        absent = self.absent(calls)
        for call, envelope in zip(absent, self._process.ledger.outputs(self._run_id, absent), strict=True):
            if envelope is not None:
                self._process.remember_value(self._run_id, self._epoch, call, envelope)

    def load(self, sources: Sequence[int]) -> None:
        """Fetches the outputs of these producers in one round trip, those not at hand."""
        if len(self._decoded) > VALUES_KEPT:
            self._decoded.clear()
        missing = [source for source in sources if source not in self._decoded]
        if not missing:
            return
        values = self._unpacked(self._envelopes([output_call(source) for source in missing]))
        self._decoded.update(zip(missing, values, strict=True))

    def _envelopes(self, calls: Sequence[str]) -> list[bytes]:
        """The outputs of closed producers, at hand from now on."""
        at_hand = [self._at_hand(call) for call in calls]
        absent = [call for call, envelope in zip(calls, at_hand, strict=True) if envelope is None]
        fetched = iter(self._process.ledger.outputs(self._run_id, absent))
        present: list[bytes] = []
        for call, known in zip(calls, at_hand, strict=True):
            envelope = next(fetched) if known is None else known
            if envelope is None:
                raise ToolError(f"the output of call {call!r} is gone: the run is over or past its retention")
            self._process.remember_value(self._run_id, self._epoch, call, envelope)
            present.append(envelope)
        return present

    def _unpacked(self, envelopes: Sequence[bytes]) -> list[Any]:
        """Their values, in one round trip; `_SKIPPED` for those that were skipped."""
        payloads = self._process.payloads
        skipped = [payloads.is_skipped(envelope) is not None for envelope in envelopes]
        wanted = [envelope for envelope, skip in zip(envelopes, skipped, strict=True) if not skip]
        values = iter(payloads.unpack_many(self._run_id, wanted))
        return [_SKIPPED if skip else next(values) for skip in skipped]

    def loaded(self, node: PreparedNode) -> Mapping[int, Any]:
        """What was loaded for a node: a mailbox reads it for as long as it lives, and others load theirs meanwhile."""
        return {source: self._decoded[source] for source in node.required + node.optional}

    def _source(self, source: int, item: Any, early: Early) -> Any:
        if source == ITEM:
            return item
        value = early[source] if source in early else self._decoded[source]
        return None if value is _SKIPPED else value

    def _read(self, ref: Ref, item: Any, early: Early) -> Any:
        value = self._source(ref.source, item, early)
        return None if value is None else read(ref, value, self._plan.label)

    def names(self, node: PreparedNode, item: Any, early: Early) -> Mapping[str, Any]:
        """What the node's condition and templates see, without its arguments."""
        return {name: self._read(ref, item, early) for name, ref in node.plan.names.items()}

    def items(self, node: PreparedNode, early: Early) -> Sequence[Any]:
        """The list that a fan-out goes over."""
        ref = node.plan.for_each
        assert ref is not None
        items = self._read(ref, None, early)
        if not isinstance(items, list):
            raise ToolError(f"for_each needs a list, and got {type(items).__name__}: {str(items)[:80]!r}")
        most = self._process.settings.max_items
        if len(items) > most:
            raise ToolError(
                f"for_each over {len(items)} items, at most {most}; split the list, or set MOSAIC_MAX_ITEMS"
            )
        return items

    def collect(self, node: PreparedNode, early: Early) -> list[Any]:
        """The results of all items in order; None for one that was skipped."""
        calls = [f"{node.number}.{item}" for item in range(len(self.items(node, early)))]
        envelopes = [envelope or b"" for envelope in self._process.ledger.outputs(self._run_id, calls)]
        return [None if value is _SKIPPED else value for value in self._unpacked(envelopes)]

    def load_list(self, node: PreparedNode) -> None:
        """Fetches the list of a fan-out that grew, when its producer has closed.

        Raises:
            SkippedError: the producer was skipped.
        """
        assert node.plan.for_each is not None
        source = node.plan.for_each.source
        self.load([source])
        if self._decoded[source] is _SKIPPED:
            raise SkippedError(f"{self._plan.label(source)} was skipped")

    # -- for one call ------------------------------------------------------------------------------------------

    def early(self, node: PreparedNode) -> Early:
        """By producer that has not closed, the parts of its output that the node waited for, in their places."""
        if not node.fields:
            return {}
        wanted = [(source, path) for source, paths in node.fields.items() for path in paths]
        names = [stream_name(source, path) for source, path in wanted]
        envelopes = [envelope or b"" for envelope in self._process.ledger.outputs(self._run_id, names)]
        payloads = self._process.payloads
        for (source, _), envelope in zip(wanted, envelopes, strict=True):
            if (reason := payloads.is_missing(envelope)) is not None:
                raise BindingError(reason)
            if payloads.is_skipped(envelope) is not None:
                raise SkippedError(f"{self._plan.label(source)} was skipped")
        early: dict[int, Any] = {}
        for (source, path), value in zip(wanted, payloads.unpack_many(self._run_id, envelopes), strict=True):
            early[source] = put_in(early.get(source), path, value)
        return early

    def skipped(self, node: PreparedNode) -> int | None:
        """A loaded producer that the node needs and that was skipped."""
        return next((source for source in node.required if self._decoded.get(source) is _SKIPPED), None)

    def given(
        self, node: PreparedNode, item: Any, early: Early
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The arguments of a call, and the names that its templates see."""
        arguments = own_copy(node.arguments(lambda source: self._source(source, item, early)))
        names = {**self.names(node, item, early), **arguments} if node.plan.agent is not None else {}
        return arguments, names

    def item(self, call: str, node: PreparedNode, place: int, early: Early) -> Any:
        """The item of a call of a fan-out."""
        if not _is_given(node):
            return self.items(node, early)[place]
        if call not in self._grown:
            self._fetch_grown([call])
        if call not in self._grown:
            raise ClaimLost(f"the item of call {call!r} is gone: its fan-out runs again")
        return self._grown.pop(call)

    def _fetch_grown(self, calls: Sequence[str]) -> None:
        """Gets the items of calls, but for those that were undone meanwhile."""
        found = zip(calls, self._process.ledger.item_envelopes(self._run_id, calls), strict=True)
        present = {call: envelope for call, envelope in found if envelope is not None}
        values = self._process.payloads.unpack_many(self._run_id, list(present.values()))
        self._grown.update(zip(present, values, strict=True))


def _is_given(node: PreparedNode) -> bool:
    """Whether the items of a node's calls were kept when those were made."""
    return node.plan.grows or node.plan.asked_by is not None


def output_call(source: int) -> str:
    """Under which call the ledger keeps the output of a source."""
    return INPUTS_CALL if source == INPUTS else str(source)


def own_copy(value: Any) -> Any:
    """A copy that the caller may change: values are shared between the calls of a process."""
    if isinstance(value, (list, dict)):
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    return value


def put_in(around: Any, path: Path, value: Any) -> Any:
    """The value in its place: `("risk", "level")` gives `{"risk": {"level": value}}`, added to what is around."""
    if not path:
        return value
    placed = dict(around or {})
    placed[path[0]] = put_in(placed.get(path[0]), path[1:], value)
    return placed


_SKIPPED = object()
"""Stands for the output of a producer that was skipped: a value that no tool can return."""
