"""What `celery -A mosaic_tasks.app beat --scheduler mosaic_tasks.scheduling.beat:Scheduler` runs.

RedBeat's scheduler, with its lock and its entries, and our schedules beside them. Of its entries RedBeat notes first
that one was sent, and then sends it; here it is the other way round, and the lock counts for noting too. So none is
lost, and one that is sent twice has the same task id both times: `mosaic.submit` starts one run for it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import structlog
from celery.beat import ScheduleEntry, SchedulingError
from celery.signals import beat_init
from kombu.exceptions import OperationalError
from redis.exceptions import LockNotOwnedError, RedisError

from mosaic_queues.connection import told_error
from mosaic_queues.errors import ConfigurationError, ServerError
from mosaic_tasks.execution.process import close_process, process_for
from mosaic_tasks.scheduling.schedules import script
from mosaic_tasks.scheduling.turns import Turns

try:
    from redbeat.decoder import RedBeatJSONEncoder  # type: ignore[import-untyped]
    from redbeat.schedulers import (  # type: ignore[import-untyped]
        RedBeatScheduler,
        acquire_distributed_beat_lock,
        get_redis,
    )
except ImportError as error:
    raise ConfigurationError(
        f"beat needs RedBeat, which is not installed ({error}): pip install 'mosaic-tasks[cron]'"
    ) from None

log = structlog.get_logger(__name__)

# It would ask once, and where that fails Celery goes on without the lock: each look asks instead.
beat_init.disconnect(acquire_distributed_beat_lock)

_SENDS = uuid.UUID("6f0d4f2e-6e0a-5d0c-9c57-0f5a4a4f3a11")
"""Names the task ids of what RedBeat's entries send."""
_AWAY = (OperationalError, OSError, RedisError)
"""What a message that could not be sent may be sent again after."""
_ENDS = (signal.SIGTERM, signal.SIGINT)
_END_S = 3.0
"""A beat that is told to end waits so long for what it is at, and once more to give back its lock."""


class Scheduler(RedBeatScheduler):
    """Starts runs of schedules, and sends what RedBeat's entries say."""

    _is_set_up, _told = False, ""

    @cached_property
    def turns(self) -> Turns:
        """The looks at our schedules."""
        return Turns(process_for(self.app), lock=self.lock_key, hold=self._hold)

    def setup_schedule(self) -> None:
        """Notes the entries of the app's configuration; where the server does not serve, the first look after it."""
        try:
            super().setup_schedule()
        except RedisError as error:
            if told_error(error) is None:
                raise
            return
        self._is_set_up = True

    def tick(self, *args: Any, **options: Any) -> float:
        """Sends and starts what is due; returns the seconds until it is to be called again."""
        try:
            if self.lock is None:
                acquire_distributed_beat_lock(SimpleNamespace(scheduler=self))
            with _undisturbed():
                if not self._is_set_up:
                    self.setup_schedule()
                pause_s = float(min(super().tick(*args, **options), self.turns.turn()))
        except (ServerError, RedisError) as error:
            told = error if isinstance(error, ServerError) else told_error(error)
            if told is None:
                raise
            self._tell(str(told))
            return float(self.max_interval)
        self._tell("")
        return pause_s

    def _tell(self, problem: str) -> None:
        """Says what keeps the server from serving, once; an empty text: nothing does."""
        if problem and problem != self._told:
            log.warning("beat.server", what="the server does not serve now; it is waited for", error=problem)
        self._told = problem

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **options: Any) -> Any:
        """Sends what an entry says, and then notes that."""
        entry.options = {"task_id": _task_id(entry), **entry.options}  # it was read for this look alone
        try:
            answer = super().apply_async(entry, producer=producer, advance=False, **options)
        except SchedulingError as error:
            if advance and not isinstance(error.__context__, _AWAY):
                self.reserve(entry)  # it would never be sent; with its next time it may
            raise
        if advance:
            self.reserve(entry)
        return answer

    def reserve(self, entry: Any) -> Any:
        """Notes that an entry was sent.

        Raises:
            redis.exceptions.LockNotOwnedError: another beat sends now.
        """
        noted = ScheduleEntry._next_instance(entry)
        meta = {"last_run_at": noted.last_run_at, "total_run_count": noted.total_run_count}
        words = [self._hold(), json.dumps(meta, cls=RedBeatJSONEncoder), noted.score]
        keys = [self.lock_key, entry.key, self.app.redbeat_conf.schedule_key]
        if not script(get_redis(self.app), "reserve")(keys=keys, args=words):
            raise LockNotOwnedError("another beat holds the lock", lock_name=self.lock_key)
        return noted

    def close(self) -> None:
        """Gives back the lock, and what this process had opened."""
        last = _last_moment()
        last.start()
        try:
            super().close()
            close_process(self.app)
        finally:
            last.cancel()

    def _hold(self) -> str:
        """Holds the lock for its whole time again; its token.

        Raises:
            redis.exceptions.LockNotOwnedError: it is lost.
        """
        self.lock.extend(int(self.lock_timeout))
        token: bytes | str = self.lock.local.token
        return token.decode() if isinstance(token, bytes) else token


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Has signals that end the process wait, though not for a server that is frozen. Celery's handler closes
    connections in the middle of their use, which may then raise something else than the end that it asks for."""
    if threading.current_thread() is not threading.main_thread():
        yield  # a beat inside somebody's process, whose signals are its own affair
        return
    asked, last = list[int](), _last_moment()

    def note(number: int, _frame: object) -> None:
        if not asked:
            last.start()
        asked.append(number)

    before = {number: signal.signal(number, note) for number in _ENDS}
    try:
        yield
    finally:
        last.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
        if asked:
            signal.raise_signal(asked[0])


def _last_moment() -> threading.Timer:
    """Once it is started and not cancelled in time, the process ends as if it were killed: its lock lapses."""
    timer = threading.Timer(_END_S, _leave)
    timer.daemon = True
    return timer


def _leave() -> None:
    log.warning("beat.left", what="it ends without giving back its lock, since the server does not answer")
    os._exit(1)


def _task_id(entry: Any) -> str:
    """The same for whoever sends this entry for this time."""
    if entry.last_run_at is None:
        return str(uuid.uuid4())
    return str(uuid.uuid5(_SENDS, f"{entry.key} {entry.last_run_at.isoformat()}"))


__all__ = ["Scheduler"]
