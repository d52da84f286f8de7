"""Tells Celery's event stream of every call, so that Flower shows each as a task, however it travelled.

A run is a task too, whose id is that of the run, and the parent of its calls: so they hang together. Its first call in
a process announces it, and the sweeper says how it ended. What is told twice changes nothing: a state that comes late
does not replace a later one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import structlog
from celery import Celery

from mosaic_queues.outbox import keep_client
from mosaic_queues.transitions import RunRecord
from mosaic_tasks.execution.watch import attend

log = structlog.get_logger(__name__)

FLUSH_AT = 60
RESULT_CHARS = 200
RUNS_KEPT = 1000
"""Of so many runs a process remembers that it has announced them."""


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
        self._announced: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def started(self, run_id: str, call: str, *, workflow: str, node: str, attempt: int) -> None:
        """A call was taken up and begins.

        Args:
            attempt: 1 is the first.
        """
        if not self._enabled:
            return
        self._announce(run_id, workflow)
        told = {"run": run_id, "workflow": workflow, "node": node, "call": call, "attempt": attempt}
        task_id = task_of(run_id, call)
        self._add(
            "task-received",
            uuid=task_id,
            name=f"{workflow}.{node}",
            args=f"({node!r}, {call!r})",
            kwargs=repr(told),
            retries=attempt - 1,
            root_id=run_id,
            parent_id=run_id,
        )
        self._add("task-started", uuid=task_id)

    def _announce(self, run_id: str, workflow: str) -> None:
        """Once for each run."""
        if run_id in self._announced:
            return
        self._announced[run_id] = None
        if len(self._announced) > RUNS_KEPT:
            self._announced.popitem(last=False)
        self._run_received(run_id, workflow)
        self._add("task-started", uuid=run_id, timestamp=opened_at(run_id))

    def _run_received(self, run_id: str, workflow: str) -> None:
        told, opened_s = {"run": run_id, "workflow": workflow}, opened_at(run_id)
        self._add(
            "task-received",
            uuid=run_id,
            name=workflow,
            args="()",
            kwargs=repr(told),
            retries=0,
            timestamp=opened_s,
        )

    def succeeded(self, run_id: str, call: str, runtime_s: float, result: str) -> None:
        """A call ended with a result."""
        self._succeeded(task_of(run_id, call), runtime_s, result)

    def failed(self, run_id: str, call: str, error: str, *, retried: bool) -> None:
        """A call raised."""
        self._failed(task_of(run_id, call), error, retried=retried)

    def revoked(self, run_id: str, call: str, reason: str) -> None:
        """A call does not count any more. Where another process has taken it up, that one says what becomes of it."""
        self._revoked(task_of(run_id, call), reason)

    def runs_ended(self, runs: Sequence[RunRecord]) -> None:
        """Runs are over; they are told together."""
        if not self._enabled:
            return
        for run in runs:
            self._run_ended(run)
        self.flush()  # the watch looks only while calls run

    def _run_ended(self, run: RunRecord) -> None:
        self._run_received(run.run_id, run.name)  # once more, for who came later
        if run.status == "done":
            self._succeeded(run.run_id, ((run.ended_ms or run.created_ms) - run.created_ms) / 1000, "done")
        elif run.status == "cancelled":
            self._revoked(run.run_id, run.error)
        else:
            self._failed(run.run_id, run.error, retried=False)

    def _succeeded(self, task_id: str, runtime_s: float, result: str) -> None:
        self._add("task-succeeded", uuid=task_id, result=result[:RESULT_CHARS], runtime=runtime_s)

    def _failed(self, task_id: str, error: str, *, retried: bool) -> None:
        kind = "task-retried" if retried else "task-failed"
        self._add(kind, uuid=task_id, exception=error[:RESULT_CHARS], traceback="")

    def _revoked(self, task_id: str, reason: str) -> None:
        told = {"terminated": True, "signum": None, "expired": False, "exception": reason[:RESULT_CHARS]}
        self._add("task-revoked", uuid=task_id, **told)

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
                keep_client(self._dispatcher.producer.channel)
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


def task_of(run_id: str, call: str) -> str:
    """The id of a call as a task of Celery."""
    return f"{run_id}:{call}"


def opened_at(run_id: str) -> float:
    """When a run was opened, in seconds since 1970: a UUIDv7 begins with it."""
    return int(run_id.replace("-", "")[:12], 16) / 1000
