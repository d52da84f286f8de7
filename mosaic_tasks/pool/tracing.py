"""Runs a coroutine task on the loop with all that Celery promises around it.

What blocks (to store a result, to publish links) runs in a thread; a task that stores nothing and links nothing never
leaves the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

import structlog
from celery import signals, states
from celery.app.task import Context, get_actual_ignore_result
from celery.app.trace import report_internal_error, task_has_custom
from celery.exceptions import SoftTimeLimitExceeded
from kombu.serialization import loads, prepare_accept_content

from mosaic_tasks.pool.jobs import Job
from mosaic_tasks.pool.recording import Recorder, Reported, TaskEnding, current
from mosaic_tasks.pool.steps import Steps

log = structlog.get_logger(__name__)
T = TypeVar("T")


class CoroutineEnded(RuntimeError):
    """A coroutine task ended by an exception that ends more than a task, or was cancelled by its own code."""


class AsyncGeneratorRefused(TypeError):
    """A task is an async generator, and Celery knows no task with several results."""


def runs_on_loop(task: Any) -> bool:
    """Whether a task's function is a coroutine function, or an async generator, which is refused there."""
    function = inspect.unwrap(task.run)
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


class Tracer:
    """Runs the tasks of one type.

    Args:
        threads: for what blocks.
        hostname: of the worker.
    """

    def __init__(self, task: Any, *, threads: Executor, hostname: str) -> None:
        self._task, self._app, self._threads, self._hostname = task, task.app, threads, hostname
        self._body = task if task_has_custom(task, "__call__") else task.run
        self._is_generator = inspect.isasyncgenfunction(inspect.unwrap(task.run))
        self._has_before_start = task_has_custom(task, "before_start")
        self._accept = prepare_accept_content(task.app.conf.accept_content)
        self._recorder = Recorder(task)

    async def run(self, job: Job) -> Reported | None:
        """Runs a job to its end and records it. None: its request was done with before, and nothing is recorded."""
        began = time.monotonic()
        try:
            context = self._context(job)
            ending = TaskEnding(context, began)
            self._announce(context)
            try:
                await self._run_body(job, ending)
                return None if job.is_over else await self._record(ending)
            finally:
                self._say_goodbye(ending)
        except Exception as error:  # noqa: BLE001  as Celery does with errors outside a task's body
            return 1, report_internal_error(self._task, error), None

    def _context(self, job: Job) -> Any:
        request, body, content_type, encoding = job.message
        args, kwargs, embed = (
            loads(body, content_type, encoding, accept=self._accept) if content_type else body
        )
        told = {"args": args, "kwargs": kwargs, "hostname": self._hostname, "is_eager": False}
        request.update(told, **embed or {})
        return Context(request, args=args, called_directly=False, kwargs=kwargs)

    def _announce(self, context: Any) -> None:
        task = self._task
        with current(task, context):
            if signals.task_prerun.receivers:
                signals.task_prerun.send(
                    sender=task, task_id=context.id, task=task, args=context.args, kwargs=context.kwargs
                )
            self._app.loader.on_task_init(context.id, task)

    async def _run_body(self, job: Job, ending: TaskEnding) -> None:
        """Runs the coroutine; how it ended, whatever it was, is in `ending`."""
        try:
            ending.value = await self._started(job, ending.context)
        except Exception as error:  # noqa: BLE001  the task's failure, or how it wants to end
            ending.error, ending.traceback = error, error.__traceback__
        except BaseException as error:  # noqa: BLE001
            ending.error, ending.traceback = self._ended_by(error, job), error.__traceback__
        if ending.traceback is not None:
            ending.traceback = ending.traceback.tb_next  # without this frame, which still runs

    def _ended_by(self, error: BaseException, job: Job) -> Exception:
        name = self._task.name
        if job.exceeded_soft_limit:
            return SoftTimeLimitExceeded()  # type: ignore[no-any-return, unused-ignore]
        if isinstance(error, asyncio.CancelledError):
            return CoroutineEnded(f"the coroutine of task {name!r} was cancelled by its own code")
        return CoroutineEnded(f"the coroutine of task {name!r} raised {error!r}; it may not end its process")

    async def _started(self, job: Job, context: Any) -> Any:
        task = self._task
        is_told = task.track_started and not get_actual_ignore_result(task, context)
        if is_told or self._has_before_start:
            await self._in_thread(partial(self._prepare, context, is_told, job.pid))
        if self._is_generator:
            raise AsyncGeneratorRefused(
                f"the task {task.name!r} is an async generator, and a Celery task has one result: return a list, "
                "or make it a tool of a workflow, whose yields are streamed"
            )
        steps = Steps(self._call(context), task=task, request=context)
        with job.running(steps):
            return await steps

    def _call(self, context: Any) -> Any:
        with current(self._task, context):
            return self._body(*context.args, **context.kwargs)

    def _prepare(self, context: Any, is_told: bool, pid: int) -> None:
        task = self._task
        with current(task, context):
            if is_told:
                meta = {"pid": pid, "hostname": self._hostname}
                task.backend.store_result(context.id, meta, states.STARTED, request=context)
            if self._has_before_start:
                task.before_start(context.id, context.args, context.kwargs)

    async def _record(self, ending: TaskEnding) -> Reported:
        if not self._recorder.blocks(ending):
            return self._recorder.record(ending)
        return await self._in_thread(partial(self._record_in_thread, ending))

    def _record_in_thread(self, ending: TaskEnding) -> Reported:
        reported = self._recorder.record(ending)
        self._task.backend.process_cleanup()
        self._app.loader.on_process_cleanup()
        return reported

    def _say_goodbye(self, ending: TaskEnding) -> None:
        if not signals.task_postrun.receivers:
            return
        task, context = self._task, ending.context
        with current(task, context):
            signals.task_postrun.send(
                sender=task,
                task_id=context.id,
                task=task,
                args=context.args,
                kwargs=context.kwargs,
                retval=ending.value if ending.error is None else ending.error,
                state=ending.state,
            )

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)
