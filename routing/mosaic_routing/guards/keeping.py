"""Keeps this process's permits alive, and brings to an end what could not be settled at once."""

from __future__ import annotations

import os
import threading

import msgspec
import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import ServerError
from mosaic_routing.guards.backend import Backend
from mosaic_routing.guards.values import Request, Settlement

log = structlog.get_logger(__name__)

BEATS = 4
"""Renewals in the time in which a permit lapses."""
_BATCH = 1_000


class Keeper:
    """Renews from a daemon thread, which runs from the first permit until `close`.

    A permit that the server lost (it came back without its last second) is entered again. After a fork the child holds
    none of its parent's.
    """

    def __init__(self, backend: Backend, *, expiry_ms: int) -> None:
        self._backend, self._expiry_ms = backend, expiry_ms
        self._mutex = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._held: dict[str, Request] = {}
        self._owed: dict[str, Settlement] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, request: Request) -> None:
        """This permit is ours from now on."""
        with self._mutex:
            self._start()
            self._owed.pop(request.permit, None)
            self._held[request.permit] = request

    def drop(self, permit: str) -> None:
        """It is ours no more."""
        with self._mutex:
            self._held.pop(permit, None)

    def owe(self, settlement: Settlement) -> None:
        """Settles as soon as the server answers."""
        with self._mutex:
            self._start()
            self._held.pop(settlement.permit, None)
            self._owed[settlement.permit] = settlement

    def close(self) -> None:
        """Ends the thread, and settles what is owed if the server answers; permits that are still held lapse."""
        self._stopped.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join()
            try:
                self._settle_owed()
            except (ServerError, RedisError) as error:
                log.warning(
                    "guards.owed", what="cannot settle; permits lapse by themselves", error=str(error)
                )

    def beat(self) -> None:
        """Renews what is held, and settles what is owed.

        Raises:
            ServerError: the server is away, or full.
        """
        self._settle_owed()
        with self._mutex:
            held = dict(self._held)
        names = tuple(held)
        for first in range(0, len(names), _BATCH):
            for name in self._backend.renew(names[first : first + _BATCH], self._expiry_ms):
                self._enter_again(held[name])

    def _settle_owed(self) -> None:
        with self._mutex:
            owed = tuple(self._owed.values())
        for settlement in owed:
            self._backend.settle(settlement, self._expiry_ms)
            with self._mutex:
                self._owed.pop(settlement.permit, None)

    def _enter_again(self, request: Request) -> None:
        with self._mutex:
            if request.permit not in self._held:
                return  # settled meanwhile
        log.warning(
            "guards.lost", what="the server lost a permit; it is entered again", permit=request.permit
        )
        need = msgspec.structs.replace(request.need, takes=())
        self._backend.admit(msgspec.structs.replace(request, need=need, is_forced=True))
        with self._mutex:
            still_held = request.permit in self._held
        if not still_held:
            self._backend.settle(Settlement(permit=request.permit), self._expiry_ms)

    def _start(self) -> None:
        if self._pid != os.getpid():
            self._forget()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mosaic-guards-keeper", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._expiry_ms / 1000 / BEATS):
            try:
                self.beat()
            except ServerError as error:
                log.warning("guards.renew", what="cannot renew, the next beat tries again", error=str(error))
            except Exception:  # without this thread all that is held would lapse
                log.exception("guards.renew", what="cannot renew, the next beat tries again")
