"""Where the boxes of a graph stand, in layers from left to right, and how its wires run between them.

Pure: sizes and links in, coordinates out. A box stands right of all that it reads. What a layer holds is ordered so
that few wires cross (each box goes to the mean place of its neighbours, there and back some times), and then shifted
towards its neighbours as far as the boxes beside it let it. A wire that passes a layer has a place of its own there, so
it runs through no box. (Sugiyama, Tagawa and Toda, 1981.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

_SWEEPS = 6
_GAP_X, _GAP_Y = 64.0, 20.0
_PASSING = 8.0
"""How much of a layer's height a wire takes that passes it, two that pass side by side with nothing between."""

Link = tuple[int, int]
Point = tuple[float, float]


class Place(NamedTuple):
    """The upper left corner of a box."""

    x: float
    y: float


class Layout(NamedTuple):
    """Where everything stands, on a plane of `width` and `height`.

    Attributes:
        places: of the boxes, in their order.
        ways: for each link the points that its wire runs through, the first and the last at the sides of its boxes.
    """

    width: float
    height: float
    places: tuple[Place, ...]
    ways: Mapping[Link, tuple[Point, ...]]


def layers_of(deps: Sequence[Sequence[int]]) -> list[list[int]]:
    """Numbers by the length of the longest way that leads to them."""
    sorter = TopologicalSorter(dict(enumerate(deps)))
    sorter.prepare()
    found = []
    while ready := sorter.get_ready():
        found.append(sorted(ready))
        sorter.done(*ready)
    return found


def laid_out(heights: Sequence[float], deps: Sequence[Sequence[int]], *, width: float) -> Layout:
    """The layout of boxes of these heights, all of one width.

    Args:
        deps: for each box the numbers of those that it reads.
    """
    grid = _Grid(heights, deps)
    for sweep in range(_SWEEPS):
        grid.order(backwards=bool(sweep % 2))
    for sweep in range(_SWEEPS):
        grid.shift(backwards=bool(sweep % 2))
    return grid.layout(width)


class _Grid:
    """Layers of boxes and, where links are longer than a layer, of what passes them; the latter are numbered on."""

    def __init__(self, heights: Sequence[float], deps: Sequence[Sequence[int]]) -> None:
        self._boxes = len(heights)
        self._heights = list(heights)
        self._layers = layers_of(deps)
        self._depth = {number: depth for depth, layer in enumerate(self._layers) for number in layer}
        self._before: list[list[int]] = [[] for _ in heights]
        self._behind: list[list[int]] = [[] for _ in heights]
        self._chains = {
            (dep, number): self._chain(dep, number) for number, before in enumerate(deps) for dep in before
        }
        self._middle = [0.0] * len(self._heights)
        for layer in self._layers:
            self._stack(layer, [0.0] * len(layer))

    def _chain(self, dep: int, number: int) -> list[int]:
        """The members of a wire, those that pass layers included."""
        chain = [dep]
        for depth in range(self._depth[dep] + 1, self._depth[number]):
            chain.append(len(self._heights))
            self._layers[depth].append(len(self._heights))
            self._heights.append(_PASSING)
            self._before.append([])
            self._behind.append([])
        chain.append(number)
        for one, other in pairwise(chain):
            self._behind[one].append(other)
            self._before[other].append(one)
        return chain

    def order(self, *, backwards: bool) -> None:
        """Sorts each layer by the places of the neighbours in the layer before it."""
        neighbours = self._behind if backwards else self._before
        for layer in reversed(self._layers) if backwards else self._layers:
            wanted = {number: self._wanted(number, neighbours[number]) for number in layer}
            layer.sort(key=wanted.__getitem__)
            self._stack(layer, [0.0] * len(layer))

    def shift(self, *, backwards: bool) -> None:
        """Moves the members of each layer towards their neighbours."""
        neighbours = self._behind if backwards else self._before
        for layer in reversed(self._layers) if backwards else self._layers:
            self._stack(layer, [self._wanted(number, neighbours[number]) for number in layer])

    def _wanted(self, number: int, neighbours: Sequence[int]) -> float:
        if not neighbours:
            return self._middle[number]
        return sum(self._middle[each] for each in neighbours) / len(neighbours)

    def _stack(self, layer: Sequence[int], wanted: Sequence[float]) -> None:
        """Places a layer's members in their order, as near to the wanted middles as their heights allow."""
        lower = -float("inf")
        tops = list[float]()
        for place, (number, middle) in enumerate(zip(layer, wanted, strict=True)):
            above = self._gap(layer[place - 1], number) if place else 0.0
            tops.append(max(middle - self._heights[number] / 2, lower + above))
            lower = tops[-1] + self._heights[number]
        middles = [top + self._heights[number] / 2 for top, number in zip(tops, layer, strict=True)]
        off = sum(found - want for found, want in zip(middles, wanted, strict=True)) / len(layer)
        for number, middle in zip(layer, middles, strict=True):
            self._middle[number] = middle - off

    def _gap(self, one: int, other: int) -> float:
        return 0.0 if min(one, other) >= self._boxes else _GAP_Y

    def layout(self, width: float) -> Layout:
        numbers = range(len(self._heights))
        tops = [self._middle[number] - self._heights[number] / 2 for number in numbers]
        highest = min(tops)
        bottom = max(top + height for top, height in zip(tops, self._heights, strict=True))
        lefts = {
            number: depth * (width + _GAP_X) for depth, layer in enumerate(self._layers) for number in layer
        }
        places = tuple(Place(lefts[number], tops[number] - highest) for number in numbers[: self._boxes])
        ways = {link: tuple(self._way(chain, lefts, width, highest)) for link, chain in self._chains.items()}
        across = len(self._layers) * (width + _GAP_X) - _GAP_X
        return Layout(across, bottom - highest, places, ways)

    def _way(
        self, chain: Sequence[int], lefts: Mapping[int, float], width: float, highest: float
    ) -> list[Point]:
        points = [(lefts[chain[0]] + width, self._middle[chain[0]] - highest)]
        for number in chain[1:-1]:
            y = self._middle[number] - highest
            points += [(lefts[number], y), (lefts[number] + width, y)]
        return [*points, (lefts[chain[-1]], self._middle[chain[-1]] - highest)]


__all__ = ["Layout", "Link", "Place", "Point", "laid_out", "layers_of"]
