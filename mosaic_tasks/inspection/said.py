"""How much of a run's nodes is said so far: read for `explain`, in one trip."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from mosaic_queues.ledger import Ledger
from mosaic_queues.streams import chunks_of
from mosaic_tasks.definition.plan import NodePlan, Plan
from mosaic_tasks.execution.prepared import stream_name
from mosaic_tasks.inspection.progress import RunView


class Said(NamedTuple):
    """What the streams of a run hold.

    Attributes:
        sizes: by stream, how many characters or items it has.
        announced: the parts of outputs that are complete, named as their streams are.
    """

    sizes: Mapping[str, int] = {}
    announced: Collection[str] = ()


NOTHING = Said()


def said(ledger: Ledger, plan: Plan, view: RunView) -> Said:
    """What the nodes that are not over read of others. Of a fan-out, whose items come in any order, it tells none."""
    readers = [
        node for node, seen in zip(plan.nodes, view.nodes, strict=True) if not seen.is_over and node.edges
    ]
    streams, parts = sorted(set(_streams(readers))), sorted(set(_parts(plan, readers)))
    if not streams and not parts:
        return NOTHING
    with ledger.client.pipeline(transaction=False) as pipe:
        for stream in streams:
            pipe.xrevrange(ledger.keys.stream(view.run_id, stream), count=1)
        found = pipe.execute()
    sizes = {stream: _size(entries) for stream, entries in zip(streams, found, strict=True)}
    envelopes = ledger.outputs(view.run_id, parts)
    return Said(
        sizes, {part for part, envelope in zip(parts, envelopes, strict=True) if envelope is not None}
    )


def _streams(readers: list[NodePlan]) -> Iterator[str]:
    for node in readers:
        for edge in node.edges:
            if edge.kind != "fields":
                yield from (stream_name(edge.source, path) for path in edge.paths)


def _parts(plan: Plan, readers: list[NodePlan]) -> Iterator[str]:
    for node in readers:
        for edge in node.edges:
            if edge.kind == "fields":
                yield from (stream_name(edge.source, path) for path, _ in plan.nodes[edge.source].announces)


def _size(entries: Any) -> int:
    """The size after the last chunk: each tells its place and how much it adds, a `retract` the place alone."""
    return sum(chunk.offset + (0 if chunk.kind == "retract" else chunk.size) for chunk in chunks_of(entries))
