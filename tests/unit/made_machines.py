"""Machines for tests: two with eight H100s each, one with two L4s, one with AMD's, one without GPUs."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from mosaic_routing.gpus import Gpu, GpuLink, Gpus
from mosaic_routing.inventory import EngineReport
from mosaic_routing.machines import MachineReport
from mosaic_routing.reports import Aged
from mosaic_routing.resources import Resources

GIB = 1 << 30


def gpu(index: int = 0, **facts: Any) -> Gpu:
    known: dict[str, Any] = {"uuid": f"GPU-{index}", "name": "NVIDIA H100 80GB HBM3", "gpu_class": "h100"}
    return Gpu(index=index, **known | {"memory_bytes": 80 * GIB, "free_bytes": 60 * GIB} | facts)


def report(host: str = "one", worker: str = "w", **facts: Any) -> MachineReport:
    known = {"resources": Resources(cpus=8, load=1.5, memory_bytes=64 * GIB, available_bytes=32 * GIB)}
    return MachineReport(host=host, worker=f"{worker}@{host}", holder=f"{host}/{worker}", **known | facts)


def hgx(count: int = 8) -> Gpus:
    links = (
        GpuLink(a=a, b=b, nvlinks=18, is_switched=True, path="sys") for a, b in combinations(range(count), 2)
    )
    return Gpus(gpus=tuple(map(gpu, range(count))), links=tuple(links))


def engine(holder: str, model: str = "llama-3.1-8b") -> EngineReport:
    queues = (f"mosaic.gpu.{model}",)
    return EngineReport(
        holder=holder,
        model=model,
        queues=queues,
        fingerprint="f",
        gpu_class="h100",
        at_ms=1,
        running=3,
        slots=13,
    )


def fleet() -> list[Aged[MachineReport]]:
    l4 = {"gpu_class": "l4", "name": "NVIDIA L4", "memory_bytes": 22 * GIB, "free_bytes": 2 * GIB}
    cards = Gpus(
        gpus=(
            gpu(0, use=0.97, temperature_c=71, power_w=69, **l4),
            gpu(1, **l4 | {"problem": "GPU is lost"}),
        ),
        links=(GpuLink(a=0, b=1, path="phb"),),
    )
    return [
        Aged(report("gpu1", gpus=hgx(), round_trip_s=0.0002, round_trips={"gpu2": 0.00004}), 0.5),
        Aged(report("gpu2", gpus=hgx(), round_trip_s=0.0003), 1.0),
        Aged(report("l4s", gpus=cards, round_trip_s=0.015), 2.0),
        Aged(report("plain", gpus=Gpus(why="no driver")), 3.0),
    ]
