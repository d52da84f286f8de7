"""The command that shows the machines: infra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from mosaic_tasks.cli.following import follow as follow_fleet
from mosaic_tasks.cli.options import JsonOption
from mosaic_tasks.cli.output import console, is_ascii_only, print_json, table
from mosaic_tasks.inspection.wording import listed

if TYPE_CHECKING:
    from redis import Redis
    from rich.console import RenderableType

    from mosaic_queues.keys import Keys
    from mosaic_routing.gpus import Gpu
    from mosaic_routing.inventory import EngineReport
    from mosaic_routing.machines import Machine

_NONE = "no worker reports its machine; start one with: mosaic worker"


class Fleet(NamedTuple):
    """What `--json` prints."""

    machines: list[Machine]
    engines: list[EngineReport]


def infra(
    as_json: JsonOption = False,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw server, machines, GPUs and links as a tree.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write the drawing to this file, as SVG.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Go on, once a second, until Ctrl-C; with --json a line each time."
        ),
    ] = False,
) -> None:
    """Show the machines that workers run on: processors, memory, GPUs, engines, and how far they are from the server.

    SERVER: the round trip from the machine to the server; SEEN: how long ago a worker of the machine reported, by the
    server's clock. A worker that is silent for ten seconds is gone. AVAILABLE: what may be taken of the memory.
    What a machine does not tell is left empty, and what is wrong with a GPU is said in its line.

    \b
    Examples:
      mosaic infra
      mosaic infra --draw --follow
      mosaic infra --svg fleet.svg
      mosaic infra --json | jq '.machines[] | {host, gpus: [.gpus[] | {gpu_class, free_bytes}]}'
    """
    from mosaic_queues.connection import connect, server_urls
    from mosaic_queues.keys import Keys
    from mosaic_queues.settings import settings

    if svg is not None and (follow or as_json or draw):
        raise typer.BadParameter("give it without --follow, --json and --draw", param_hint="--svg")
    if as_json and draw:
        raise typer.BadParameter("give it without --json", param_hint="--draw")
    keys = Keys(settings().namespace)
    with connect(server_urls().redis_url) as client:
        if follow:
            follow_fleet(lambda: _read(client, keys), _drawn if draw else _tables, as_json=as_json)
        else:
            _show(_read(client, keys), as_json=as_json, draw=draw, svg=svg)


def _read(client: Redis, keys: Keys) -> Fleet:
    from mosaic_routing.inventory import engines
    from mosaic_routing.machines import REPORTS, machines

    return Fleet(machines(REPORTS.aged(client, keys=keys)), engines(client, keys=keys))


def _show(fleet: Fleet, *, as_json: bool, draw: bool, svg: Path | None) -> None:
    from mosaic_routing.drawing import as_svg

    if as_json:
        print_json(fleet)
    elif svg is not None:
        svg.write_text(as_svg(fleet.machines, fleet.engines), "utf-8")
        typer.echo(f"written: {svg}")
    else:
        console().print((_drawn if draw else _tables)(fleet), soft_wrap=True)


def _drawn(fleet: Fleet) -> RenderableType:
    from mosaic_routing.drawing import ASCII, LINES, as_text

    if not fleet.machines:
        return _NONE
    strokes = ASCII if is_ascii_only() else LINES
    return as_text(fleet.machines, fleet.engines, strokes=strokes).rstrip("\n")


def _tables(fleet: Fleet) -> RenderableType:
    from rich.console import Group

    if not fleet.machines:
        return _NONE
    shown: list[RenderableType] = [_machine_table(fleet)]
    if any(machine.gpus for machine in fleet.machines):
        shown += ["", _gpu_table(fleet.machines)]
    reasons = list(_reasons(fleet.machines))
    return Group(*shown, *([""] if reasons else []), *reasons)


def _reasons(machines: Sequence[Machine]) -> Iterator[str]:
    """Why machines have no GPUs, those together that have none for the same reason."""
    from mosaic_routing.drawing import printable

    hosts: dict[str, list[str]] = {}
    for machine in machines:
        if machine.no_gpus:
            hosts.setdefault(machine.no_gpus, []).append(machine.host)
    for why, named in hosts.items():
        yield printable(f"no GPU on {listed(named)}: {why}")


def _machine_table(fleet: Fleet) -> RenderableType:
    rows = table(
        "MACHINE", "WORKERS", "CPUS", "LOAD", "MEMORY", "AVAILABLE", "SERVER", "SEEN", "GPUS", "ENGINES"
    )
    for column in rows.columns[1:8]:
        column.justify = "right"
    for machine in fleet.machines:
        rows.add_row(*_machine_cells(machine, fleet.engines))
    return rows


def _machine_cells(machine: Machine, engines: Sequence[EngineReport]) -> Iterator[str]:
    from mosaic_routing.drawing import gib, hosted_on, milliseconds, printable

    known = machine.resources
    yield printable(machine.host)
    yield str(len(machine.workers))
    yield f"{known.cpus:g}"
    yield "" if known.load is None else f"{known.load:.1f}"
    yield gib(known.memory_bytes)
    yield gib(known.available_bytes)
    yield milliseconds(machine.round_trip_s)
    yield f"{machine.age_s:.1f} s ago"
    yield printable(_gpu_words(machine))
    yield printable(", ".join(sorted({each.title for each in hosted_on(engines, machine)})))


def _gpu_words(machine: Machine) -> str:
    """`8 h100`."""
    whole = [gpu.gpu_class or "unknown" for gpu in machine.gpus if not gpu.slice_of]
    counted = [f"{whole.count(name)} {name}" for name in dict.fromkeys(whole)]
    return ", ".join(counted) or "none"


def _gpu_table(machines: Sequence[Machine]) -> RenderableType:
    rows = table(
        "MACHINE", "GPU", "CLASS", "MEMORY", "FREE", "BUSY", "TEMPERATURE", "POWER", "DRIVER", "PROBLEM"
    )
    for column in rows.columns[3:8]:
        column.justify = "right"
    for machine in machines:
        for gpu in machine.gpus:
            rows.add_row(*_gpu_cells(machine, gpu))
    return rows


def _gpu_cells(machine: Machine, gpu: Gpu) -> Iterator[str]:
    from mosaic_routing.drawing import gib, printable

    yield printable(machine.host)
    yield f"{gpu.index}, slice" if gpu.slice_of else str(gpu.index)
    yield printable(gpu.gpu_class)
    yield gib(gpu.memory_bytes)
    yield gib(gpu.free_bytes)
    yield "" if gpu.use is None else f"{gpu.use:.0%}"
    yield "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} C"
    yield "" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    yield printable(gpu.driver)
    yield printable(gpu.problem)
