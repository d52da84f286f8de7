"""A look at all schedules: starts what is due, notes it, and tells when there is something to do next.

A tick is first started and then noted. So who dies between has the next one start it again, by the key that it has
already; and who was frozen between, while another went on, is refused when it notes, and starts nothing anew.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import structlog
from redis.exceptions import LockNotOwnedError, RedisError

from mosaic_queues.connection import server_ms, told_error
from mosaic_queues.errors import ServerError
from mosaic_tasks.execution.process import Process
from mosaic_tasks.scheduling.schedules import Schedule, Schedules
from mosaic_tasks.scheduling.starting import start_tick
from mosaic_tasks.scheduling.ticks import after, due, shown_at

log = structlog.get_logger(__name__)

AGAIN_S = 10.0
"""A schedule whose tick could not be started is looked at again after so long."""
AT_ONCE = 10
"""So many ticks of a schedule are started in one look; then the others have their turn, and it is read again, as it may
have been paused, changed or removed."""


def is_ahead(schedule: Schedule, now_s: float) -> bool:
    """Whether ticks will be left out, since later ones were decided about: by a clock that was set back since."""
    first = after(schedule.timing, int(now_s))
    return first is not None and first < schedule.last


class Turns:
    """The looks of one beat.

    Args:
        lock: the key of the lock that the beat holds, on the server of the schedules.
        hold: makes sure that it holds it still, and returns its token.
    """

    def __init__(self, process: Process, *, lock: str, hold: Callable[[], str]) -> None:
        self._process, self._lock, self._hold = process, lock, hold
        self._schedules = Schedules(process.client, process.ledger.keys)
        self._told: dict[str, str] = {}
        self._held_until: dict[str, float] = {}

    def now_s(self) -> float:
        """The server's time, which all beats share."""
        return server_ms(self._process.client) / 1000

    def turn(self) -> float:
        """One look at all of them.

        Returns:
            Seconds until there is something to do again; infinite: nothing is known.

        Raises:
            ServerError, redis.RedisError: the server does not answer, or the lock is lost.
        """
        now_s = self.now_s()
        pauses_s = [math.inf]
        for schedule in self._schedules.all():
            if not isinstance(schedule, Schedule):
                self._tell(schedule.name, schedule.problem)
            elif not schedule.paused:
                pauses_s.append(self._run(schedule, now_s))
        return min(pauses_s)

    def _run(self, schedule: Schedule, now_s: float) -> float:
        """Starts what is due of one, unless it has to wait; no other has to suffer from what is wrong with it."""
        if (left_s := self._held_until.get(schedule.name, 0.0) - time.monotonic()) > 0:
            return left_s
        try:
            return self._start(schedule, now_s)
        except Exception as error:
            if isinstance(error, ServerError) or (
                isinstance(error, RedisError) and (told_error(error) or isinstance(error, LockNotOwnedError))
            ):
                raise
            self._held_until[schedule.name] = time.monotonic() + AGAIN_S
            self._tell(schedule.name, f"{type(error).__name__}: {error}")
            self._note(schedule, problem=self._told[schedule.name])
            return AGAIN_S

    def _start(self, schedule: Schedule, now_s: float) -> float:
        if is_ahead(schedule, now_s):
            return self._say_ahead(schedule)
        found = due(schedule.name, schedule.timing, last=schedule.last, now=now_s)
        if found.ticks:
            self._start_ticks(schedule, found.ticks[:AT_ONCE])
        elif found.upto is not None:
            log.warning("schedule.skipped", what="ticks were missed and are left out", schedule=schedule.name)
            self._note(schedule, last=found.upto)
        elif schedule.problem:
            self._note(schedule)
        self._told.pop(schedule.name, None)
        if len(found.ticks) > AT_ONCE:
            return 0.0
        return math.inf if found.next_s is None else max(found.next_s - now_s, 0.0)

    def _start_ticks(self, schedule: Schedule, ticks: Sequence[int]) -> None:
        plan, before = self._schedules.plan(schedule.name), schedule.ran
        for tick in ticks:
            self._hold()
            run_id = start_tick(self._process, schedule, plan, tick, before=before)
            self._note(schedule, last=tick, started=(tick, run_id))
            log.info("schedule.started", schedule=schedule.name, tick=tick, run=run_id)
            before = tick

    def _say_ahead(self, schedule: Schedule) -> float:
        problem = (
            f"the server's clock was set back: its ticks up to {shown_at(schedule.last, schedule.timing.zone)} are "
            f"done, and nothing starts before that; to have it start now: mosaic schedule pause {schedule.name}, "
            f"then mosaic schedule resume {schedule.name}"
        )
        if schedule.problem != problem:
            self._note(schedule, problem=problem)
        self._tell(schedule.name, problem)
        return AGAIN_S

    def _note(
        self,
        schedule: Schedule,
        *,
        last: int | None = None,
        started: tuple[int, str] | None = None,
        problem: str = "",
    ) -> None:
        noted = self._schedules.note(
            schedule.name, lock=self._lock, token=self._hold(), last=last, started=started, problem=problem
        )
        if noted == "lost":
            raise LockNotOwnedError("another beat holds the lock", lock_name=self._lock)

    def _tell(self, name: str, problem: str) -> None:
        if self._told.get(name) != problem:
            self._told[name] = problem
            log.error(
                "schedule.problem",
                what="a schedule starts nothing until that is mended",
                schedule=name,
                error=problem,
            )


__all__ = ["Turns"]
