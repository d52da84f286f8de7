"""What `celery -A mosaic_tasks.app beat --scheduler mosaic_tasks.scheduling.beat:Scheduler` runs.

RedBeat's scheduler, with its lock and its entries, and our schedules beside them. Of its entries RedBeat notes first
that one was sent, and then sends it; here it is the other way round, and the lock counts for noting too. So none is
lost, and one that is sent twice has the same task id both times: `mosaic.submit` starts one run for it.
"""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import structlog
from celery.beat import ScheduleEntry, SchedulingError
from kombu.exceptions import OperationalError
from redis.exceptions import LockNotOwnedError, RedisError

from mosaic_queues.connection import told_error
from mosaic_queues.errors import ConfigurationError, ServerError
from mosaic_tasks.execution.process import close_process, process_for
from mosaic_tasks.scheduling.schedules import script
from mosaic_tasks.scheduling.turns import Turns

try:
    from redbeat.decoder import RedBeatJSONEncoder  # type: ignore[import-untyped]
    from redbeat.schedulers import RedBeatScheduler, get_redis  # type: ignore[import-untyped]
except ImportError as error:
    raise ConfigurationError(
        f"beat needs RedBeat, which is not installed ({error}): pip install 'mosaic-tasks[cron]'"
    ) from None

log = structlog.get_logger(__name__)

_SENDS = uuid.UUID("6f0d4f2e-6e0a-5d0c-9c57-0f5a4a4f3a11")
"""Names the task ids of what RedBeat's entries send."""
_AWAY = (OperationalError, OSError, RedisError)
"""What a message that could not be sent may be sent again after."""


class Scheduler(RedBeatScheduler):
    """Starts runs of schedules, and sends what RedBeat's entries say."""

    @cached_property
    def turns(self) -> Turns:
        """The looks at our schedules."""
        return Turns(process_for(self.app), lock=self.lock_key, hold=self._hold)

    def tick(self, *args: Any, **options: Any) -> float:
        """Sends and starts what is due; returns the seconds until it is to be called again."""
        try:
            with _undisturbed():
                return float(min(super().tick(*args, **options), self.turns.turn()))
        except (ServerError, RedisError) as error:
            if isinstance(error, RedisError) and told_error(error) is None:
                raise
            log.warning("beat.server", what="the server does not serve now", error=str(error))
            return float(self.max_interval)

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
        super().close()
        close_process(self.app)

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
    """Has signals that end the process wait. Celery's handler closes connections in the middle of their use, which may
    then raise something else than the end that it asks for."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _task_id(entry: Any) -> str:
    """The same for whoever sends this entry for this time."""
    if entry.last_run_at is None:
        return str(uuid.uuid4())
    return str(uuid.uuid5(_SENDS, f"{entry.key} {entry.last_run_at.isoformat()}"))


__all__ = ["Scheduler"]
