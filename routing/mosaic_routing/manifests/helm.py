"""A topology as values of the Helm chart in docker/helm: a Deployment for each group of workers."""

from __future__ import annotations

from typing import Any

from mosaic_queues.topology import Topology
from mosaic_routing.manifests.rendering import rendered
from mosaic_routing.manifests.services import METRICS_PORT, Service, contained, header
from mosaic_routing.pool import ModelPool

CLASS_LABEL = "mosaic-gpu-class"
"""Of the nodes of a cluster: which GPU class they have."""
_GPU = "nvidia.com/gpu"
_ASSUMED_SLOTS = 4
"""Of a worker that takes so many calls as its node has processors."""


def helm_values(topology: Topology, pool: ModelPool, *, topology_text: str, version: str) -> str:
    """The text of values.yaml.

    Args:
        topology_text: the topology as it was read, comments and all.
        version: of the images.

    Raises:
        ConfigurationError: a group has no name or no image that would do.
    """
    made = contained(topology, pool)
    text = rendered(
        "values.yaml.j2",
        services=made,
        selectors={service.name: _selector(service) for service in made},
        tolerations={service.name: _tolerations(service) for service in made},
        resources={service.name: _resources(service) for service in made},
        assumed_slots=_ASSUMED_SLOTS,
        metrics_port=METRICS_PORT,
        topology_text=topology_text,
        version=version,
    )
    return header("helm", file="docker/helm/mosaic-tasks/values.yaml") + text


def _selector(service: Service) -> dict[str, str]:
    return {CLASS_LABEL: service.group.gpu_class} if service.gpus else {}


def _tolerations(service: Service) -> list[dict[str, str]]:
    return [{"key": _GPU, "operator": "Exists", "effect": "NoSchedule"}] if service.gpus else []


def _resources(service: Service) -> dict[str, Any]:
    """A processor for each process of the pool, and what an engine takes beside its GPUs."""
    if service.gpus:
        gpus = {_GPU: service.gpus}
        return {
            "requests": {"cpu": str(4 * service.gpus), "memory": f"{32 * service.gpus}Gi", **gpus},
            "limits": {"memory": f"{64 * service.gpus}Gi", **gpus},
        }
    processes = (service.slots or _ASSUMED_SLOTS) if service.group.pool == "prefork" else 1
    return {
        "requests": {"cpu": str(processes), "memory": f"{256 * (processes + 1)}Mi"},
        "limits": {"memory": f"{1024 * (processes + 1)}Mi"},
    }


__all__ = ["CLASS_LABEL", "helm_values"]
