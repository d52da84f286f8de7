"""A task that the pool runs, from its request's side and from the loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mosaic_tasks.pool.steps import Steps

Stop = Callable[["Job"], None]


class Job:
    """What Celery keeps as the `_apply_result` of a request.

    Args:
        arguments: of Celery's tracer: task name, id, headers, body, content type and encoding.
        trace: runs it as Celery's other pools do, in a thread.
        stop: cancels a job, called from the hub's thread.

    Attributes:
        is_over: its request is done with: it was revoked, or timed out, or the worker ends. How it ends does not count.
        has_slot: it takes a slot.
        exceeded_soft_limit: that is why its coroutine was cancelled.
        task: runs it on the loop.
    """

    def __init__(
        self,
        arguments: tuple[Any, ...],
        *,
        trace: Callable[[], Any],
        accept: Callable[[int, float], Any],
        report: Callable[[Any], Any],
        time_out: Callable[[bool, float], Any],
        limits: tuple[float | None, float | None],
        pid: int,
        stop: Stop,
    ) -> None:
        self.name, self.id, *message = arguments
        self.message = tuple(message)
        self.accept, self.report, self.time_out = accept, report, time_out
        self.trace, self.limits, self.pid = trace, limits, pid
        self.is_over = self.has_slot = self.exceeded_soft_limit = False
        self.task: asyncio.Task[None] | None = None
        self._steps: Steps | None = None
        self._stop = stop

    @property
    def is_revoked(self) -> bool:
        """Whether it was revoked, or expired, while it waited for a slot; its request then says so and is done."""
        request = getattr(self.accept, "__self__", None)
        return request is not None and bool(request.revoked())

    def terminate(self, _signal: int | None = None) -> None:
        """Celery's request was revoked, or cancelled; it has said so."""
        self._stop(self)

    # -- on the loop -------------------------------------------------------------------------------------------------

    @contextmanager
    def running(self, steps: Steps) -> Iterator[None]:
        """Its coroutine is awaited: only then is it cancelled, so that what became of it is recorded in peace."""
        if self.is_over:
            steps.close()
            raise asyncio.CancelledError
        self._steps = steps
        try:
            yield
        finally:
            self._steps = None

    def interrupt(self) -> bool:
        """Cancels its coroutine. False: it is not awaited."""
        if self._steps is None or self.task is None:
            return False
        self.task.cancel()
        return True

    def forget(self) -> None:
        """Cancels its coroutine so that it is not asked what it makes of it."""
        if self._steps is not None:
            self._steps.forget()
            self.interrupt()
