"""A Celery result backend whose chords survive dead workers and lost messages: `result_backend="mosaic+redis://host"`.

It is Celery's Redis backend with another join (`joins`). Importing it connects Celery's signals, so that an ordinary
app needs nothing but the setting: publishers note the messages of chords (`publishing`); a worker's main process
claims what it receives, is alive and sweeps (`worker`). (A worker started with `celery -q` loads no result backend by
itself: its app must then import this module.)

The lease on a complete join lets one process dispatch the body. If that one dies after publishing and before it
recorded so, the body is published again with the same task ids, and an errback is called again, in that case only.

A quorum, `body.set(quorum=3)`, runs the body as soon as three headers succeeded. It gets a list as long as the
header, with None where a header failed or was too late.
"""

from __future__ import annotations

from typing import Any

import structlog
from celery import states
from celery.app.task import Context
from celery.canvas import Signature, maybe_signature
from celery.exceptions import WorkerLostError

from mosaic_queues.chords import worker  # noqa: F401  connects the worker's signals
from mosaic_queues.chords.base import ChordBackend
from mosaic_queues.chords.dispatch import advance
from mosaic_queues.chords.joins import HeaderPart
from mosaic_queues.chords.mending import Mender
from mosaic_queues.chords.messages import slot_of
from mosaic_queues.chords.publishing import publishing
from mosaic_queues.chords.results import shape_of

__all__ = ["LedgerBackend"]

log = structlog.get_logger(__name__)


class LedgerBackend(ChordBackend):
    """Celery's Redis backend with joins that are idempotent per header, growable, quorum-aware and mended."""

    def apply_chord(self, header_result_args: tuple[str, Any], body: Signature, **_options: Any) -> None:
        """Opens the join, before the header is published."""
        group_id, results = header_result_args
        publishing.open(self, group_id)
        self.chords.open(
            group_id,
            body=self.packed(body),
            shape=shape_of(results),
            quorum=int(body.options.get("quorum") or 0),
            expire_s=int(self.chord_expires or 0),
            look_ms=0,
        )

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Seals the join that this thread opened; Celery also sets the size of groups that are no header."""
        records = publishing.close(group_id)
        if records is not None:
            advance(self, group_id, records=records, size=chord_size)

    def add_to_chord(self, group_id: str, _result: object) -> None:
        """Makes the join larger by one."""
        advance(self, group_id, grow=1)

    def on_chord_part_return(self, request: Context, state: str, result: Any, **_kwargs: Any) -> None:
        """Counts a finished header and dispatches the body after the last one."""
        if not request.group or not request.id:
            return
        payload = self.encode([1, request.id, state, self.encode_result(result, state)])
        if isinstance(payload, str):
            payload = payload.encode()
        part = HeaderPart(request.group_index, request.id, state not in states.EXCEPTION_STATES, payload)
        if advance(self, request.group, part=(slot_of(request.id, request.group_index), part)) < 0:
            log.info(
                "chord.unknown",
                what="no such chord: a late copy of a header, or its publisher has another result backend",
                chord=request.group,
                task=request.id,
            )

    def mark_as_done(
        self, task_id: str, result: Any, request: Context | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """Stores a result and counts it."""
        super().mark_as_done(task_id, result, request, *args, **kwargs)
        chain = request.chain if request else None
        if chain and maybe_signature(chain[-1], app=self.app).subtask_type in ("chord", "group"):
            Mender(self).forget(request)

    def mark_as_failure(
        self, task_id: str, exc: BaseException, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> None:
        """Stores an error and counts it; a header that may run again does so when its process was killed."""
        if not (isinstance(exc, WorkerLostError) and Mender(self).runs_again(request)):
            super().mark_as_failure(task_id, exc, traceback, request, **kwargs)
