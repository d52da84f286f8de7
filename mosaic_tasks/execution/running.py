"""What runs in a drive's thread at this moment, and how another thread ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from mosaic_queues.errors import ClaimLost
from mosaic_queues.transitions import Claim
from mosaic_tasks.execution.interrupting import Interruptible
from mosaic_tasks.execution.outcomes import Work, claim_lost

GRACE_S = 5.0
"""What resists its interruption for so long costs its process."""
LOST_GRACE_S = 60.0
"""The same of what runs for nothing (its run was cancelled): nobody waits for it, so it may end by itself first."""
INSIST_S = 2.5
"""What was interrupted and still runs after so long is interrupted again."""
LOOP_GRACE_S = 1.0
"""A coroutine's own timeout acts on its event loop; so much later the loop itself must be stuck."""


class Running:
    """One tool call, or several coroutines together.

    Args:
        batch_since: when a mailbox began with its batch (monotonic), None between two: its timeout is that of a batch.

    Made and ended by the drive's thread; `overdue`, `interrupt` and `resists` are the watch's.

    Attributes:
        context: interrupts the thread.
        since: monotonic time of the start.
        reason: why the watch ends it.
    """

    def __init__(
        self, works: Sequence[Work], *, together: bool, batch_since: Callable[[Work], float | None]
    ) -> None:
        self.works, self.context, self.since = list(works), Interruptible(), time.monotonic()
        self._together, self._batch_since = together, batch_since
        self._interrupted_at: float | None = None
        self._insisted_at = 0.0
        self.reason: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[Claim, asyncio.Task[None]] = {}
        self._endings: dict[Claim, ClaimLost] = {}

    def begin(self, work: Work) -> None:
        """A call begins; called by its task of the event loop."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._tasks[work.claim] = task

    def end(self, work: Work) -> None:
        """A call is over."""
        self.works.remove(work)

    def overdue(self, now: float) -> Work | None:
        """A call that runs for longer than its node allows, and that did not end by itself."""
        grace = LOOP_GRACE_S if self._together else 0.0
        for work in list(self.works):
            timeout_s = work.node.plan.timeout_s
            since = self._batch_since(work) if work.call.reads else self.since
            if timeout_s is not None and since is not None and now - since > timeout_s + grace:
                return work
        return None

    def interrupt(self, reason: Exception, now: float, *, politely: bool = False) -> None:
        """Ends what runs. `politely`: coroutines are cancelled on their loop rather than interrupted."""
        if self._interrupted_at is not None:
            return
        self._interrupted_at, self._insisted_at, self.reason = now, now, reason
        if politely and self._together and self._loop is not None:
            for task in list(self._tasks.values()):
                self._cancel(task)
        else:
            self.context.interrupt(reason)

    def end_lost(self, lost: Sequence[Claim], now: float) -> None:
        """Ends those calls that do not count any more; others beside them go on. When all that still run were told so
        before, they are ended like any that resist."""
        if lost and (not self._together or all(work.claim in self._endings for work in list(self.works))):
            self.interrupt(claim_lost(lost[0]), now, politely=True)
        for claim in lost:
            if claim in self._tasks and claim not in self._endings:
                self._endings[claim] = claim_lost(claim)
                self._cancel(self._tasks[claim])

    def ending(self, work: Work) -> ClaimLost | None:
        """Why a call alone was cancelled."""
        return self._endings.get(work.claim)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def insist(self, now: float) -> None:
        """Interrupts again what still runs."""
        if self._interrupted_at is not None and now - self._insisted_at > INSIST_S:
            self._insisted_at = now
            self.context.repeat()

    @property
    def is_interrupted(self) -> bool:
        """Whether the watch ends it."""
        return self._interrupted_at is not None

    def resists(self, now: float) -> bool:
        """Whether it was interrupted long ago and still runs."""
        grace_s = LOST_GRACE_S if isinstance(self.reason, ClaimLost) else GRACE_S
        return self._interrupted_at is not None and now - self._interrupted_at > grace_s
