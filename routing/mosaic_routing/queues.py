"""Which Celery queue serves a node: pure, from its kind and its model.

| node | queue |
|---|---|
| tool, Celery task | `mosaic.cpu` |
| agent without a model, or with the `extractive` engine | `mosaic.cpu` |
| agent with a model `PROVIDER:NAME`, such as `openai:gpt-5` | `mosaic.api.PROVIDER` |
"""

from __future__ import annotations

from typing import Literal

NodeKind = Literal["tool", "task", "agent"]

CPU = "mosaic.cpu"
"""Queue of everything that needs a processor only."""
API_PREFIX = "mosaic.api."
"""Followed by the provider's name: the queue of agents whose model answers over the network."""
EXTRACTIVE = "extractive"
"""The engine without a model."""


def provider_of(model: str | None) -> str:
    """The part of a model's name before the colon: `openai` of `openai:gpt-5`; `extractive` for None."""
    return (model or EXTRACTIVE).partition(":")[0]


def queue_for(kind: NodeKind, model: str | None = None) -> str:
    """The queue of a node that names none itself."""
    provider = provider_of(model)
    return CPU if kind != "agent" or provider == EXTRACTIVE else API_PREFIX + provider


__all__ = ["API_PREFIX", "CPU", "EXTRACTIVE", "NodeKind", "provider_of", "queue_for"]
