"""A topology as a Procfile, for honcho and its kind: a line a worker, and one for what sends by schedule."""

from __future__ import annotations

from collections.abc import Iterator

from mosaic_queues.topology import Topology
from mosaic_routing.manifests.services import BEAT, command_line, header, services
from mosaic_routing.pool import ModelPool


def procfile(topology: Topology, pool: ModelPool) -> str:
    """The text of the Procfile.

    Raises:
        ConfigurationError: the topology contradicts itself or the model pool, or two groups would have one name.
    """
    return header("procfile", file="Procfile") + "".join(f"{line}\n" for line in _lines(topology, pool))


def _lines(topology: Topology, pool: ModelPool) -> Iterator[str]:
    for service in services(topology, pool):
        for number in range(1, service.group.replicas + 1):
            yield f"{service.name}-{number}: {command_line(service.words)}"
    yield f"beat: {' '.join(BEAT)}"


__all__ = ["procfile"]
