"""Publishes what a worker's machine is and has, from its main process: at once, when that changes, and as heartbeat.

Nothing here holds up work: it happens in threads, and GPUs are read in one of their own, since a driver may hang. Then
the machine is reported with GPUs that do not answer.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog
from celery import bootsteps
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.errors import ConfigurationError
from mosaic_queues.keys import Keys
from mosaic_routing.amd import amd_gpus
from mosaic_routing.classes import CPU
from mosaic_routing.echoes import Echo, round_trips
from mosaic_routing.gpus import Gpus, Nvml
from mosaic_routing.machines import (
    REPORTS,
    MachineReport,
    answering,
    is_news,
    machines,
    server_round_trip_s,
    unanswered,
)
from mosaic_routing.resources import resources
from mosaic_tasks.execution.process import process_for

log = structlog.get_logger(__name__)

ADDRESS_VARIABLE = "MOSAIC_MACHINE_ADDRESS"
STOP_S = 2.0
"""The end of the worker waits no longer than so for a thread of ours."""
NEIGHBOURS = 16
"""Other machines that are asked for an echo in one round, chosen at random."""


class Pace(NamedTuple):
    """How often what happens, in seconds.

    Attributes:
        first_s: the first report waits for the GPUs no longer than so.
        hung_s: a driver that is silent for so long does not answer.
    """

    look_s: float = 2.0
    heartbeat_s: float = 3.0
    round_trips_s: float = 30.0
    first_s: float = 2.0
    hung_s: float = 10.0


PACE = Pace()


class GpuWatch:
    """Reads the GPUs again and again, in a thread; whoever wants to know them never waits for the driver."""

    def __init__(self, read: Callable[[], Gpus], *, pace: Pace = PACE) -> None:
        self._read, self._pace = read, pace
        self._found: Gpus = Gpus()
        self._asked_at: float | None = None
        self._answered, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="mosaic-gpus", daemon=True)

    def start(self) -> None:
        """Begins to read; waits for the first answer, but not for long."""
        self._thread.start()
        self._answered.wait(self._pace.first_s)

    def stop(self) -> None:
        """Reads no more. A driver that hangs keeps the thread until the process ends."""
        self._stopped.set()
        self._thread.join(STOP_S)

    def now(self) -> Gpus:
        """The last answer, unless the driver does not give the next one."""
        asked_at = self._asked_at
        is_hung = asked_at is not None and time.monotonic() - asked_at >= self._pace.hung_s
        return unanswered(self._found) if is_hung or not self._answered.is_set() else self._found

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._asked_at = time.monotonic()
            try:
                self._found = self._read()
            except Exception as error:
                log.exception("machine.gpus", what="the GPUs cannot be read, the next look tries again")
                self._found = Gpus(why=f"they cannot be read: {type(error).__name__}: {error}")
            self._asked_at = None
            self._answered.set()
            self._stopped.wait(self._pace.look_s)


class Announcer:
    """Keeps the report of a worker's machine in the server, until `stop`.

    Args:
        known: what of the report stays as it is.
        read_gpus: may hang.
        address: where to answer echoes; None: nowhere.
    """

    def __init__(
        self,
        client: Redis,
        keys: Keys,
        known: MachineReport,
        *,
        read_gpus: Callable[[], Gpus],
        address: str | None = None,
        pace: Pace = PACE,
    ) -> None:
        self._client, self._keys, self._known, self._pace = client, keys, known, pace
        self._watch = GpuWatch(read_gpus, pace=pace)
        self._echo = _echo(address)
        self._last: MachineReport | None = None
        self._told_at = self._measured_at = -float("inf")
        self._round_trips: dict[str, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mosaic-machine", daemon=True)

    def start(self) -> None:
        """Begins, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Takes the report out: nobody shall count on this worker any more."""
        self._stopped.set()
        self._thread.join(STOP_S)
        self._watch.stop()
        if self._echo is not None:
            self._echo.close()
        try:
            REPORTS.withdraw(self._client, self._known, keys=self._keys)
        except RedisError as error:
            log.info("machine.leaving", what="its report expires by itself", error=str(error))

    def _run(self) -> None:
        self._watch.start()
        while not self._stopped.is_set():
            try:
                self._look()
            except RedisError as error:
                log.info(
                    "machine.report", what="the next report goes out with the next look", error=str(error)
                )
            except Exception:
                log.exception(
                    "machine.report", what="the machine cannot be reported, the next look tries again"
                )
            self._stopped.wait(self._pace.look_s)

    def _look(self) -> None:
        now_s = time.monotonic()
        report = msgspec.structs.replace(self._known, resources=resources(), gpus=self._watch.now())
        if self._echo is not None:
            report = msgspec.structs.replace(report, address=self._echo.address)
        if now_s - self._told_at >= self._pace.heartbeat_s or is_news(report, self._last):
            self._tell(report)
            self._told_at = now_s
        if now_s - self._measured_at >= self._pace.round_trips_s:
            self._measured_at = now_s
            self._round_trips = self._measured()

    def _tell(self, report: MachineReport) -> None:
        round_trip_s = server_round_trip_s(self._client)
        told = msgspec.structs.replace(report, round_trip_s=round_trip_s, round_trips=self._round_trips)
        if not self._stopped.is_set():
            REPORTS.publish(self._client, told, keys=self._keys)
            self._last = told

    def _measured(self) -> dict[str, float]:
        """Round trips to some of the machines that answer echoes; what was known of others stays as long as they do."""
        known = machines(REPORTS.aged(self._client, keys=self._keys))
        addresses = answering(known, but=self._known.host)
        asked = random.sample(sorted(addresses), min(NEIGHBOURS, len(addresses)))
        found = round_trips(addresses[host] for host in asked)
        kept = {
            host: seconds
            for host, seconds in self._round_trips.items()
            if host in addresses and host not in asked
        }
        return kept | {host: found[addresses[host]] for host in asked if addresses[host] in found}


def _echo(address: str | None) -> Echo | None:
    if not address:
        return None
    try:
        return Echo(address)
    except ConfigurationError as error:
        log.warning("machine.echo", what="round trips to this machine are not measured", error=str(error))
        return None


class GpuReader:
    """NVIDIA's GPUs, else AMD's."""

    def __init__(self) -> None:
        self._nvml = Nvml()

    def __call__(self) -> Gpus:
        """What there is now; where there is none, why NVIDIA's library knows none."""
        found = self._nvml.read()
        if found.gpus:
            return found
        amd = amd_gpus()
        return amd if amd.gpus else found


class MachineStep(bootsteps.StartStopStep):  # type: ignore[misc, unused-ignore]
    """Announces the machine as long as the worker works."""

    requires = ("mosaic_tasks.execution.bootsteps:MosaicStep",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._announcer: Announcer | None = None

    def start(self, parent: Any) -> None:
        """After the worker has its incarnation, and its pool, so that no thread of ours is forked."""
        process = process_for(parent.app)
        known = MachineReport(
            host=socket.gethostname(),
            worker=str(parent.hostname),
            holder=process.holder,
            queues=tuple(parent.app.amqp.queues.consume_from),
            gpu_class=hosted_class(parent.app.steps["worker"]),
        )
        address = os.environ.get(ADDRESS_VARIABLE)
        self._announcer = Announcer(
            process.once, process.ledger.keys, known, read_gpus=GpuReader(), address=address
        )
        self._announcer.start()

    def stop(self, _parent: Any) -> None:
        """Before the worker says goodbye."""
        if self._announcer is not None:
            self._announcer.stop()
            self._announcer = None

    terminate = stop


def hosted_class(steps: Sequence[Any]) -> str:
    """The GPU class that a worker was started for: that of the step which hosts its models; without one `cpu`."""
    told = (getattr(step, "gpu_class", None) for step in steps)
    return next((each for each in told if each), CPU)


__all__ = [
    "ADDRESS_VARIABLE",
    "PACE",
    "Announcer",
    "GpuReader",
    "GpuWatch",
    "MachineStep",
    "Pace",
    "hosted_class",
]
