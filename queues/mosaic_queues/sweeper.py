"""Mends what a dead process, a lost message or a full stop left behind.

One process sweeps at a time, whoever holds the lock; two sweeping at once would be harmless, since every mend
is a fenced transition. What it decides is pure (`decide`); what it does is one transition and one publish each.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import structlog
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.ledger import Group, Ledger, LiveCall
from mosaic_queues.liveness import forget_dead, live_processes

log = structlog.get_logger(__name__)

RUNS_A_TRIP = 100
FORGET_AFTER_MS = 60_000
PROLONG_EVERY_S = 60.0

Publish = Callable[[str, Sequence[Group]], object]
OldestMessage = Callable[[str], float | None]
"""When the oldest message of a queue was published (Unix seconds), None for an empty queue."""


class Mend(NamedTuple):
    """What a run needs: calls to wake (due, or their message is lost), and claims of the dead, by holder."""

    wake: list[str]
    lost: dict[str, list[tuple[str, int]]]


def decide(
    calls: Sequence[LiveCall],
    *,
    now_ms: int,
    alive: Collection[str],
    grace_ms: int,
    oldest_ms: Mapping[str, int | None],
) -> Mend:
    """Compares what the ledger says with what lives.

    A ready call's message is lost when the call has waited for longer than the grace and its queue holds no
    message as old: queues are first in, first out, so its own, were it there, would be among the oldest.

    Args:
        oldest_ms: by queue, when its oldest message was published; None: the queue is empty.
    """
    mend = Mend([], {})
    for call in calls:
        if call.state == "claimed":
            if call.holder not in alive:
                mend.lost.setdefault(call.holder, []).append((call.call, call.fence))
        elif call.state == "delayed":
            if call.at_ms <= now_ms:
                mend.wake.append(call.call)
        elif call.at_ms + grace_ms <= now_ms and _is_lost(call, oldest_ms, grace_ms):
            mend.wake.append(call.call)
    return mend


def _is_lost(call: LiveCall, oldest_ms: Mapping[str, int | None], grace_ms: int) -> bool:
    oldest = oldest_ms.get(call.queue)
    return oldest is None or call.at_ms + grace_ms < oldest


class Sweeper:
    """Sweeps all unfinished runs every `pause_s`, from a daemon thread, while it holds the lock.

    Args:
        publish: sends groups of ready calls of a run.
        oldest_message: looks into a queue.
        over: told of each run that ended.
        expire: deletes what outlived its run; called now and then.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        publish: Publish,
        oldest_message: OldestMessage,
        over: Callable[[str], object],
        expire: Callable[[], object],
        pause_s: float,
        grace_s: float,
        plans_s: float,
        lock_s: float,
    ) -> None:
        self._ledger, self._publish, self._oldest_message = ledger, publish, oldest_message
        self._over, self._expire = over, expire
        self._pause_s, self._grace_ms = pause_s, int(grace_s * 1000)
        self._plans_s, self._lock_s = plans_s, lock_s
        self._token = secrets.token_hex(8)
        self._next_upkeep = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mosaic-sweeper", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and gives up the lock."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            try:
                if self._lead():
                    self.sweep()
            except Exception:
                log.exception("sweeper.failed", what="sweep failed, the next one tries again")
        try:
            self._resign()
        except RedisError as error:
            log.info("sweeper.resign", what="lock left to expire", error=str(error))

    def _lead(self) -> bool:
        """Takes or prolongs the lock."""
        client, key, lock_ms = self._ledger.client, self._ledger.keys.sweeper, int(self._lock_s * 1000)
        if client.set(key, self._token, nx=True, px=lock_ms):
            return True
        if client.get(key) != self._token.encode():
            return False
        client.pexpire(key, lock_ms)
        return True

    def _resign(self) -> None:
        client, key = self._ledger.client, self._ledger.keys.sweeper
        if client.get(key) == self._token.encode():
            client.delete(key)

    def sweep(self) -> int:
        """Looks at every unfinished run once; returns how many calls were published again."""
        listed = self._ledger.listed_runs()
        mended = 0
        for first in range(0, len(listed), RUNS_A_TRIP):
            mended += self._sweep_some(listed[first : first + RUNS_A_TRIP])
        self._upkeep()
        return mended

    def _sweep_some(self, listed: Sequence[tuple[str, int]]) -> int:
        ids = [run_id for run_id, _ in listed]
        statuses = self._ledger.statuses(ids)
        now_ms = server_ms(self._ledger.client)
        ended = [
            run_id
            for (run_id, opened), status in zip(listed, statuses, strict=True)
            if status != "running" and (status is not None or opened + FORGET_AFTER_MS < now_ms)
        ]
        for run_id in ended:
            self._over(run_id)
        self._ledger.unlist_runs(ended)
        running = [run_id for run_id, status in zip(ids, statuses, strict=True) if status == "running"]
        if not running:
            return 0
        found = self._ledger.live_calls_of(running)
        alive = {process.name for process in live_processes(self._ledger.client, self._ledger.keys)}
        oldest = self._oldest(found, now_ms)
        return sum(
            self._mend(
                run_id,
                decide(calls, now_ms=now_ms, alive=alive, grace_ms=self._grace_ms, oldest_ms=oldest),
                now_ms,
            )
            for run_id, calls in zip(running, found, strict=True)
        )

    def _oldest(self, found: Sequence[Sequence[LiveCall]], now_ms: int) -> dict[str, int | None]:
        """The age of the head of each queue that an overdue call waits for."""
        queues = {
            call.queue
            for calls in found
            for call in calls
            if call.state == "ready" and call.at_ms + self._grace_ms <= now_ms
        }
        heads = {queue: self._oldest_message(queue) for queue in queues}
        return {queue: None if head is None else int(head * 1000) for queue, head in heads.items()}

    def _mend(self, run_id: str, mend: Mend, now_ms: int) -> int:
        groups: list[Group] = []
        if mend.wake:
            groups += self._ledger.wake(run_id, mend.wake, now_ms=now_ms)
        for holder, claims in mend.lost.items():
            log.warning(
                "sweeper.lost",
                what="process lost, its calls are re-issued",
                run=run_id,
                holder=holder,
                calls=len(claims),
            )
            groups += self._ledger.take_back(run_id, claims, holder=holder)
        if groups:
            self._publish(run_id, groups)
        return sum(len(calls) for _, calls in groups)

    def _upkeep(self) -> None:
        """Now and then: prolongs the plans in use, forgets dead processes, expires stored objects."""
        if time.monotonic() < self._next_upkeep:
            return
        self._next_upkeep = time.monotonic() + PROLONG_EVERY_S
        running = [run_id for run_id, _ in self._ledger.listed_runs()]
        self._ledger.prolong_plans(self._ledger.plans_of(running), keep_s=self._plans_s)
        forget_dead(
            self._ledger.client, self._ledger.keys, before_ms=int(time.time() * 1000) - FORGET_AFTER_MS
        )
        self._expire()


def server_ms(client: Redis) -> int:
    """The server's clock in milliseconds."""
    seconds, micros = client.time()
    return seconds * 1000 + micros // 1000
