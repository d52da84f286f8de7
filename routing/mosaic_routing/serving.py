"""Which command starts a worker for a queue: pure, from its name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from mosaic_routing.queues import API_PREFIX, DIRECT_PREFIX, GPU_PREFIX, ROUTED

_HOSTED = re.compile(r"mosaic\.(?P<gpu_class>[a-z0-9-]+)\.(?P<model>.+)")
"""`mosaic.gpu.NAME` and `mosaic.CLASS.NAME`, of a model that a worker hosts."""


def worker_commands(queues: Sequence[str]) -> str:
    """The command that starts a worker for these queues; several, joined by "and", where one cannot serve them all."""
    plain = [queue for queue in queues if not hosted_model(queue)]
    commands = [f"mosaic worker --queues {','.join(plain)}"] if plain else []
    commands += [_hosting(queue) for queue in queues if hosted_model(queue)]
    return " and ".join(dict.fromkeys(commands))


def hosted_model(queue: str) -> str | None:
    """The alias of the model that a worker of this queue hosts; None: a worker of it hosts none."""
    found = None if queue.startswith((API_PREFIX, DIRECT_PREFIX)) else _HOSTED.fullmatch(queue)
    return found["model"] if found else None


def deployment_of(queues: Iterable[str], model: str) -> str | None:
    """As which deployment a worker of these queues hosts a model; None: it does not."""
    for queue in queues:
        if hosted_model(queue) == model and not queue.startswith(GPU_PREFIX):
            return f"{queue.split('.')[1]}/{model}"
    return None


def unhosted(queues: Iterable[str], hosting: Collection[str]) -> list[str]:
    """Of the queues of a worker, those whose calls would fail there, since it does not host their models.

    Args:
        hosting: the queues of the models that it hosts.
    """
    return [queue for queue in queues if hosted_model(queue) and queue not in hosting]


def untakable(queues: Iterable[str]) -> Iterator[str]:
    """Why nobody may name some of the queues of a worker, a sentence each."""
    for queue in queues:
        if queue == ROUTED:
            yield f"no worker takes from {ROUTED!r}, where calls wait for the router; leave it out"
        elif queue.startswith(DIRECT_PREFIX):
            yield f"{queue!r} belongs to one worker, which takes from it by itself; leave it out"


def _hosting(queue: str) -> str:
    found = _HOSTED.fullmatch(queue)
    assert found is not None
    gpu_class = "CLASS" if queue.startswith(GPU_PREFIX) else found["gpu_class"]
    return f"mosaic worker --class {gpu_class} --model SPEC (the model with the alias {found['model']!r})"


__all__ = ["deployment_of", "hosted_model", "unhosted", "untakable", "worker_commands"]
