"""Runs the calls of one message, and those that they make ready, until its budget is spent.

The loop: claim some, run them, record them and claim the next in one transition. A batch that turns out long is handed
back by the watch while its first call runs.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import UnknownRun
from mosaic_tasks.execution.holding import COMMIT_S, Holding
from mosaic_tasks.execution.interrupting import Interrupted
from mosaic_tasks.execution.loop import forget_loop, run_on_loop
from mosaic_tasks.execution.outcomes import Work, ended, failure, timed_out
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.running import Running
from mosaic_tasks.execution.settling import Settling
from mosaic_tasks.execution.sharing import TOGETHER
from mosaic_tasks.execution.watch import hasten, watching

log = structlog.get_logger(__name__)

CLAIMS_EVERY_S = 1.0
"""The watch looks so often whether the claims of what runs still count."""
STUCK_EXIT = 75


class Drive:
    """One message's work on one run.

    The drive's own thread runs and records; the watch's thread calls `look`. `_looking` is held while the watch acts,
    so that the drive does not end in the middle of it.
    """

    def __init__(self, holding: Holding) -> None:
        self._holding, self._settling = holding, Settling(holding)
        self._process, self._run_id = holding.process, holding.run_id
        self._running: Running | None = None
        self._looking = threading.Lock()
        self._looked = 0.0
        self._over = self._is_recalled = False

    def run(self) -> None:
        """Runs until nothing is left that this message may do."""
        holding = self._holding
        while not self._ends():
            holding.advance()
            while holding.claimed:
                self._run_some()
                holding.advance()

    def _ends(self) -> bool:
        """Whether all is done; the watch may have put something back that it could not hand over."""
        with self._looking:
            self._over = not self._holding
            return self._over

    def _run_some(self) -> None:
        """Runs held calls until the commit window closes."""
        holding, until = self._holding, time.monotonic() + COMMIT_S
        with holding.lock:
            held = [claim.call for claim in holding.claimed]
        holding.execution.inputs.fetch(held)
        together: list[Work] = []
        while (claim := holding.next_claim()) is not None:
            opened = holding.opened.pop(claim.call, None)
            prepared = holding.execution.prepare(claim, holder=holding.claimant, opened=opened)
            self._settling.report_start(claim)
            if not isinstance(prepared, Work):
                self._settling.settle(claim, prepared, 0.0)
            elif prepared.is_async:
                together.append(prepared)
                if len(together) < TOGETHER:
                    continue
            else:
                self._run_sync(prepared)
            if together or time.monotonic() >= until:
                break
        if together:
            self._run_together(together)

    def _run_sync(self, work: Work) -> None:
        running = Running([work], together=False, batch_since=self._holding.execution.batch_since)
        begun = time.perf_counter()
        try:
            with running.context:
                self._running = running
                outcome = self._holding.execution.run(work)
        except Interrupted:
            outcome = ended(work, running.reason or Interrupted())
        finally:
            self._running = None
        self._settling.settle(work.claim, outcome, time.perf_counter() - begun)

    def _run_together(self, works: Sequence[Work]) -> None:
        running = Running(works, together=True, batch_since=self._holding.execution.batch_since)

        async def run_one(work: Work) -> None:
            running.begin(work)
            try:
                outcome = await self._holding.execution.run_async(work)
            except Interrupted:
                outcome = ended(work, running.reason or timed_out(work.node))
            except asyncio.CancelledError as error:
                if running.is_interrupted:
                    raise
                spent = self._holding.execution.spent(work)
                outcome = ended(work, running.ending(work) or error, spent)
            running.end(work)
            self._settling.settle(work.claim, outcome, (time.monotonic() - running.since) / len(works))

        async def run_all() -> None:
            tasks = [asyncio.ensure_future(run_one(work)) for work in works]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

        try:
            with running.context:
                self._running = running
                run_on_loop(run_all())
        except (Interrupted, asyncio.CancelledError):
            forget_loop()
            for work in list(running.works):
                self._settling.settle(work.claim, ended(work, running.reason or Interrupted()), 0.0)
        finally:
            self._running = None

    def recalled(self, run_id: str, _calls: Sequence[str]) -> None:
        """Calls of a run are said not to count any more; the watch sees to it, at once."""
        if run_id == self._run_id:
            self._is_recalled = True
            hasten()

    # -- the watch's side ----------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Hands back what waits behind a long call, ends what runs for too long or for nothing."""
        with self._looking:
            if self._over:
                return
            if now - self._holding.started > 2 * self._process.settings.batch_s:
                self._holding.commit()
                self._holding.hand_back()
            if self._running is not None:
                self._look_at(self._running, now)

    def _look_at(self, running: Running, now: float) -> None:
        if running.resists(now):
            self._abandon(running)
        elif running.is_interrupted:
            running.insist(now)
        elif (work := running.overdue(now)) is not None:
            running.interrupt(timed_out(work.node), now)
        elif self._is_recalled or min(now - running.since, now - self._looked) > CLAIMS_EVERY_S:
            self._looked, self._is_recalled = now, False
            (lost,) = self._process.ledger.lost({self._run_id: [work.claim for work in list(running.works)]})
            running.end_lost(lost, now)
        else:
            self._process.listen_to_recalls()

    def _abandon(self, running: Running) -> None:
        """Records calls that cannot be interrupted as failed, and ends the process."""
        self._process.reporter.flush()
        for work in list(running.works):
            reason = running.reason or timed_out(work.node)
            self._settling.fail(work.claim, failure(work.node, work.claim, reason))
        while self._holding.finished:
            self._holding.commit()
        names = [work.node.name for work in running.works]
        log.critical(
            "drive.stuck", what="calls cannot be interrupted, the process ends", run=self._run_id, nodes=names
        )
        os._exit(STUCK_EXIT)


def drive(process: Process, run_id: str, calls: Sequence[str]) -> None:
    """Runs the calls of a message; the body of `mosaic.call` and `mosaic.close`. Raises nothing: a run must not hang
    because a message failed."""
    try:
        plan = process.plan_of(run_id)
    except UnknownRun as error:
        what = "message of a run that is gone, or whose sender has another MOSAIC_REDIS_URL than this worker"
        log.warning("drive.gone", what=what, run=run_id, error=str(error))
        return
    holding = Holding(process, run_id, plan, known(calls, plan, run_id))
    work = Drive(holding)
    process.recalls.add(work.recalled)
    try:
        with process.driving(), watching(work):
            work.run()
    except RedisError as error:
        log.error("drive.lost", what="the server was lost, calls go back", run=run_id, error=str(error))
        holding.let_go()
    except Exception as error:
        log.exception("drive.error", what="internal error, the run is failed", run=run_id)
        with suppress(RedisError):
            message = f"internal error in a worker, see its log: {type(error).__name__}: {error}"
            process.ledger.end_run(run_id, "failed", message)
        holding.let_go()
    except BaseException:
        holding.let_go()
        raise
    finally:
        process.recalls.discard(work.recalled)


def known(calls: Sequence[str], plan: PreparedPlan, run_id: str) -> list[str]:
    """The calls without those that the plan does not have."""
    unknown = [call for call in calls if not plan.knows(call)]
    if unknown:
        log.warning("drive.unknown", what="calls that the plan does not know", run=run_id, calls=unknown)
    return [call for call in calls if plan.knows(call)]
