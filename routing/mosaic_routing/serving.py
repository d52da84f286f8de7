"""Which command starts a worker for a queue: pure, from its name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mosaic_routing.queues import API_PREFIX, GPU_PREFIX

_HOSTED = re.compile(r"mosaic\.(?P<gpu_class>[a-z0-9-]+)\.(?P<model>.+)")
"""`mosaic.gpu.NAME` and `mosaic.CLASS.NAME`, of a model that a worker hosts."""


def worker_commands(queues: Sequence[str]) -> str:
    """The command that starts a worker for these queues; several, joined by "and", where one cannot serve them all."""
    plain = [queue for queue in queues if not _is_hosted(queue)]
    commands = [f"mosaic worker --queues {','.join(plain)}"] if plain else []
    commands += [_hosting(queue) for queue in queues if _is_hosted(queue)]
    return " and ".join(dict.fromkeys(commands))


def _is_hosted(queue: str) -> bool:
    return not queue.startswith(API_PREFIX) and _HOSTED.fullmatch(queue) is not None


def _hosting(queue: str) -> str:
    found = _HOSTED.fullmatch(queue)
    assert found is not None
    gpu_class = "CLASS" if queue.startswith(GPU_PREFIX) else found["gpu_class"]
    return f"mosaic worker --gpu {gpu_class} --model SPEC (the model with the alias {found['model']!r})"


__all__ = ["worker_commands"]
