"""The resource graph as a picture: the server, the machines, their GPUs and engines, and what connects them.

As text for a terminal, and as SVG. Round trips between machines are drawn where they were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from mosaic_routing.gpus import Gpu, GpuLink
from mosaic_routing.inventory import EngineReport
from mosaic_routing.machines import Machine, Way, measured_ways

_GIB = 1 << 30
_SERVER = "server"
_PATHS = {
    "board": "one board",
    "pix": "one PCIe switch",
    "pxb": "PCIe switches",
    "phb": "a PCIe host bridge",
    "node": "host bridges of one socket",
    "sys": "the link between sockets",
}


class Strokes(NamedTuple):
    """What a tree is drawn with: before a branch and the last one, below a branch and the last one, and to and fro."""

    branch: str = "├─ "
    last: str = "└─ "
    below: str = "│  "
    below_last: str = "   "
    between: str = "↔"


LINES = Strokes()
ASCII = Strokes("|- ", "`- ", "|  ", "   ", "<->")


class Tree(NamedTuple):
    """A line, and what stands below it."""

    line: str
    branches: tuple[Tree, ...] = ()


def gib(count: int | None) -> str:
    """A number of bytes; `?` where it is not known."""
    if count is None:
        return "?"
    value = count / _GIB
    return f"{value:.1f} GiB" if value < 100 else f"{value:,.0f} GiB"


def free_of(free: int | None, whole: int | None) -> str:
    """How much of a memory is free."""
    if whole is None:
        return "memory not known"
    return f"{gib(whole)}" if free is None else f"{gib(free).removesuffix(' GiB')} of {gib(whole)} free"


def milliseconds(seconds: float | None) -> str:
    """A round trip."""
    if seconds is None:
        return "not measured"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"


def gpu_line(gpu: Gpu) -> str:
    """A GPU or a slice in some words."""
    memory = free_of(gpu.free_bytes, gpu.memory_bytes)
    parts = [gpu.gpu_class or "class not known", "in slices" if gpu.is_sliced else memory]
    parts += [f"{gpu.use:.0%} busy"] if gpu.use is not None else []
    parts += [f"{gpu.temperature_c:.0f} C"] if gpu.temperature_c is not None else []
    parts += [f"{gpu.power_w:.0f} W"] if gpu.power_w is not None else []
    parts += [f"PROBLEM: {gpu.problem}"] if gpu.problem else []
    return printable(f"{'slice' if gpu.slice_of else f'GPU {gpu.index}'}  {', '.join(parts)}")


def link_lines(links: Sequence[GpuLink]) -> list[str]:
    """The links between GPUs, those that are alike together."""
    pairs: dict[str, list[str]] = {}
    for link in links:
        pairs.setdefault(_connection(link), []).append(f"{link.a}-{link.b}")
    if len(pairs) == 1 and len(links) > 1:
        return [f"each to each: {next(iter(pairs))}"]
    return [f"{', '.join(named)}: {connection}" for connection, named in pairs.items()]


def _connection(link: GpuLink) -> str:
    if link.nvlinks:
        count = f"{link.nvlinks} NVLink{'s' if link.nvlinks > 1 else ''}"
        return f"{count} through a switch" if link.is_switched else count
    return f"PCIe, {_PATHS[link.path]}" if link.path else "not known"


def engine_line(engine: EngineReport) -> str:
    """An engine in some words."""
    return printable(
        f"{engine.title}  {engine.running} running, {engine.waiting} waiting, {engine.slots} slots free"
    )


def machine_line(machine: Machine) -> str:
    """Processors and memory of a machine."""
    known = machine.resources
    parts = [f"{known.cpus:g} CPU{'' if known.cpus == 1 else 's'}"]
    parts += [f"load {known.load:.1f}"] if known.load is not None else []
    parts += [free_of(known.available_bytes, known.memory_bytes)]
    return ", ".join(parts)


def printable(text: str) -> str:
    """Text without what a terminal obeys, or XML refuses."""
    return "".join(char if char.isprintable() else "?" for char in text)


def hosted_on(engines: Iterable[EngineReport], machine: Machine) -> list[EngineReport]:
    """The engines of a machine's workers."""
    holders = {worker.holder for worker in machine.workers}
    return [each for each in engines if each.holder in holders]


# -- text --------------------------------------------------------------------------------------------------------


def as_text(
    machines: Sequence[Machine], engines: Sequence[EngineReport] = (), *, strokes: Strokes = LINES
) -> str:
    """The graph as a tree.

    Args:
        engines: of the workers of these machines.
        strokes: what the tree is drawn with.
    """
    branches = [_machine_tree(machine, engines) for machine in machines]
    lines = [_SERVER, *_below(branches, strokes)]
    ways = [_way_line(each, strokes) for each in measured_ways(machines)]
    lines += ["", "between machines, measured:", *ways] if ways else []
    return "".join(f"{line}\n" for line in lines)


def _way_line(way: Way, strokes: Strokes) -> str:
    return printable(f"{way.a} {strokes.between} {way.b}  {milliseconds(way.round_trip_s)}")


def _machine_tree(machine: Machine, engines: Sequence[EngineReport]) -> Tree:
    branches = [*_gpu_trees(machine.gpus)]
    branches += [Tree(f"no GPU: {printable(machine.no_gpus)}")] if machine.no_gpus else []
    branches += [Tree("links", tuple(map(Tree, link_lines(machine.links))))] if machine.links else []
    for worker in machine.workers:
        hosted = tuple(Tree(engine_line(each)) for each in engines if each.holder == worker.holder)
        queues = f"  {', '.join(worker.queues)}" if worker.queues else ""
        branches.append(Tree(printable(f"worker {worker.worker}{queues}"), hosted))
    round_trip = milliseconds(machine.round_trip_s)
    return Tree(printable(f"{machine.host}  {round_trip}, {machine_line(machine)}"), tuple(branches))


def _gpu_trees(gpus: Sequence[Gpu]) -> Iterator[Tree]:
    for gpu in gpus:
        if not gpu.slice_of:
            slices = tuple(
                Tree(gpu_line(each)) for each in gpus if each.slice_of and each.slice_of == gpu.uuid
            )
            yield Tree(gpu_line(gpu), slices)


def _below(trees: Sequence[Tree], strokes: Strokes) -> Iterator[str]:
    for number, tree in enumerate(trees, start=1):
        is_last = number == len(trees)
        yield (strokes.last if is_last else strokes.branch) + tree.line
        for line in _below(tree.branches, strokes):
            yield (strokes.below_last if is_last else strokes.below) + line


# -- SVG ---------------------------------------------------------------------------------------------------------

_MARGIN, _GAP, _LINE = 16, 24, 16
_SERVER_WIDTH, _TRIP_WIDTH = 80, 130
_GPU_WIDTH, _GPU_HEIGHT, _GPU_GAP, _GPUS_IN_ROW = 132, 58, 20, 4
_BOX_WIDTH = _GPUS_IN_ROW * (_GPU_WIDTH + _GPU_GAP) + _GPU_GAP
_LEFT = _MARGIN + _SERVER_WIDTH + _TRIP_WIDTH
_RIGHT = _LEFT + _BOX_WIDTH
_WAYS_WIDTH = 200
_LETTERS = 104
"""So many fit into the width of a box."""
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.head{font-weight:bold}.box{fill:#f6f7f9;stroke:#667}"
    ".gpu{fill:#fff;stroke:#567}.bad{fill:#fde8e8;stroke:#b00}.used{fill:#9bbce0}.way{stroke:#667;fill:none}"
    ".nvlink{stroke:#5a9a1f;fill:none}.measured{stroke:#a60;fill:none;stroke-dasharray:4 3}"
)


class _Place(NamedTuple):
    """Where a machine's box stands, and the lines of text in it."""

    machine: Machine
    top: int
    height: int
    lines: tuple[str, ...]

    @property
    def middle(self) -> int:
        return self.top + self.height // 2


def as_svg(machines: Sequence[Machine], engines: Sequence[EngineReport] = ()) -> str:
    """The graph as an SVG document: the server on the left, the machines below each other, GPUs within them.

    Args:
        engines: of the workers of these machines.
    """
    places = list(_places(machines, engines))
    height = (places[-1].top + places[-1].height if places else 3 * _LINE) + _MARGIN
    width = _RIGHT + _WAYS_WIDTH
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">',
        f"<title>The machines and GPUs of the fleet</title><style>{_STYLE}</style>",
        *_server(places, height),
        *(part for place in places for part in _box(place)),
        *_ways(places),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _places(machines: Sequence[Machine], engines: Sequence[EngineReport]) -> Iterator[_Place]:
    top = _MARGIN
    for machine in machines:
        lines = tuple(_box_lines(machine, engines))
        rows = -(-len(machine.gpus) // _GPUS_IN_ROW)
        height = (2 + len(lines)) * _LINE + rows * (_GPU_HEIGHT + _GPU_GAP)
        yield _Place(machine, top, height, lines)
        top += height + _GAP


def _box_lines(machine: Machine, engines: Sequence[EngineReport]) -> Iterator[str]:
    """What is said below the name of a machine."""
    yield machine_line(machine)
    if machine.no_gpus:
        yield f"no GPU: {machine.no_gpus}"
    yield from link_lines(machine.links)
    yield from map(engine_line, hosted_on(engines, machine))


def _server(places: Sequence[_Place], height: int) -> Iterator[str]:
    middle = height // 2
    for place in places:
        start = _MARGIN + _SERVER_WIDTH
        yield f'<path class="way" d="M{start} {middle} L{_LEFT} {place.middle}"/>'
        trip = milliseconds(place.machine.round_trip_s)
        yield _text(_LEFT - 6, place.middle - 6, trip, more=' text-anchor="end"')
    yield _rectangle("box", _MARGIN, middle - _LINE, _SERVER_WIDTH, 2 * _LINE)
    yield _text(_MARGIN + _SERVER_WIDTH // 2, middle + 4, _SERVER, more=' class="head" text-anchor="middle"')


def _box(place: _Place) -> Iterator[str]:
    yield _rectangle("box", _LEFT, place.top, _BOX_WIDTH, place.height)
    yield _text(_LEFT + 10, place.top + _LINE + 2, place.machine.host, more=' class="head"')
    for number, line in enumerate(place.lines, start=2):
        yield _text(_LEFT + 10, place.top + number * _LINE + 4, _shortened(line))
    corners = list(_corners(place))
    yield from _nvlinks(place.machine, corners)
    for gpu, (left, top) in zip(place.machine.gpus, corners, strict=True):
        yield from _gpu(gpu, left, top)


def _shortened(line: str) -> str:
    return line if len(line) <= _LETTERS else f"{line[: _LETTERS - 3]}..."


def _corners(place: _Place) -> Iterator[tuple[int, int]]:
    """Left upper corners of the GPUs."""
    top = place.top + (2 + len(place.lines)) * _LINE
    for number in range(len(place.machine.gpus)):
        row, column = divmod(number, _GPUS_IN_ROW)
        yield _LEFT + _GPU_GAP + column * (_GPU_WIDTH + _GPU_GAP), top + row * (_GPU_HEIGHT + _GPU_GAP)


def _nvlinks(machine: Machine, corners: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Lines from GPU to GPU, drawn below them, thicker where there are more links."""
    middles = {
        gpu.index: (left + _GPU_WIDTH // 2, top + _GPU_HEIGHT // 2)
        for gpu, (left, top) in zip(machine.gpus, corners, strict=True)
        if not gpu.slice_of
    }
    for link in machine.links:
        if link.nvlinks and link.a in middles and link.b in middles:
            (ax, ay), (bx, by) = middles[link.a], middles[link.b]
            bend = 0 if abs(ax - bx) <= _GPU_WIDTH + _GPU_GAP else _GPU_HEIGHT
            yield (
                f'<path class="nvlink" stroke-width="{1 + link.nvlinks / 6:.1f}" '
                f'd="M{ax} {ay} Q{(ax + bx) // 2} {(ay + by) // 2 + bend} {bx} {by}">'
                f"<title>{link.a}-{link.b}: {escape(_connection(link))}</title></path>"
            )


def _gpu(gpu: Gpu, left: int, top: int) -> Iterator[str]:
    yield _rectangle("bad" if gpu.problem else "gpu", left, top, _GPU_WIDTH, _GPU_HEIGHT, title=gpu_line(gpu))
    if gpu.memory_bytes and gpu.free_bytes is not None:
        used = max(0.0, 1 - gpu.free_bytes / gpu.memory_bytes)
        yield _rectangle("used", left + 1, top + _GPU_HEIGHT - 7, round(used * (_GPU_WIDTH - 2)), 6)
    number = f"{gpu.index}, slice" if gpu.slice_of else str(gpu.index)
    yield _text(left + 6, top + 15, f"{number}  {gpu.gpu_class or gpu.name}", more=' class="head"')
    yield _text(left + 6, top + 31, gpu.problem[:20] or free_of(gpu.free_bytes, gpu.memory_bytes))
    yield _text(left + 6, top + 46, "" if gpu.use is None else f"{gpu.use:.0%} busy")


def _ways(places: Sequence[_Place]) -> Iterator[str]:
    """Curves from machine to machine on the right."""
    middles = {place.machine.host: place.middle for place in places}
    for way in measured_ways([place.machine for place in places]):
        a, b = middles[way.a], middles[way.b]
        yield f'<path class="measured" d="M{_RIGHT} {a} C{_RIGHT + 90} {a} {_RIGHT + 90} {b} {_RIGHT} {b}"/>'
        yield _text(_RIGHT + 74, (a + b) // 2, milliseconds(way.round_trip_s))


def _rectangle(kind: str, x: int, y: int, width: int, height: int, *, title: str = "") -> str:
    told = f"<title>{escape(printable(title))}</title>" if title else ""
    size = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="4"'
    return f"<rect class={quoteattr(kind)} {size}>{told}</rect>"


def _text(x: int, y: int, words: str, *, more: str = "") -> str:
    return f'<text x="{x}" y="{y}"{more}>{escape(printable(words))}</text>'


__all__ = [
    "ASCII",
    "LINES",
    "Strokes",
    "as_svg",
    "as_text",
    "engine_line",
    "free_of",
    "gib",
    "gpu_line",
    "hosted_on",
    "link_lines",
    "machine_line",
    "milliseconds",
    "printable",
]
