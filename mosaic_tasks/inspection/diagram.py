"""A plan as boxes and wires, and how far a run is with each of them.

Pure. What a mixture asks stands inside of its box. A graph that is too large to be read is drawn smaller: nodes that
read the same and are read by the same share a box; where that is not enough, whole layers do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from mosaic_tasks.definition.drawing import reads
from mosaic_tasks.definition.plan import EdgeKind, NodeKind, Plan
from mosaic_tasks.inspection.layering import Place, Point, laid_out, layers_of
from mosaic_tasks.inspection.progress import NodeState, NodeView, state_counts
from mosaic_tasks.inspection.wording import counted, shortened

MOST_BOXES, MOST_WIRES = 60, 200
"""Of a drawing that people can read, and that a browser draws at once."""
_MOST_BANDS = 20
WIDTH, _HEIGHT, _ROW = 190.0, 54.0, 18.0
_MOST_ROWS = 8
URGENCY: tuple[NodeState, ...] = (
    "failed",
    "running",
    "ready",
    "cancelled",
    "waiting",
    "done",
    "skipped",
    "cut",
)
"""States in the order in which people want to hear of them."""


class Wire(NamedTuple):
    """What a box reads of another.

    Attributes:
        kind: empty: its output, once it closed, or its end alone.
        label: how it is read, in words; empty where that goes without saying.
        points: where the wire runs, from side to side.
    """

    source: int
    reader: int
    kind: EdgeKind | None
    label: str
    points: tuple[Point, ...]


class Diagram(NamedTuple):
    """The drawing of a plan, without the state of a run.

    Attributes:
        members: for each box the numbers of the nodes that share it.
        rows: for each box the numbers of the nodes that stand inside of it; `more` are left out.
        summary: what was put together; empty: nothing.
    """

    width: float
    height: float
    members: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]
    more: tuple[int, ...]
    places: tuple[Place, ...]
    heights: tuple[float, ...]
    wires: tuple[Wire, ...]
    summary: str


class Box(NamedTuple):
    """A box of a diagram, and how far a run is with it.

    Attributes:
        title: the node's name; of several, how many there are.
        node: the only one; None where there are several.
        state: of several the one that matters most.
        note: what it is, or how many are in which state.
        share: of a fan-out, or of several: how much is done, from 0 to 1; None: there is no saying.
        rows: whom a mixture asks.
    """

    title: str
    node: NodeView | None
    kind: NodeKind | None
    state: NodeState
    note: str
    share: float | None
    place: Place
    height: float
    rows: tuple[NodeView, ...] = ()
    more: int = 0


def diagram(plan: Plan) -> Diagram:
    """The drawing of a plan. Costs about 100 ms at most, but for the one look at each node."""
    own = [number for number, node in enumerate(plan.nodes) if node.asked_by is None]
    members: Members = [(number,) for number in own]
    if _fits(links := _links(plan, members), members):
        return _drawn(plan, members, links, "")
    together, members = "nodes that read the same and are read by the same", _twins(plan, own)
    if not _fits(links := _links(plan, members), members):
        together, members = "layers of the graph", _bands(plan, own)
        links = _links(plan, members)
    summary = f"{counted(len(own), 'node')} in {counted(len(members), 'box', 'boxes')}: {together} share one"
    return _drawn(plan, members, links, summary)


Links = dict[tuple[int, int], tuple[EdgeKind | None, str]]


Members = list[tuple[int, ...]]


def _fits(links: Links, members: Members) -> bool:
    return len(members) <= MOST_BOXES and len(links) <= MOST_WIRES


def _deps(plan: Plan, number: int) -> tuple[int, ...]:
    """What a node reads, but for whom it asks as a mixture."""
    return tuple(dep for dep in plan.nodes[number].deps if plan.nodes[dep].asked_by is None)


def _twins(plan: Plan, own: Sequence[int]) -> Members:
    """Nodes with the same producers, readers and kind, together."""
    readers: dict[int, list[int]] = {}
    for number in own:
        for dep in _deps(plan, number):
            readers.setdefault(dep, []).append(number)
    return _by(
        own, lambda number: (_deps(plan, number), tuple(readers.get(number, ())), plan.nodes[number].kind)
    )


def _bands(plan: Plan, own: Sequence[int]) -> Members:
    """Nodes of the same layers, together."""
    places = {number: place for place, number in enumerate(own)}
    layers = layers_of([[places[dep] for dep in _deps(plan, number)] for number in own])
    depth = {own[place]: depth for depth, layer in enumerate(layers) for place in layer}
    return _by(own, lambda number: depth[number] * min(_MOST_BANDS, len(layers)) // len(layers))


def _by(numbers: Sequence[int], key: Callable[[int], Hashable]) -> Members:
    found: dict[Hashable, list[int]] = {}
    for number in numbers:
        found.setdefault(key(number), []).append(number)
    return [tuple(each) for each in found.values()]


def _links(plan: Plan, members: Sequence[Sequence[int]]) -> Links:
    """Who reads whom, by boxes; of several edges the first one tells how."""
    boxes = {number: box for box, numbers in enumerate(members) for number in numbers}
    found: Links = {}
    for number, box in boxes.items():
        edges = {edge.source: edge for edge in plan.nodes[number].edges}
        for dep in _deps(plan, number):
            if boxes[dep] != box and (boxes[dep], box) not in found:
                edge = edges.get(dep)
                found[boxes[dep], box] = (None, "") if edge is None else (edge.kind, reads(edge))
    return found


def _drawn(plan: Plan, members: Sequence[tuple[int, ...]], links: Links, summary: str) -> Diagram:
    asked: dict[int, list[int]] = {}
    for number, node in enumerate(plan.nodes):
        if node.asked_by is not None:
            asked.setdefault(node.asked_by, []).append(number)
    inside = [asked.get(numbers[0], []) if len(numbers) == 1 else [] for numbers in members]
    rows = tuple(tuple(each[:_MOST_ROWS]) for each in inside)
    more = tuple(max(len(each) - _MOST_ROWS, 0) for each in inside)
    heights = tuple(
        _HEIGHT + _ROW * (len(shown) + bool(left)) + (8 if shown else 0)
        for shown, left in zip(rows, more, strict=True)
    )
    deps: list[list[int]] = [[] for _ in members]
    for source, reader in links:
        deps[reader].append(source)
    layout = laid_out(heights, deps, width=WIDTH)
    wires = tuple(
        Wire(source, reader, kind, label, layout.ways[source, reader])
        for (source, reader), (kind, label) in links.items()
    )
    width, height, places = layout.width, layout.height, layout.places
    return Diagram(width, height, tuple(members), rows, more, places, heights, wires, summary)


def boxes(drawn: Diagram, nodes: Sequence[NodeView]) -> Iterator[Box]:
    """The boxes of a diagram, with the state of a run."""
    for box, numbers in enumerate(drawn.members):
        place, height = drawn.places[box], drawn.heights[box]
        if len(numbers) > 1:
            yield _several([nodes[number] for number in numbers], place, height)
        else:
            node = nodes[numbers[0]]
            rows = tuple(nodes[number] for number in drawn.rows[box])
            note = items(node) if is_fan_out(node) else _what(node)
            share = node.calls_done / node.calls if is_fan_out(node) and node.calls else None
            about = (node.name, node, node.kind, node.state, note, share, place, height)
            yield Box(*about, rows, drawn.more[box])


def _what(node: NodeView) -> str:
    """What it is; of a mixture that has an answer also which."""
    if node.record is None or node.record.failure:
        return node.kind
    return f"{node.kind}: {shortened(node.record.shown, 20)!r}"


def _several(nodes: Sequence[NodeView], place: Place, height: float) -> Box:
    counts = state_counts(nodes)
    done = sum(map(is_done, nodes))
    told = ", ".join(f"{counts[state]:,} {state}" for state in URGENCY if state in counts)
    title = counted(len(nodes), "node")
    return Box(title, None, None, most_urgent(counts), told, done / len(nodes), place, height)


def most_urgent(states: Iterable[NodeState]) -> NodeState:
    """The one of several that matters most."""
    return min(states, key=URGENCY.index)


def is_done(node: NodeView) -> bool:
    """Whether all of it that is needed is there."""
    return node.state in ("done", "skipped")


def is_fan_out(node: NodeView) -> bool:
    """Whether it has a call an item, as far as is known; what mixtures ask has calls for other reasons."""
    return not node.asked_by and (node.calls > 1 or node.grows)


def items(node: NodeView) -> str:
    """How many items of a fan-out are done: `3/12 items`, `3/12+ items` while its list grows."""
    return f"{node.calls_done:,}/{node.calls:,}{'+' if node.grows else ''} items"


__all__ = [
    "MOST_BOXES",
    "MOST_WIRES",
    "URGENCY",
    "WIDTH",
    "Box",
    "Diagram",
    "Wire",
    "boxes",
    "diagram",
    "is_done",
    "is_fan_out",
    "items",
    "most_urgent",
]
