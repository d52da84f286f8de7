"""Which workers a deployment has and which queues they serve: read from one file, by everything that needs to know.

The file is `queues/topology.yaml`, or what MOSAIC_TOPOLOGY names; its comments tell what may stand there. Names of GPU
classes and models mean nothing here; `mosaic_routing` checks them against what it knows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationInfo, field_validator, model_validator

from mosaic_queues.documents import read_model
from mosaic_queues.errors import ConfigurationError, InputError
from mosaic_queues.settings import settings

MOST_URGENT, LEAST_URGENT = 0, 9
"""The first and the last level of priority."""
LEVELS = tuple(range(MOST_URGENT, LEAST_URGENT + 1))
"""A worker takes a message of a lower level first, always, and within a level the oldest."""
DEFAULT = "default"
"""The name of the level of what names none."""
_NAME = r"^[a-z0-9][a-z0-9.-]*$"
_CLASS = r"^[a-z0-9][a-z0-9-]*$"
_LEVEL_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]*")

Pool = Literal["prefork", "solo", "threads", "async"]


class WorkerGroup(BaseModel):
    """Equal workers.

    Attributes:
        gpu_class: of their machines; `class` in the file.
        models: of the model pool; each of the workers hosts all of them.
        gpus: GPUs of one worker; 0: as many as its models need.
        concurrency: calls at once of one worker.
        options: arguments of the engine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: str = Field(pattern=_NAME, max_length=63)
    gpu_class: str = Field(alias="class", pattern=_CLASS)
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
            check_queue(queue)
        return queues

    @field_validator("queues", "models")
    @classmethod
    def _are_different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if twice := _twice(names):
            raise ValueError(f"{twice!r} is there twice; leave it out once")
        return names

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
    priorities: dict[str, StrictInt] = Field(
        default_factory=lambda: {DEFAULT: MOST_URGENT, "background": 5, "batch": LEAST_URGENT}
    )
    dead_letter: str = "mosaic.dead"
    workers: tuple[WorkerGroup, ...] = Field(min_length=1)

    @field_validator("priorities")
    @classmethod
    def _are_levels(cls, priorities: dict[str, int]) -> dict[str, int]:
        for name, level in priorities.items():
            if not _LEVEL_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a priority; begin with a small letter")
            if level not in LEVELS:
                raise ValueError(f"the priority {name!r} is {level}, and levels go from 0 to {LEAST_URGENT}")
        if priorities.get(DEFAULT, MOST_URGENT) != MOST_URGENT:
            raise ValueError(
                f"the priority {DEFAULT!r} is {priorities[DEFAULT]}, but what names none has {MOST_URGENT}; "
                "give that level another name"
            )
        return priorities

    @field_validator("dead_letter")
    @classmethod
    def _is_name(cls, queue: str) -> str:
        return check_queue(queue)

    @field_validator("workers")
    @classmethod
    def _fit(cls, groups: tuple[WorkerGroup, ...], info: ValidationInfo) -> tuple[WorkerGroup, ...]:
        if twice := _twice(group.name for group in groups):
            raise ValueError(f"two groups of workers are called {twice!r}; rename one")
        dead = info.data.get("dead_letter")
        if any(dead in group.queues for group in groups):
            raise ValueError(f"{dead!r} is where messages go that nobody can work on; no worker may serve it")
        return groups

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

    def level(self, priority: int | str) -> int:
        """The level that a number or a name stands for.

        Raises:
            InputError: neither is one.
        """
        named = self.priorities.get(priority) if isinstance(priority, str) else priority
        if type(named) is not int or named not in LEVELS:
            told = ", ".join(f"{name!r} ({level})" for name, level in self.priorities.items())
            raise InputError(
                f"{priority!r} is no priority; give a whole number from 0, the most urgent, to {LEAST_URGENT}, or a "
                f"name of the topology: {told or 'there are none'}"
            )
        return named

    def names(self) -> Iterator[str]:
        """Of the groups."""
        return (group.name for group in self.workers)

    def classes(self) -> set[str]:
        """The GPU classes of its workers."""
        return {group.gpu_class for group in self.workers}


def check_queue(name: str) -> str:
    """The name itself.

    Raises:
        ValueError: it is none that a queue can have.
    """
    if not _QUEUE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a queue; use letters, digits and . _ : @ -")
    return name


def level_of(priority: int | str) -> int:
    """The level of a priority: a number is one itself, a name stands in the topology.

    Raises:
        InputError: there is no such priority.
        ConfigurationError: the topology cannot be read.
    """
    if type(priority) is int and priority in LEVELS:
        return priority
    return topology().level(priority)


def _twice(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


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


__all__ = [
    "LEAST_URGENT",
    "LEVELS",
    "MOST_URGENT",
    "Pool",
    "Topology",
    "WorkerGroup",
    "level_of",
    "topology",
    "topology_path",
]
