"""Makes something once for all who ask for it while it is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """What several threads ask for at the same time.

    Args:
        make: what makes it; one thread at a time does.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._coming: Future[T] | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        """What is being made, else what is made now; of an error all who wait for it are told."""
        with self._lock:
            coming, is_ours = self._coming, self._coming is None
            if coming is None:
                coming = self._coming = Future()
        if is_ours:
            self._fulfil(coming)
        return coming.result()

    def _fulfil(self, coming: Future[T]) -> None:
        try:
            coming.set_result(self._made())
        except BaseException as error:  # noqa: BLE001  raised where they wait
            coming.set_exception(error)

    def _made(self) -> T:
        try:
            return self._make()
        finally:  # before anybody is told: who asks after that gets something newer
            with self._lock:
                self._coming = None


__all__ = ["Shared"]
