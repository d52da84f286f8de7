"""What of a worker group every manifest needs: a name that all of them take, its command, its image and its GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, NamedTuple

from mosaic_queues.errors import ConfigurationError
from mosaic_queues.topology import Topology, WorkerGroup
from mosaic_routing.classes import CPU, gpu_class
from mosaic_routing.pool import ModelPool
from mosaic_routing.queues import API_PREFIX, hosting_queues

Image = Literal["cpu", "gpu"]

TOPOLOGY_PATH = "/etc/mosaic/topology.yaml"
"""Where workers in containers find the topology."""
MODELS_PATH = "/etc/mosaic/models.yaml"
"""Where workers in containers find the model pool."""
METRICS_PORT = 9464
"""Of `mosaic metrics`."""
_ASYNC_SLOTS = 256
"""Of a worker with the async pool whose group says no concurrency."""


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
        ConfigurationError: two groups would have one name, or the model pool lacks a model.
    """
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
        queues=tuple(dict.fromkeys((*group.queues, *_hosted_queues(group)))),
        gpus=_gpus(group, pool),
        asks_providers=any(queue.startswith(API_PREFIX) for queue in group.queues),
        slots=group.concurrency or (_ASYNC_SLOTS if group.pool == "async" else None),
    )


def _hosted_queues(group: WorkerGroup) -> list[str]:
    return [queue for model in group.models for queue in hosting_queues(group.gpu_class, model)]


def _gpus(group: WorkerGroup, pool: ModelPool) -> int:
    """What the group says, else what its largest model is spread over."""
    if group.gpus or group.gpu_class == CPU:
        return group.gpus
    return max((_tensor_parallel(pool, model, group.gpu_class) for model in group.models), default=0)


def _tensor_parallel(pool: ModelPool, model: str, gpu_class: str) -> int:
    hosting = pool.model(model).hosting
    place = hosting.classes.get(gpu_class) if hosting else None
    return place.tensor_parallel if place else 1


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
