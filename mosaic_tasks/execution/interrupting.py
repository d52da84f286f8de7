"""Interrupts the thread that runs a tool, from another thread: for timeouts and cancelled runs.

In the main thread a signal breaks blocking system calls; elsewhere Python's asynchronous exception reaches
pure Python code at its next step. Code that never returns to the interpreter cannot be interrupted; the caller then
ends the process.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from types import FrameType, TracebackType

_SIGNAL = signal.SIGURG
"""Ignored by default and not used by Celery."""


class Interrupted(BaseException):
    """Raised inside the interrupted code; not an Exception, so that tools do not swallow it."""


class Interruptible:
    """A context whose code other threads may interrupt.

    Attributes:
        reason: the error that `interrupt` gave, None when not interrupted.
    """

    _in_main: Interruptible | None = None

    def __init__(self) -> None:
        self.reason: Exception | None = None
        self._thread = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Interruptible:
        self._thread = threading.get_ident()
        if self._is_main():
            if signal.getsignal(_SIGNAL) is not _raise_in_main:
                signal.signal(_SIGNAL, _raise_in_main)
            Interruptible._in_main = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            thread, self._thread = self._thread, 0
        if thread == threading.main_thread().ident:
            Interruptible._in_main = None
        elif self.reason is not None and not isinstance(error, Interrupted):
            _set_async_exception(thread, None)

    def interrupt(self, reason: Exception) -> bool:
        """Raises `Interrupted` in the context's thread. False when the context is over or already interrupted."""
        with self._lock:
            if not self._thread or self.reason is not None:
                return False
            self.reason = reason
            self._send()
        return True

    def repeat(self) -> None:
        """Raises it once more, where it was interrupted already: a `__del__` or a callback may have swallowed it."""
        with self._lock:
            if self._thread and self.reason is not None:
                self._send()

    def _send(self) -> None:
        if self._is_main():
            Interruptible._in_main = self
            signal.pthread_kill(self._thread, _SIGNAL)
        else:
            _set_async_exception(self._thread, Interrupted)

    def _is_main(self) -> bool:
        return self._thread == threading.main_thread().ident


def _raise_in_main(_signal: int, _frame: FrameType | None) -> None:
    context = Interruptible._in_main
    if context is not None and context.reason is not None:
        Interruptible._in_main = None
        raise Interrupted


def _set_async_exception(thread: int, kind: type[BaseException] | None) -> None:
    exception = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
