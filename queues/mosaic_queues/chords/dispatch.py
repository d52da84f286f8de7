"""Takes a join further, and dispatches the body of one that is complete: publishes it, or calls its errbacks."""

from __future__ import annotations

from typing import Any, cast

import structlog
from celery import states
from celery.app.task import Context
from celery.canvas import Signature, maybe_signature
from celery.exceptions import ChordError
from kombu.exceptions import OperationalError

from mosaic_queues.chords.base import ChordBackend
from mosaic_queues.chords.joins import Join, Record, new_token
from mosaic_queues.chords.publishing import publishing
from mosaic_queues.chords.results import in_place, in_shape
from mosaic_queues.connection import server_ms
from mosaic_queues.settings import settings

log = structlog.get_logger(__name__)


def advance(backend: ChordBackend, group_id: str, **step: Any) -> int:
    """Takes a step of a join (`Chords.advance`); if that completes it, dispatches its body."""
    token = new_token()
    answer = cast(int, backend.ensure(lambda: backend.chords.advance(group_id, token=token, **step), ()))
    if answer == 1:
        grace_ms = int(settings().outbox_grace_s * 1000)
        backend.chords.look_again(group_id, server_ms(backend.client) + grace_ms)
        dispatch(backend, group_id, token)
    return answer


def dispatch(backend: ChordBackend, group_id: str, token: str) -> None:
    """Publishes the body of a complete join, or calls its errbacks, while `token` has the lease."""
    join = backend.chords.read(group_id)
    if join is None:
        return
    body = maybe_signature(backend.unpacked(join.body), app=backend.app)
    body.options.pop("quorum", None)
    records: list[Record] = []
    try:
        results = _results(backend, group_id, join)
        if not backend.chords.lease(group_id, seen=token, token=token):
            return
        with publishing.body_of(group_id) as records:
            backend.app.amqp._retry_publish(body.delay, results)
    except ChordError as error:
        _fail_body(backend, body, error)
    except (OperationalError, *backend.connection_errors) as error:
        log.warning(
            "chord.down",
            what="broker does not answer, the body is published later",
            chord=group_id,
            error=str(error),
        )
        return
    except Exception as error:  # noqa: BLE001  as Celery: whatever it is, the body's errback gets it
        records = []
        _fail_body(backend, body, ChordError(f"Callback error: {error!r}"))
    backend.chords.sent(group_id, token=token, records=records)


def _fail_body(backend: ChordBackend, body: Signature, error: ChordError) -> None:
    log.warning("chord.failed", what="chord failed", body=body.task, error=str(error))
    backend.chord_error_from_stack(body, error)
    outer = body.options.get("chord")
    if outer:
        request = Context(
            {**body.options, "task": body.task, "id": body.id, "group": body.options.get("group_id")}
        )
        backend.on_chord_part_return(request, states.FAILURE, error)


def _results(backend: ChordBackend, group_id: str, join: Join) -> list[Any]:
    """What the body gets.

    Raises:
        ChordError: a header failed, and no quorum makes up for it.
    """
    parts = backend.chords.parts(group_id)
    has_quorum = 0 < join.quorum <= sum(part.ok for part in parts)
    if has_quorum:
        parts = [part for part in parts if part.ok]
    values = [backend._unpack_chord_result(part.payload, backend.decode) for part in parts]
    if join.shape:
        by_id = {part.task_id: value for part, value in zip(parts, values, strict=True)}
        return in_shape(join.shape, by_id)
    return in_place(parts, values, join.size) if has_quorum else values
