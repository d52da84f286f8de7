"""What becomes of a task that ended, as Celery's tracer has it: links, result, chord, hooks, signals and log.

Blocks where something is stored or sent. Unlike Celery's own functions for errors it takes an error that was caught in
another thread, and leaves the frames of its traceback alone, since those may belong to coroutines that still run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import group, signals, states
from celery._state import _task_stack
from celery.app.autoretry import add_autoretry_behaviour
from celery.app.task import get_actual_ignore_result
from celery.app.trace import LOG_RETRY, LOG_SUCCESS, TraceInfo, get_task_name, info, task_has_custom
from celery.canvas import maybe_signature
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_logger
from celery.utils.saferepr import saferepr
from celery.utils.serialization import get_pickleable_etype, get_pickleable_exception
from kombu.exceptions import EncodeError, OperationalError

logger = get_logger("celery.app.trace")

Reported = tuple[int, Any, float | None]
"""What Celery's requests are told: whether it failed, its result in words or its `ExceptionInfo`, and its seconds."""
HOOKS = ("on_success", "on_failure", "on_retry", "after_return")


@dataclass
class TaskEnding:
    """How a coroutine ended.

    Attributes:
        context: the request, as the task sees it.
        traceback: of the error, from the coroutine on.
    """

    context: Any
    began: float
    value: Any = None
    error: BaseException | None = None
    traceback: TracebackType | None = None
    state: str | None = None


@contextmanager
def current(task: Any, context: Any) -> Iterator[None]:
    """Celery knows this thread's task and request."""
    _task_stack.push(task)
    task.request_stack.push(context)
    try:
        yield
    finally:
        task.request_stack.pop()
        _task_stack.pop()


class Recorder:
    """Records the endings of one task type."""

    def __init__(self, task: Any) -> None:
        self._task, self._app = task, task.app
        self._has = {hook for hook in HOOKS if task_has_custom(task, hook)}
        self._retries = hasattr(task, "_orig_run")

    def blocks(self, ending: TaskEnding) -> bool:
        """Whether to record it may block: anything is stored or sent, or code of the task's author runs."""
        context, task = ending.context, self._task
        if self._has or not get_actual_ignore_result(task, context) or context.chord:
            return True
        if ending.error is None:
            return bool(context.callbacks or context.chain)
        return bool(context.errbacks or self._retries or task.store_errors_even_if_ignored)

    def record(self, ending: TaskEnding) -> Reported:
        """Records it in this thread, and fills in its state."""
        with current(self._task, ending.context):
            if self._retries and isinstance(ending.error, Exception):
                ending.error = self._retried(ending.error)
            reported = self._succeeded(ending) if ending.error is None else self._ended(ending, ending.error)
            if "after_return" in self._has and ending.state in (states.SUCCESS, states.FAILURE):
                self._after_return(ending)
            return reported

    def _after_return(self, ending: TaskEnding) -> None:
        context = ending.context
        outcome = ending.value if ending.error is None else ending.error
        told = (ending.state, outcome, context.id, context.args, context.kwargs, None)
        self._hook("after_return", context, *told)

    def _succeeded(self, ending: TaskEnding) -> Reported:
        task, context = self._task, ending.context
        is_sent = False
        try:
            self._send_links(ending)
            is_sent = True
            task.backend.mark_as_done(
                context.id, ending.value, context, not get_actual_ignore_result(task, context)
            )
        except (EncodeError, OperationalError) as error:
            if is_sent and isinstance(error, OperationalError):
                raise
            ending.error, ending.traceback = error, error.__traceback__
            return self._ended(ending, error)
        ending.state = states.SUCCESS
        said, took_s = saferepr(ending.value, task.resultrepr_maxsize), time.monotonic() - ending.began
        if "on_success" in self._has:
            self._hook("on_success", context, ending.value, context.id, context.args, context.kwargs)
        if signals.task_success.receivers:
            signals.task_success.send(sender=task, result=ending.value, runtime=took_s)
        self._log_success(context, said, took_s)
        return 0, said, took_s

    def _send_links(self, ending: TaskEnding) -> None:
        """Publishes what follows with the value: callbacks, groups among them each alone, and the rest of a chain."""
        context, app = ending.context, self._app
        if not (context.callbacks or context.chain):
            return
        inherits = app.conf.task_inherit_parent_priority
        options = {
            "parent_id": context.id,
            "root_id": context.root_id or context.id,
            "priority": context.delivery_info.get("priority") if inherits else None,
        }
        send = partial(app.amqp._retry_publish, args=(ending.value,), **options)
        links = [maybe_signature(link, app=app) for link in context.callbacks or ()]
        single = [link for link in links if not isinstance(link, group)]
        groups = [link for link in links if isinstance(link, group)]
        for link in [*groups, group(single, app=app)] if len(links) > 1 and single else links:
            send(link.apply_async)
        if context.chain:
            send(maybe_signature(context.chain[-1], app=app).apply_async, chain=context.chain[:-1])

    def _log_success(self, context: Any, said: str, took_s: float) -> None:
        name = get_task_name(context, self._task.name)
        told = {"id": context.id, "name": name, "return_value": said, "runtime": took_s}
        told["args"] = context.get("argsrepr") or saferepr(context.args)
        told["kwargs"] = context.get("kwargsrepr") or saferepr(context.kwargs)
        info(LOG_SUCCESS, told)

    def _ended(self, ending: TaskEnding, error: BaseException) -> Reported:
        if isinstance(error, Retry):
            ending.state = states.RETRY
            einfo = ExceptionInfo((type(error), error, ending.traceback))
            self._told_retry(ending, error, einfo)
        elif isinstance(error, Ignore | Reject):
            ending.state = states.REJECTED if isinstance(error, Reject) else states.IGNORED
            einfo = ExceptionInfo((type(error), error, ending.traceback), internal=True)
            TraceInfo(ending.state, error)._log_error(self._task, ending.context, einfo)
        else:
            ending.state = states.FAILURE
            sendable = get_pickleable_exception(error)
            einfo = ExceptionInfo((get_pickleable_etype(type(error)), sendable, ending.traceback))
            self._told_failure(ending, sendable, einfo)
        return 1, einfo, None

    def _stores_errors(self, context: Any) -> bool:
        ignores = get_actual_ignore_result(self._task, context)
        return bool(self._task.store_errors_even_if_ignored or not ignores)

    def _told_retry(self, ending: TaskEnding, reason: Retry, einfo: Any) -> None:
        task, context = self._task, ending.context
        if self._stores_errors(context):
            task.backend.mark_as_retry(context.id, reason.exc, einfo.traceback, request=context)
        task.on_retry(reason.exc, context.id, context.args, context.kwargs, einfo)
        signals.task_retry.send(sender=task, request=context, reason=reason, einfo=einfo)
        name = get_task_name(context, task.name)
        info(LOG_RETRY, {"id": context.id, "name": name, "exc": str(reason)})

    def _told_failure(self, ending: TaskEnding, error: Any, einfo: Any) -> None:
        task, context = self._task, ending.context
        task.backend.mark_as_failure(
            context.id,
            error,
            einfo.traceback,
            request=context,
            store_result=self._stores_errors(context),
            call_errbacks=True,
        )
        task.on_failure(error, context.id, context.args, context.kwargs, einfo)
        signals.task_failure.send(
            sender=task,
            task_id=context.id,
            exception=error,
            args=context.args,
            kwargs=context.kwargs,
            traceback=ending.traceback,
            einfo=einfo,
        )
        TraceInfo(states.FAILURE, error)._log_error(task, context, einfo)

    def _hook(self, name: str, context: Any, *arguments: Any) -> None:
        """Calls a hook of the task's author; its error changes nothing about the outcome, which is recorded."""
        try:
            getattr(self._task, name)(*arguments)
        except Exception as error:
            shown = get_task_name(context, self._task.name)
            logger.exception("Task %s[%s] %s handler raised: %r", shown, context.id, name, error)

    def _retried(self, error: Exception) -> BaseException:
        """What `autoretry_for` makes of an error: a `Retry`, which is sent here, or the error itself."""
        try:
            _AutoRetry(self._task, error).run()
        except Exception as outcome:  # noqa: BLE001  this is what it is called for
            return outcome
        return error


class _AutoRetry:
    """Stands for a task whose body raises an error, so that Celery's own rules for retries apply to it."""

    run: Callable[[], Any]

    def __init__(self, task: Any, error: Exception) -> None:
        self._task = task

        def run() -> None:
            raise error

        self.run = run
        add_autoretry_behaviour(self)

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_run":  # not yet wrapped
            raise AttributeError(name)
        return getattr(self._task, name)
