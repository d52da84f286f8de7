"""Which workers a deployment has and which queues they serve: read from one file, by everything that needs to know.

The file is `queues/topology.yaml`, or what MOSAIC_TOPOLOGY names; its comments tell what may stand there. Names of GPU
classes and models mean nothing here; `mosaic_routing` checks them against what it knows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mosaic_queues.documents import read_model
from mosaic_queues.errors import ConfigurationError
from mosaic_queues.settings import settings

LEAST_URGENT = 9
"""The last level of priority; 0 is the first."""
_NAME = r"^[a-z0-9][a-z0-9.-]*$"
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]*")

Pool = Literal["prefork", "solo", "threads", "async"]


class WorkerGroup(BaseModel):
    """Equal workers.

    Attributes:
        gpu_class: of their machines; `class` in the file.
        models: of the model pool; each of the workers hosts all of them.
        gpus: GPUs of one worker.
        concurrency: calls at once of one worker.
        options: arguments of the engine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: str = Field(pattern=_NAME, max_length=63)
    gpu_class: str = Field(alias="class", pattern=_NAME)
    queues: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    gpus: int = Field(default=0, ge=0)
    pool: Pool = "prefork"
    concurrency: int | None = Field(default=None, ge=1)
    replicas: int = Field(default=1, ge=0)
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("queues")
    @classmethod
    def _are_names(cls, queues: tuple[str, ...]) -> tuple[str, ...]:
        for queue in queues:
            if not _QUEUE.fullmatch(queue):
                raise ValueError(f"{queue!r} is no name of a queue; use letters, digits and . _ : @ -")
        return queues

    @model_validator(mode="before")
    @classmethod
    def _pool_of_models(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("models"):
            return {"pool": "async", **value}
        return value

    @model_validator(mode="after")
    def _fits(self) -> WorkerGroup:
        if not (self.queues or self.models):
            raise ValueError(f"the group {self.name!r} serves nothing; give it queues or models")
        if self.models and self.pool != "async":
            raise ValueError(
                f"the group {self.name!r} hosts models, which needs the pool async, not {self.pool}"
            )
        if self.options and not self.models:
            raise ValueError(f"the group {self.name!r} has options of an engine, and hosts no model")
        if self.gpus and self.gpu_class == "cpu":
            raise ValueError(f"the group {self.name!r} has GPUs and the class cpu; name their class")
        return self


class Topology(BaseModel):
    """A deployment's workers, queues and priorities."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1]
    priorities: dict[str, int] = Field(default_factory=lambda: {"default": 5})
    dead_letter: str = "mosaic.dead"
    workers: tuple[WorkerGroup, ...] = Field(min_length=1)

    @field_validator("priorities")
    @classmethod
    def _are_levels(cls, priorities: dict[str, int]) -> dict[str, int]:
        for name, level in priorities.items():
            if not 0 <= level <= LEAST_URGENT:
                raise ValueError(f"the priority {name!r} is {level}, and levels go from 0 to {LEAST_URGENT}")
        return priorities

    @model_validator(mode="after")
    def _fits(self) -> Topology:
        counted = Counter(group.name for group in self.workers)
        if twice := [name for name, count in counted.items() if count > 1]:
            raise ValueError(f"two groups of workers are called {twice[0]!r}; rename one")
        if any(self.dead_letter in group.queues for group in self.workers):
            raise ValueError(
                f"{self.dead_letter!r} is where messages go that nobody can work on; no worker may serve it"
            )
        return self

    def group(self, name: str) -> WorkerGroup:
        """The group of a name.

        Raises:
            ConfigurationError: there is none.
        """
        for group in self.workers:
            if group.name == name:
                return group
        raise ConfigurationError(
            f"no group of workers is called {name!r}; the topology has {', '.join(self.names())}"
        )

    def names(self) -> Iterator[str]:
        """Of the groups."""
        return (group.name for group in self.workers)

    def classes(self) -> set[str]:
        """The GPU classes of its workers."""
        return {group.gpu_class for group in self.workers}


def topology_path() -> Path:
    """The file that MOSAIC_TOPOLOGY names, or the one that comes with this package."""
    if (named := settings().topology) is not None:
        return named
    package = Path(__file__).parent
    packed = package / "topology.yaml"
    return packed if packed.exists() else package.parent / "topology.yaml"


def topology(path: Path | None = None) -> Topology:
    """The topology of this deployment; read again when its file has changed.

    Raises:
        ConfigurationError: it cannot be read or contradicts itself; names file, line and field.
    """
    path = path or topology_path()
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ConfigurationError(f"the topology {path} cannot be read: {error.strerror or error}") from None


@lru_cache(maxsize=8)
def _read(path: Path, _changed_ns: int) -> Topology:
    return read_model(path, Topology, kind="topology")


__all__ = ["LEAST_URGENT", "Pool", "Topology", "WorkerGroup", "topology", "topology_path"]
