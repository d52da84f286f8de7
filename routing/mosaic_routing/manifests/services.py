"""What every manifest needs: of a worker group a name that all of them take, its command, its image and its GPUs; and
what runs once in a deployment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, NamedTuple

from mosaic_queues.errors import ConfigurationError
from mosaic_queues.topology import Topology, WorkerGroup
from mosaic_routing.classes import CPU, gpu_class
from mosaic_routing.deployment import check, gpus_of, queues_of
from mosaic_routing.pool import ModelPool
from mosaic_routing.queues import API_PREFIX

Image = Literal["cpu", "gpu"]

TOPOLOGY_PATH = "/etc/mosaic/topology.yaml"
"""Where workers in containers find the topology."""
MODELS_PATH = "/etc/mosaic/models.yaml"
"""Where workers in containers find the model pool."""
METRICS_PORT = 9464
"""Of `mosaic metrics`."""
GATEWAY_PORT = 8000
"""Of `mosaic serve`."""
WORKFLOWS_PATH = "/home/mosaic/workflows"
"""Where the gateway in a container finds what can be started."""
BEAT = ("celery", "-A", "mosaic_tasks.app", "beat", "--scheduler", "mosaic_tasks.scheduling.beat:Scheduler")
"""What starts the runs of schedules when they are due."""
BEAT_PROBE = (
    "python",
    "-c",
    "from mosaic_queues.connection import connect; from mosaic_tasks.app import app; "
    "raise SystemExit(not connect().exists(app.conf.redbeat_lock_key))",
)
"""Ends with 0 while a beat sends: of several one holds the lock, and the others wait for it."""
_SLOTS = {"async": 256, "solo": 1}
"""Of a worker whose group says no concurrency, by its pool."""


class Service(NamedTuple):
    """A worker group, as a manifest needs it.

    Attributes:
        name: of letters, digits and `-`, which Procfile, compose and Kubernetes all take.
        words: what follows `mosaic` on the command line of a worker.
        queues: that each of its workers takes from; its own direct queue comes to them.
        gpus: of one worker.
        asks_providers: it needs the keys of the providers whose queues it serves.
        slots: calls at once of one worker; None: one a processor.
    """

    group: WorkerGroup
    name: str
    words: tuple[str, ...]
    queues: tuple[str, ...]
    gpus: int
    asks_providers: bool
    slots: int | None

    @property
    def image(self) -> Image:
        """Which image a container of it runs."""
        return "gpu" if self.group.models else "cpu"


def services(topology: Topology, pool: ModelPool) -> list[Service]:
    """The services of a topology, in its order.

    Raises:
        ConfigurationError: it contradicts itself or the model pool, or two groups would have one name.
    """
    if wrong := check(topology, pool).contradictions:
        raise ConfigurationError(f"the topology cannot be deployed: {'; '.join(map(str, wrong))}")
    made = [_service(group, pool) for group in topology.workers]
    by_name: dict[str, Service] = {}
    for service in made:
        other = by_name.setdefault(service.name, service)
        if other is not service:
            raise ConfigurationError(
                f"the groups {other.group.name!r} and {service.group.name!r} would both be called {service.name!r} "
                "in manifests, where names have no dots; rename one"
            )
    return made


def contained(topology: Topology, pool: ModelPool) -> list[Service]:
    """The services of a topology whose workers run in containers.

    Raises:
        ConfigurationError: as `services`, or there is no image for a group.
    """
    made = services(topology, pool)
    for service in made:
        _refuse_without_image(service.group)
    return made


def header(kind: str, *, file: str) -> str:
    """The comment at the top of a generated file."""
    return f"# Generated from the topology by `mosaic manifests {kind} --out {file}`; do not edit.\n"


def _service(group: WorkerGroup, pool: ModelPool) -> Service:
    return Service(
        group=group,
        name=group.name.replace(".", "-").rstrip("-"),
        words=("worker", "--group", group.name),
        queues=queues_of(group),
        gpus=gpus_of(group, pool),
        asks_providers=any(queue.startswith(API_PREFIX) for queue in group.queues),
        slots=group.concurrency or _SLOTS.get(group.pool),
    )


def _refuse_without_image(group: WorkerGroup) -> None:
    """Images are for processors, and for models on NVIDIA's GPUs."""
    if not group.models:
        return
    known = gpu_class(group.gpu_class)
    if group.gpu_class == CPU or (known is not None and known.vendor != "nvidia"):
        raise ConfigurationError(
            f"there is no image for the group {group.name!r}, which hosts models on the class {group.gpu_class!r}: "
            "docker/gpu.Dockerfile is for NVIDIA GPUs; start it with the Procfile, or by hand: "
            f"mosaic worker --group {group.name}"
        )


def relative(path: os.PathLike[str], *, to: os.PathLike[str]) -> str:
    """A file as seen from a folder, as compose files name it."""
    seen = os.path.relpath(path, to).replace(os.sep, "/")
    return seen if seen.startswith(".") else f"./{seen}"


def command_line(words: Sequence[str]) -> str:
    """Words behind `mosaic` as one line."""
    return " ".join(("mosaic", *words))


__all__ = [
    "BEAT",
    "BEAT_PROBE",
    "METRICS_PORT",
    "MODELS_PATH",
    "TOPOLOGY_PATH",
    "Image",
    "Service",
    "command_line",
    "contained",
    "header",
    "relative",
    "services",
]
