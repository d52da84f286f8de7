"""How long calls wait and run in each queue, as the sweeper that leads saw it last: kept for whoever asks."""

from __future__ import annotations

from typing import cast

import msgspec
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_queues.queue_ages import QueueAges
from mosaic_tasks.observability.tallies import tallies_key

_EXPIRY_S = 15
"""What is older says nothing any more: nobody sweeps."""


def publish_ages(client: Redis, keys: Keys, ages: QueueAges) -> None:
    """Leaves what a sweep saw, instead of what the last one left."""
    client.set(_key(keys), msgspec.json.encode(ages), ex=_EXPIRY_S)


def ages_of(client: Redis, keys: Keys) -> QueueAges | None:
    """What the last sweep saw; None: nobody sweeps."""
    found = cast("bytes | None", client.get(_key(keys)))
    return msgspec.json.decode(found, type=QueueAges) if found else None


def _key(keys: Keys) -> str:
    return f"{tallies_key(keys)}:ages"


__all__ = ["ages_of", "publish_ages"]
