"""The publisher's side of chords: notes each message of a chord as it is published, and stamps it for its worker."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import current_app, signals
from celery._state import get_current_worker_task

from mosaic_queues.chords.base import ChordBackend
from mosaic_queues.chords.joins import Record
from mosaic_queues.chords.messages import BODY_STAMP, STAMP, Place, encoded, place_of, slot_of_body

NOTES_A_TRIP = 100


class _Publishing(threading.local):
    """What this thread is publishing: headers of open joins, noted in bulk until sealed, and the body of one."""

    def __init__(self) -> None:
        self._owner: weakref.ref[ChordBackend] | None = None
        self._buffers: dict[str, list[Record]] = {}
        self.body_group: str | None = None
        self.body_records: list[Record] = []

    def open(self, backend: ChordBackend, group_id: str) -> None:
        """The headers of a join follow."""
        self._owner = weakref.ref(backend)
        while len(self._buffers) >= NOTES_A_TRIP:
            self._buffers.pop(next(iter(self._buffers)))
        self._buffers[group_id] = []

    def close(self, group_id: str) -> list[Record] | None:
        """The headers that are not noted yet; None when this thread did not open the join."""
        return self._buffers.pop(group_id, None)

    def backend(self) -> ChordBackend | None:
        """The backend of the app that publishes, when it is one of ours."""
        found = self._found()
        return found if isinstance(found, ChordBackend) else None

    def _found(self) -> Any:
        if task := get_current_worker_task():
            return task.app.backend
        if owner := self._owner and self._owner():
            return owner
        # Whoever publishes has read its configuration: an app that has not is another, which must not do so for this.
        return current_app.backend if current_app.configured else None

    def note(self, backend: ChordBackend, group_id: str, record: Record) -> None:
        """Notes a header, with others of its join when there are more to come."""
        if group_id not in self._buffers:
            backend.note(group_id, [record])
            return
        self._buffers[group_id].append(record)
        if len(self._buffers[group_id]) >= NOTES_A_TRIP:
            records, self._buffers[group_id] = self._buffers[group_id], []
            backend.note(group_id, records)

    @contextmanager
    def body_of(self, group_id: str) -> Iterator[list[Record]]:
        """What is published inside is the body of a join; gives its messages."""
        before = self.body_group, self.body_records
        self.body_group, self.body_records = group_id, []
        try:
            yield self.body_records
        finally:
            self.body_group, self.body_records = before


publishing = _Publishing()


def _on_publish(
    sender: str,
    body: Any,
    exchange: str | None,
    routing_key: str | None,
    declare: Iterable[Any] | None,
    headers: dict[str, Any],
    properties: dict[str, Any],
    **_signal: Any,
) -> None:
    """Notes the message of a chord, and marks it for the worker that will receive it."""
    if not isinstance(body, tuple):
        return
    place = place_of(headers, body[2])
    if place is None and publishing.body_group is None:
        return
    backend = publishing.backend()
    if backend is None:
        return
    headers.pop(BODY_STAMP, None)
    if place is not None:
        headers[STAMP] = place
    else:
        headers[BODY_STAMP] = publishing.body_group
        place = Place(publishing.body_group or "", slot_of_body(headers["id"]), (0, 0, 0))
    queue = routing_key if not exchange else next((queue.name for queue in declare or ()), routing_key)
    message = encoded(backend.app, sender, body, (exchange, routing_key), headers, properties)
    if message is None:
        return
    record = Record(place.slot, place.order, queue or "", headers["id"], message)
    if BODY_STAMP in headers:
        publishing.body_records.append(record)
    else:
        publishing.note(backend, place.group_id, record)


signals.before_task_publish.connect(_on_publish, weak=False)
