"""Tells Celery's event stream of every call, so that Flower shows each as a task, however it travelled."""

from __future__ import annotations

import threading
from typing import Any

import structlog
from celery import Celery

from mosaic_queues.outbox import CALL_TASK
from mosaic_tasks.execution.watch import attend

log = structlog.get_logger(__name__)

FLUSH_AT = 60
RESULT_CHARS = 200


class Reporter:
    """Buffers task events and sends many in one message.

    Args:
        hostname: the node name of the worker, as Flower lists it.
        enabled: whether the worker sends task events (`-E`).
    """

    def __init__(self, app: Celery, *, hostname: str, enabled: bool) -> None:
        self._app, self._hostname, self._enabled = app, hostname, enabled
        self._dispatcher: Any = None
        self._buffered = 0
        self._lock = threading.Lock()

    def started(self, run_id: str, call: str, node: str, attempt: int) -> None:
        """A call was taken up and begins."""
        if not self._enabled:
            return
        task_id = f"{run_id}:{call}"
        self._add(
            "task-received",
            uuid=task_id,
            name=CALL_TASK,
            args=f"({node!r}, {call!r})",
            kwargs="{}",
            retries=attempt,
            root_id=run_id,
        )
        self._add("task-started", uuid=task_id)

    def succeeded(self, run_id: str, call: str, runtime_s: float, result: str) -> None:
        """A call ended with a result."""
        self._add("task-succeeded", uuid=f"{run_id}:{call}", result=result[:RESULT_CHARS], runtime=runtime_s)

    def failed(self, run_id: str, call: str, error: str, *, retried: bool) -> None:
        """A call raised."""
        kind = "task-retried" if retried else "task-failed"
        self._add(kind, uuid=f"{run_id}:{call}", exception=error[:RESULT_CHARS], traceback="")

    def _add(self, kind: str, **fields: Any) -> None:
        if not self._enabled:
            return
        with self._lock:
            try:
                self._send(kind, **fields)
            except Exception as error:  # noqa: BLE001 - a lost picture must not lose a result
                log.warning("reporting.lost", what="a task event is lost", error=str(error))
            is_full = self._buffered >= FLUSH_AT
        if is_full:
            self.flush()

    def _send(self, kind: str, **fields: Any) -> None:
        if self._dispatcher is None:
            self._dispatcher = self._app.events.Dispatcher(
                self._app.connection_for_write(),
                hostname=self._hostname,
                buffer_group=frozenset(["task"]),
                buffer_limit=10 * FLUSH_AT,
            )
            attend(self)
        self._dispatcher.send(kind, **fields)
        self._buffered += 1

    def look(self, _now: float) -> None:
        """Sends what is buffered; called by the watch a few times a second."""
        self.flush()

    def flush(self) -> None:
        """Sends what is buffered."""
        with self._lock:
            if not self._buffered:
                return
            self._buffered = 0
            try:
                self._dispatcher.flush(errors=False)
            except Exception as error:  # noqa: BLE001 - a lost picture must not lose a result
                log.warning("reporting.lost", what="task events lost", error=str(error))
                self._drop()

    def close(self) -> None:
        """Sends the rest and closes the connection."""
        self.flush()
        self._drop()

    def _drop(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            dispatcher.close()
            dispatcher.connection.close()
