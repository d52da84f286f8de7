"""The worker's side of chords: its main process claims the tasks that it receives, is alive, and sweeps."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, cast

import structlog
from celery import Celery, signals, states
from redis.exceptions import RedisError

from mosaic_queues.chords.base import ChordBackend
from mosaic_queues.chords.joins import Order, Slot
from mosaic_queues.chords.mending import Mender
from mosaic_queues.chords.messages import BODY_STAMP, STAMP, slot_of_body
from mosaic_queues.chords.recovery import ChordRecovery
from mosaic_queues.keys import Keys
from mosaic_queues.liveness import join_liveness
from mosaic_queues.settings import settings
from mosaic_queues.sweeper import start_sweeping

log = structlog.get_logger(__name__)


class _Side:
    """A worker's main process as the holder of chord tasks; shares liveness and sweeper with the runs' side."""

    def __init__(self, backend: ChordBackend) -> None:
        self.liveness = join_liveness(
            backend.client, Keys(settings().namespace), expiry_s=settings().liveness_s
        )
        self._sweeping = start_sweeping(
            chord_recovery(backend), namespace=settings().namespace, pause_s=settings().sweep_s
        )

    def stop(self) -> None:
        """Leaves both, which end when nobody else needs them."""
        self._sweeping.stop()
        self.liveness.leave()


def chord_recovery(backend: ChordBackend) -> ChordRecovery:
    """Recovers the backend's chords, with the limits of this process's settings."""
    return ChordRecovery(
        backend.chords,
        mender=Mender(backend),
        app=backend.app,
        keys=Keys(settings().namespace),
        grace_s=settings().outbox_grace_s,
        max_losses=settings().max_losses,
    )


_sides: weakref.WeakKeyDictionary[Celery, _Side] = weakref.WeakKeyDictionary()


def _side(app: Celery) -> _Side | None:
    found = _sides.get(app)
    backend = app.backend
    if found is None and isinstance(backend, ChordBackend):
        found = _sides[app] = _Side(backend)
    return found


def _on_worker_start(sender: Any, **_signal: Any) -> None:
    _side(sender.app)


def _on_worker_shutdown(sender: Any, **_signal: Any) -> None:
    side = _sides.pop(sender.app, None)
    if side is not None:
        side.stop()


def _on_received(request: Any, **_signal: Any) -> None:
    """A worker's main process received a message: it holds it from now on."""
    headers = request.request_dict
    stamp, body_group = headers.get(STAMP), headers.get(BODY_STAMP)
    side = _side(request.app) if stamp or body_group else None
    if side is None:
        return
    backend = request.app.backend
    try:
        if body_group:
            backend.chords.body_received(body_group, slot_of_body(request.id))
        else:
            group_id, slot, order = stamp
            backend.chords.claim(group_id, slot, _claimed(request, order, side.liveness.name))
    except RedisError as error:
        log.warning("chord.claim", what="cannot claim", task=request.id, error=str(error))


def _claimed(request: Any, order: Sequence[int], holder: str) -> Slot:
    return Slot(
        order=cast(Order, tuple(order)),
        status="c",
        queue=request.delivery_info.get("routing_key") or "",
        at_ms=0,
        holder=holder,
        tag=str(request.message.delivery_tag or ""),
        losses=0,
        acks_late=bool(request.task.acks_late),
        task_id=request.id,
    )


def _on_postrun(task: Any, state: str | None, **_signal: Any) -> None:
    """A task that ended without a result (replaced, ignored) is watched no longer; what it published is."""
    backend = task.app.backend
    if state == states.IGNORED and isinstance(backend, ChordBackend):
        Mender(backend).forget(task.request)


signals.worker_ready.connect(_on_worker_start, weak=False)
signals.worker_shutdown.connect(_on_worker_shutdown, weak=False)
signals.task_received.connect(_on_received, weak=False)
signals.task_postrun.connect(_on_postrun, weak=False)
