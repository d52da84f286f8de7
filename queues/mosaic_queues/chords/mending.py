"""What recovery does to a task of a chord: sends it again, counts it, fails it, or forgets it."""

from __future__ import annotations

from celery import states
from celery.app.task import Context
from celery.exceptions import WorkerLostError

from mosaic_queues.chords.base import ChordBackend
from mosaic_queues.chords.dispatch import dispatch
from mosaic_queues.chords.joins import decode_slot
from mosaic_queues.chords.messages import decoded, is_body, request_of, request_of_slot, stamp_of
from mosaic_queues.connection import server_ms
from mosaic_queues.settings import settings


class Mender:
    """Acts on the tasks of an app's chords."""

    def __init__(self, backend: ChordBackend) -> None:
        self._backend = backend

    def dispatch(self, group_id: str, token: str) -> None:
        """Publishes the body of a complete join."""
        dispatch(self._backend, group_id, token)

    def resend(self, message: bytes) -> None:
        """Publishes a noted message again."""
        noted, app = decoded(message), self._backend.app
        with app.producer_pool.acquire(block=True) as producer:
            producer.publish(
                noted.data,
                content_type=noted.content_type,
                content_encoding=noted.content_encoding,
                headers=noted.headers,
                exchange=noted.exchange,
                routing_key=noted.routing_key,
                retry=True,
                retry_policy=app.conf.task_publish_retry_policy,
                **noted.properties,
            )

    def settle(self, group_id: str, slot: str, message: bytes | None) -> bool:
        """Counts the header (strikes off the body) whose success is stored although nobody counted it."""
        if message is None:
            return False
        request = request_of(message, accept=self._backend.accepted())
        meta = self._backend.get_task_meta(request.id, cache=False)
        if meta["status"] != states.SUCCESS:
            return False
        if is_body(slot):
            self._backend.chords.body_received(group_id, slot)
        elif request.chord:
            self._backend.on_chord_part_return(request, states.SUCCESS, meta["result"])
        else:
            return False
        return True

    def fail(self, group_id: str, slot: str, message: bytes | None) -> None:
        """Records a header as failed, since its worker died."""
        accept = self._backend.accepted()
        request = request_of(message, accept=accept) if message else request_of_slot(group_id, slot)
        error = WorkerLostError(f"the worker that ran {request.id} of chord {group_id} died")
        store_result = not request.ignore_result
        ChordBackend.mark_as_failure(  # not the backend's own, which would send the header again
            self._backend, request.id, error, request=request, store_result=store_result
        )

    def runs_again(self, request: Context | None) -> bool:
        """Sends a killed header again, if its task may run twice and has not been lost too often."""
        stamp = stamp_of(request)
        if stamp is None:
            return False
        group_id, slot, order = stamp
        chords = self._backend.chords
        raw, message = chords.slot(group_id, slot), chords.message(group_id, slot)
        if raw is None or message is None:
            return False
        seen = decode_slot(raw)
        if seen.order != order or not seen.acks_late or seen.losses >= settings().max_losses:
            return False
        new = seen.waiting(since_ms=server_ms(self._backend.client), lost=True)
        if chords.change(group_id, slot, raw, new):
            self.resend(message)
        return True

    def forget(self, request: Context) -> None:
        """The task is over, its part comes from what it published: a replacement, a nested chord."""
        stamp = stamp_of(request)
        chords = self._backend.chords
        raw = chords.slot(stamp.group_id, stamp.slot) if stamp else None
        if stamp and raw and decode_slot(raw).order == stamp.order:
            chords.change(stamp.group_id, stamp.slot, raw, None)
