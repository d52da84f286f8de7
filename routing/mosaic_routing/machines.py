"""The machines of the fleet: what each worker says of the one that it runs on, and what follows from all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import msgspec
from redis import Redis

from mosaic_routing.classes import CPU
from mosaic_routing.gpus import Gpu, GpuLink, Gpus
from mosaic_routing.reports import Aged, Reports
from mosaic_routing.resources import Resources

EXPIRY_S = 10.0
"""A worker that is silent for so long is gone; publish several times in that time."""
PINGS = 5
_SILENT = "the driver does not answer"
_MEMORY_STEPS = 50
"""Memory that changes by so small a part, the 50th, is no news; the next heartbeat tells it."""


class MachineReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker says of its machine at one moment.

    Attributes:
        host: name of the machine, or of the container.
        worker: the worker's name, `NAME@HOST`.
        holder: its incarnation, as in the reports of its engines.
        queues: which it takes calls from.
        gpu_class: of what it hosts; `cpu`: it hosts nothing, or without a GPU.
        gpus: all of the machine, not only the worker's.
        round_trip_s: to the server and back; None: not measured yet.
        address: where it answers echoes; empty: it does not.
        round_trips: seconds to other machines and back, by their host.
    """

    host: str
    worker: str
    holder: str
    queues: tuple[str, ...] = ()
    gpu_class: str = CPU
    resources: Resources = Resources()
    gpus: Gpus = Gpus()
    round_trip_s: float | None = None
    address: str = ""
    round_trips: dict[str, float] = {}


REPORTS = Reports("machine", MachineReport, name=lambda report: report.holder, expiry_s=EXPIRY_S)
"""Publishes, withdraws and reads them."""


def is_news(report: MachineReport, last: MachineReport | None) -> bool:
    """Whether a report says more than the last one did, apart from what changes all the time."""
    return last is None or _lasting(report) != _lasting(last)


def _lasting(report: MachineReport) -> MachineReport:
    """What of a report is worth telling at once, memory in coarse steps."""
    known = report.resources
    steps = _steps(known.available_bytes, known.memory_bytes)
    return msgspec.structs.replace(
        report,
        resources=msgspec.structs.replace(known, load=None, available_bytes=steps),
        gpus=msgspec.structs.replace(report.gpus, gpus=tuple(map(_lasting_gpu, report.gpus.gpus))),
        round_trip_s=None,
        round_trips={},
    )


def _lasting_gpu(gpu: Gpu) -> Gpu:
    steps = _steps(gpu.free_bytes, gpu.memory_bytes)
    return msgspec.structs.replace(gpu, free_bytes=steps, use=None, temperature_c=None, power_w=None)


def _steps(part: int | None, whole: int | None) -> int | None:
    return None if part is None or not whole else round(part * _MEMORY_STEPS / whole)


def unanswered(gpus: Gpus) -> Gpus:
    """What is left of a reading when the driver is silent since: which GPUs there are, and that none answers."""
    left = [
        Gpu(index=each.index, uuid=each.uuid, name=each.name, gpu_class=each.gpu_class, problem=_SILENT)
        for each in gpus.gpus
    ]
    return Gpus(gpus=tuple(left), links=gpus.links, why="" if left else _SILENT)


def server_round_trip_s(client: Redis, *, pings: int = PINGS) -> float:
    """Seconds to the server and back: the median of some pings."""
    return statistics.median(_ping_s(client) for _ in range(pings))


def _ping_s(client: Redis) -> float:
    begun = time.perf_counter()
    client.ping()
    return time.perf_counter() - begun


class Machine(NamedTuple):
    """A machine, by the reports of all its workers.

    Attributes:
        workers: their reports, by name.
        age_s: of the youngest report, by the server's clock.
        round_trip_s: to the server; the least that a worker measured.
        round_trips: to other machines.
    """

    host: str
    workers: tuple[MachineReport, ...]
    age_s: float
    resources: Resources
    gpus: tuple[Gpu, ...]
    links: tuple[GpuLink, ...]
    no_gpus: str
    round_trip_s: float | None
    round_trips: dict[str, float]


def machines(reports: Iterable[Aged[MachineReport]]) -> list[Machine]:
    """The machines that reports tell of, by host."""
    found: dict[str, list[Aged[MachineReport]]] = {}
    for each in reports:
        found.setdefault(each.report.host, []).append(each)
    return [_machine(host, found[host]) for host in sorted(found)]


def _machine(host: str, reports: Sequence[Aged[MachineReport]]) -> Machine:
    oldest_first = sorted(reports, key=lambda each: -each.age_s)
    newest = oldest_first[-1].report
    measured = [each.report.round_trip_s for each in reports if each.report.round_trip_s is not None]
    return Machine(
        host=host,
        workers=tuple(sorted((each.report for each in reports), key=lambda report: report.worker)),
        age_s=oldest_first[-1].age_s,
        resources=newest.resources,
        gpus=newest.gpus.gpus,
        links=newest.gpus.links,
        no_gpus=newest.gpus.why,
        round_trip_s=min(measured, default=None),
        round_trips={
            other: seconds for each in oldest_first for other, seconds in each.report.round_trips.items()
        },
    )


def answering(known: Iterable[Machine], *, but: str) -> dict[str, str]:
    """Where machines answer echoes, by host, without the one called `but`."""
    return {
        machine.host: worker.address
        for machine in known
        for worker in machine.workers
        if worker.address and machine.host != but
    }


class Way(NamedTuple):
    """From one machine to another and back.

    Attributes:
        is_measured: False: the estimate, through the server.
    """

    a: str
    b: str
    round_trip_s: float
    is_measured: bool


def way(a: Machine, b: Machine) -> Way | None:
    """How far two machines are from each other: measured by one of them, else no longer than by way of the server.

    None: nothing is known.
    """
    if a.host == b.host:
        return Way(a.host, b.host, 0.0, is_measured=True)
    told = [
        here.round_trips[there.host] for here, there in ((a, b), (b, a)) if there.host in here.round_trips
    ]
    if told:
        return Way(a.host, b.host, min(told), is_measured=True)
    if a.round_trip_s is None or b.round_trip_s is None:
        return None
    return Way(a.host, b.host, a.round_trip_s + b.round_trip_s, is_measured=False)


def measured_ways(known: Sequence[Machine]) -> list[Way]:
    """The ways between these machines that have been measured."""
    ways = (way(a, b) for a, b in combinations(known, 2))
    return [each for each in ways if each is not None and each.is_measured]


__all__ = [
    "EXPIRY_S",
    "REPORTS",
    "Machine",
    "MachineReport",
    "Way",
    "answering",
    "is_news",
    "machines",
    "measured_ways",
    "server_round_trip_s",
    "unanswered",
    "way",
]
