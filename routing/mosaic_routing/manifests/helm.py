"""A topology as values of the Helm chart in docker/helm: a Deployment for each group of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from mosaic_queues.errors import ConfigurationError
from mosaic_queues.topology import Topology
from mosaic_routing.manifests.rendering import rendered
from mosaic_routing.manifests.services import (
    BEAT,
    BEAT_PROBE,
    GATEWAY_PORT,
    METRICS_PORT,
    Service,
    contained,
    header,
)
from mosaic_routing.pool import ModelPool

_CLASS_LABEL = "mosaic-gpu-class"
"""Of the nodes of a cluster: which GPU class they have."""
_GPU = "nvidia.com/gpu"
_OTHERS = ("beat", "gateway", "metrics")
"""What the chart has Deployments of beside the groups."""
_PROCESSES = 4
"""Of a worker whose group says no concurrency: its node may have far more processors than its pod may use."""


def helm_values(topology: Topology, pool: ModelPool, *, version: str) -> str:
    """The text of values.yaml.

    Args:
        version: of the images.

    Raises:
        ConfigurationError: as `contained`, or a group has the name of something else in the chart.
    """
    made = contained(topology, pool)
    _refuse_names(made)
    text = rendered(
        "values.yaml.j2",
        services=made,
        words={service.name: _words(service) for service in made},
        selectors={service.name: _selector(service) for service in made},
        tolerations={service.name: _tolerations(service) for service in made},
        resources={service.name: _resources(service) for service in made},
        processes=_PROCESSES,
        metrics_port=METRICS_PORT,
        gateway_port=GATEWAY_PORT,
        beat=BEAT,
        beat_probe=BEAT_PROBE,
        topology=yaml.safe_dump(_said(topology), sort_keys=False),
        version=version,
    )
    return header("helm", file="docker/helm/mosaic-tasks/values.yaml") + text


def _said(topology: Topology) -> dict[str, Any]:
    """The topology as its file says it, which lies in the cluster for the workers."""
    return topology.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _refuse_names(made: Sequence[Service]) -> None:
    for service in made:
        if service.name in _OTHERS:
            raise ConfigurationError(
                f"the group {service.group.name!r} would have the name of the chart's own Deployment {service.name!r}; "
                "rename it"
            )


def _words(service: Service) -> list[str]:
    words = list(service.words)
    return words if service.slots else [*words, "--concurrency", str(_PROCESSES)]


def _selector(service: Service) -> dict[str, str]:
    return {_CLASS_LABEL: service.group.gpu_class} if service.gpus else {}


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
    processes = (service.slots or _PROCESSES) if service.group.pool == "prefork" else 1
    return {
        "requests": {"cpu": str(processes), "memory": f"{256 * (processes + 1)}Mi"},
        "limits": {"memory": f"{1024 * (processes + 1)}Mi"},
    }


__all__ = ["helm_values"]
