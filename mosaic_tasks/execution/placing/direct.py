"""The queue of one worker alone: where the router sends what that worker shall answer, and others take what waits.

It is entered in an index when its worker starts, and deleted when it ends; of a worker that died, others delete it. The
calls whose messages lie in it are ready in the ledger, so nothing is lost: the sweeper has them placed anew.
"""

from __future__ import annotations

from typing import cast

import structlog
from redis.exceptions import RedisError

from mosaic_queues.broker import delete_queue, move_messages
from mosaic_queues.liveness import live_processes
from mosaic_routing.hedging import steal
from mosaic_routing.queues import direct_queue
from mosaic_routing.router import ADAPTIVE
from mosaic_routing.targets import Target
from mosaic_tasks.execution.placing.fleets import Fleets
from mosaic_tasks.execution.process import Process

log = structlog.get_logger(__name__)

KEEP_S = 7 * 86_400
"""The index is kept for so long after the last worker that entered it, or looked for those that died."""


class DirectQueue:
    """That of this worker."""

    def __init__(self, process: Process) -> None:
        self.name = direct_queue(process.facts.hostname)
        self._process = process
        self._fleets = Fleets(process.client, process.ledger.keys, process.guards)

    def enter(self) -> None:
        """Tells others that it may have to be deleted one day."""
        index = _index(self._process)
        with self._process.client.pipeline(transaction=False) as pipe:
            pipe.sadd(index, self.name)
            pipe.expire(index, KEEP_S)
            pipe.execute()

    def leave(self) -> None:
        """Deletes it; what waits in it is placed anew.

        It stays in the index, since somebody who has not heard may still send something: the next upkeep deletes that.
        """
        _delete(self._process, self.name)

    def take_waiting(self, deployment: str, *, most: int) -> int:
        """Takes messages from the worker whose calls would be done sooner here; returns how many.

        Args:
            deployment: that this worker hosts.
            most: how many calls it has room for.
        """
        if self._process.settings.routing_policy != ADAPTIVE.name:
            return 0  # a plain policy leaves a call where it sent it
        fleet = self._fleets.now()
        me = fleet.find(f"{deployment}@{self._process.facts.hostname}")
        fuller = steal(me, fleet.targets) if me is not None else None
        if fuller is None:
            return 0
        moved = move_messages(self._process.app, fuller.queue, self.name, most=min(most, _waiting(fuller)))
        if moved:
            log.info("direct.taken", what="calls that waited elsewhere", source=fuller.queue, messages=moved)
        return moved


def delete_deserted(process: Process) -> None:
    """Deletes the queues of workers that died, and keeps the index for those that live.

    A worker is announced before it enters its queue, so the index is read first: what it names is served, or deserted.
    """
    entered = cast("set[bytes]", process.client.smembers(_index(process)))
    alive = live_processes(process.client, process.ledger.keys)
    for name in entered - {queue.encode() for each in alive for queue in each.queues}:
        if _delete(process, queue := name.decode()):
            process.client.srem(_index(process), queue)
    process.client.expire(_index(process), KEEP_S)


def _delete(process: Process, queue: str) -> bool:
    try:
        delete_queue(process.app, queue)
    except (RedisError, OSError) as error:
        log.info("direct.left", what="its queue is deleted by others", queue=queue, error=str(error))
        return False
    return True


def _waiting(target: Target) -> int:
    return max(target.active - target.slots, 1)


def _index(process: Process) -> str:
    """Set of the direct queues that there may be."""
    return f"{process.ledger.keys.namespace}:direct"


__all__ = ["DirectQueue", "delete_deserted"]
