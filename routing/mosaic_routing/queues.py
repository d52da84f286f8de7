"""Which Celery queue serves a node: pure, from its kind and its model.

| node | queue |
|---|---|
| tool, Celery task | `mosaic.cpu` |
| agent without a model, or with the `extractive` engine | `mosaic.cpu` |
| agent with a model `PROVIDER:NAME`, such as `openai:gpt-5` | `mosaic.api.PROVIDER` |
| agent with a model `vllm:NAME`, or `simulated:NAME` | `mosaic.gpu.NAME`: every GPU class that hosts it |
| agent with a model `pool:NAME`, or with `requires` | `mosaic.routed`: the router picks the queue of each call |

A worker that hosts NAME on a GPU of class CLASS serves `mosaic.gpu.NAME` and `mosaic.CLASS.NAME`; a node may name the
second to have that class alone. The worker called W takes from `mosaic.direct.W` too, where the router sends what W
shall answer; others may take from there what waits.
"""

from __future__ import annotations

from typing import Literal

NodeKind = Literal["tool", "task", "agent"]

CPU = "mosaic.cpu"
"""Queue of everything that needs a processor only."""
API_PREFIX = "mosaic.api."
"""Followed by the provider's name: the queue of agents whose model answers over the network."""
GPU_PREFIX = "mosaic.gpu."
"""Followed by the model's name: the queue of agents whose model a GPU worker hosts."""
HOSTED = "vllm"
"""The engine that workers host themselves."""
HOSTED_ENGINES = frozenset({HOSTED, "simulated"})
"""With the one that only acts as if."""
POOL = "pool"
"""Stands where an engine stands in a model's name, `pool:NAME`: whichever deployment of it is best."""
ROUTED = "mosaic.routed"
"""No worker takes from this queue: its calls wait until the router has picked theirs."""
DIRECT_PREFIX = "mosaic.direct."
"""Followed by the name of a worker."""
EXTRACTIVE = "extractive"
"""The engine without a model."""


def provider_of(model: str | None) -> str:
    """The part of a model's name before the colon: `openai` of `openai:gpt-5`; `extractive` for None."""
    return (model or EXTRACTIVE).partition(":")[0]


def queue_for(kind: NodeKind, model: str | None = None) -> str:
    """The queue of a node that names none itself."""
    provider, _, name = (model or EXTRACTIVE).partition(":")
    if kind != "agent" or provider == EXTRACTIVE:
        return CPU
    if provider == POOL:
        return ROUTED
    return GPU_PREFIX + name if provider in HOSTED_ENGINES else API_PREFIX + provider


def direct_queue(worker: str) -> str:
    """The queue of one worker, by its name `NAME@HOST`."""
    return DIRECT_PREFIX + worker


def hosting_queues(gpu_class: str, model: str) -> list[str]:
    """The queues of a worker that hosts a model on a GPU of a class; `cpu` where it has none."""
    return [GPU_PREFIX + model, f"mosaic.{gpu_class}.{model}"]


__all__ = [
    "API_PREFIX",
    "CPU",
    "DIRECT_PREFIX",
    "EXTRACTIVE",
    "GPU_PREFIX",
    "HOSTED",
    "HOSTED_ENGINES",
    "POOL",
    "ROUTED",
    "NodeKind",
    "direct_queue",
    "hosting_queues",
    "provider_of",
    "queue_for",
]
