"""A topology as a compose file: its workers, a server, beat, Flower, and what shows the figures of all of them."""

from __future__ import annotations

from typing import NamedTuple

from mosaic_queues.topology import Topology
from mosaic_routing.manifests.rendering import rendered
from mosaic_routing.manifests.services import (
    BEAT,
    BEAT_PROBE,
    GATEWAY_PORT,
    METRICS_PORT,
    MODELS_PATH,
    TOPOLOGY_PATH,
    WORKFLOWS_PATH,
    contained,
    header,
)
from mosaic_routing.pool import ModelPool

_DOCKERFILES = {"cpu": "Dockerfile", "gpu": "gpu.Dockerfile"}
_TARGETS = {"cpu": "worker", "gpu": "gpu"}
_CONFIGS = {
    "prometheus": "prometheus.yml",
    "prometheus-alerts": "alerts.yml",
    "grafana-datasources": "grafana/datasources.yaml",
    "grafana-dashboards": "grafana/dashboards.yaml",
    "grafana-dashboard": "grafana/mosaic.json",
}
"""Files beside the compose file, by the name of their config."""


class Files(NamedTuple):
    """Where things are, as the compose file names them: relative to its own folder.

    Attributes:
        root: of the sources, which images are built from.
    """

    topology: str
    models: str
    root: str = ".."


def compose(topology: Topology, pool: ModelPool, *, files: Files) -> str:
    """The text of the compose file.

    Raises:
        ConfigurationError: as `contained`.
    """
    text = rendered(
        "compose.yaml.j2",
        services=contained(topology, pool),
        file="docker/compose.yaml",
        context=files.root,
        docker=f"{files.root}/docker/",
        dockerfiles=_DOCKERFILES,
        targets=_TARGETS,
        configs=_CONFIGS,
        topology_file=files.topology,
        models_file=files.models,
        topology_path=TOPOLOGY_PATH,
        models_path=MODELS_PATH,
        metrics_port=METRICS_PORT,
        gateway_port=GATEWAY_PORT,
        workflows_path=WORKFLOWS_PATH,
        beat=BEAT,
        beat_probe=BEAT_PROBE,
    )
    return header("compose", file="docker/compose.yaml") + text


__all__ = ["Files", "compose"]
