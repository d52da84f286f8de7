"""Tells the ends of runs to their webhooks: at least once, each time with the same id, and not for ever."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec
import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import ConfigurationError, InputError, UnknownRun
from mosaic_queues.times import utc_text
from mosaic_queues.transitions import RunRecord
from mosaic_tasks.webhooks.delivery import Failure, Message, attempt, sender_to
from mosaic_tasks.webhooks.pending import Pending, PendingWebhooks

log = structlog.get_logger(__name__)

PAUSES_S = (5.0, 30.0, 120.0, 600.0, 1_800.0, 3_600.0, 7_200.0)
"""Between attempts, of which there is one more."""
LEASE_S = 60.0
"""Whoever makes an attempt has so long; then another process makes it again."""
UNOPENED_S = 60.0
"""A run that is not there so long after its webhook was registered will not be."""
AT_ONCE = 32
AT_ONCE_TO_ONE = 8
"""A receiver that is slow must not hold up what others are told."""
LOOKS = 100
"""So many runs are looked at in a round."""


class Telling:
    """What a sweeper does for webhooks in each round. Attempts run in threads, since receivers may be slow."""

    def __init__(self, pending: PendingWebhooks, run: Callable[[str], RunRecord]) -> None:
        self._pending, self._run = pending, run
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._busy: Counter[str] = Counter()
        self._guard = threading.Lock()

    def sweep(self) -> None:
        """Looks at the runs whose turn it is."""
        for run_id in self._pending.due(most=LOOKS):
            found = self._pending.read(run_id)
            if found is None:
                self._pending.drop(run_id)
            elif found.body or (found := self._ended(found)) is not None:
                self._begin(found)

    def _ended(self, found: Pending) -> Pending | None:
        """It with what is told, where its run is over; else it is come back to, the later the longer that takes."""
        waited_s = (self._pending.now_ms() - found.since_ms) / 1000
        try:
            record = self._run(found.run_id)
        except UnknownRun:
            if waited_s > UNOPENED_S:
                self._pending.drop(found.run_id)
                return None
            record = None
        if record is None or record.status == "running":
            self._pending.put_off(found.run_id, pause_s=min(max(waited_s / 20, 0.2), 10.0), tries=0)
            return None
        body = body_of(record)
        self._pending.keep_body(found.run_id, body)
        return found._replace(body=body)

    def _begin(self, found: Pending) -> None:
        receiver = urlsplit(found.url).netloc
        if self._is_busy(receiver):
            self._pending.put_off(found.run_id, pause_s=1.0, tries=found.tries)
            return
        if not self._places.acquire(blocking=False):
            return
        self._count(receiver, 1)
        self._pending.put_off(found.run_id, pause_s=LEASE_S, tries=found.tries)
        threading.Thread(
            target=self._tell, args=(found, receiver), name="mosaic-webhook", daemon=True
        ).start()

    def _is_busy(self, receiver: str) -> bool:
        with self._guard:
            return self._busy[receiver] >= AT_ONCE_TO_ONE

    def _count(self, receiver: str, step: int) -> None:
        with self._guard:
            self._busy[receiver] += step
            self._busy += Counter()  # forgets those at zero

    def _tell(self, found: Pending, receiver: str) -> None:
        try:
            self._conclude(found, _attempt(found))
        except RedisError as error:
            log.warning("webhook.unnoted", what="it is told once more", run=found.run_id, error=str(error))
        finally:
            self._count(receiver, -1)
            self._places.release()

    def _conclude(self, found: Pending, failure: Failure | None) -> None:
        if failure is None:
            self._pending.drop(found.run_id)
        elif failure.is_final or found.tries >= len(PAUSES_S):
            self._pending.drop(found.run_id)
            told = {"run": found.run_id, "tries": found.tries + 1, "error": failure.reason}
            log.error("webhook.given_up", what="nobody took the end of a run", **told)
        else:
            pause_s = max(PAUSES_S[found.tries], failure.retry_after_s or 0.0)
            self._pending.put_off(found.run_id, pause_s=min(pause_s, PAUSES_S[-1]), tries=found.tries + 1)


def _attempt(found: Pending) -> Failure | None:
    """A secret that is missing may come; a URL that may not be told is told to whoever reads the log."""
    try:
        return attempt(sender_to(found.url), Message(f"msg_{found.run_id}", found.body))
    except InputError as error:
        return Failure(str(error), is_final=True)
    except ConfigurationError as error:
        return Failure(str(error))


def body_of(record: RunRecord) -> bytes:
    """What is told of a run; not its output, which is read by the id."""
    ended = utc_text(record.ended_ms or record.created_ms)
    data = {"run": record.run_id, "workflow": record.name, "status": record.status, "error": record.error}
    times = {"started": utc_text(record.created_ms), "ended": ended}
    return msgspec.json.encode(
        {"type": f"run.{record.status}", "timestamp": ended, "data": {**data, **times}}
    )
