"""Drives a coroutine so that Celery knows which task it is, in each of its steps.

Celery keeps the current task and its request on stacks by thread. Coroutines of one thread interleave, so both are
pushed before each step and popped after it, in which the coroutine runs without a pause.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from celery._state import _task_stack


class Steps:
    """A coroutine as the body of a task; awaited once."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, task: Any, request: Any) -> None:
        self._coroutine, self._task, self._request = coroutine, task, request
        self._is_forgotten = False

    def forget(self) -> None:
        """Has it end at its next step, whatever it makes of cancellations."""
        self._is_forgotten = True

    def close(self) -> None:
        """Ends it before its first step."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        step, value = self._coroutine.send, None
        while True:
            try:
                waits_for = self._step(step, value)
            except StopIteration as end:
                return end.value
            try:
                value = yield waits_for
                step = self._coroutine.send
            except BaseException as error:
                if self._is_forgotten:
                    self._coroutine.close()
                    raise
                step, value = self._coroutine.throw, error

    def _step(self, step: Any, value: Any) -> Any:
        stack = self._task.request_stack
        _task_stack.push(self._task)
        stack.push(self._request)
        try:
            return step(value)
        finally:
            stack.pop()
            _task_stack.pop()
