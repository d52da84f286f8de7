"""How the joins of chords recover: mends those whose process died or whose message is lost."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import structlog
from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.broker import Broker, is_redis
from mosaic_queues.chords.joins import Chords, Join, Slot, decode_slot, new_token
from mosaic_queues.chords.mending import Mender
from mosaic_queues.connection import server_ms
from mosaic_queues.keys import Keys
from mosaic_queues.liveness import forget_dead, live_processes

log = structlog.get_logger(__name__)

MAX_PAUSE_MS = 10_000


class ChordRecovery:
    """Looks at the joins that are due; a policy of the sweeper.

    A join is looked at again after a pause that doubles from the grace to 10 s, and at once when a worker died.
    What a dead worker had not acknowledged is put back into its queue, as the broker itself would do after its
    visibility timeout. A message counts as lost when two sweeps in a row found it nowhere: one alone may have come
    between a worker's popping and its claim. Only Redis brokers can be looked into; on others, only dispatches
    are mended.

    Args:
        chords: the joins.
        mender: acts on their tasks.
        app: gives the broker's connection.
        grace_s: younger messages and leases are left alone.
        max_losses: a header that killed its worker so often fails.
    """

    def __init__(
        self, chords: Chords, *, mender: Mender, app: Celery, keys: Keys, grace_s: float, max_losses: int
    ) -> None:
        self._chords, self._mender, self._app, self._holders = chords, mender, app, keys
        self._grace_ms, self._max_losses = int(grace_s * 1000), max_losses
        self._alive: set[str] | None = None
        self._pauses: dict[str, int] = {}
        self._suspects: set[tuple[str, str, bytes]] = set()
        self._missing: set[tuple[str, str, bytes]] = set()

    @property
    def client(self) -> Redis:
        """Of the joins' server."""
        return self._chords.client

    @property
    def lock(self) -> str:
        """The key of its lock."""
        return f"{self._chords.index}:sweeper"

    def sweep(self) -> int:
        """Looks at every join that is due; returns how many messages or bodies were sent again."""
        now_ms = server_ms(self.client)
        alive = self._live_names()
        somebody_died = self._alive is None or not self._alive <= alive
        due = self._chords.due(None if somebody_died else now_ms)
        if not due:
            self._alive = alive
            return 0
        forget_dead(self.client, self._holders, now_ms=now_ms)
        self._suspects, self._missing = self._missing, set()
        with self._app.connection_for_write() as connection:
            broker = _broker(connection)
            mended = sum(self._try_to_look(group_id, now_ms, broker) for group_id in due)
        self._alive = alive
        return mended

    def _live_names(self) -> set[str]:
        return {process.name for process in live_processes(self.client, self._holders)}

    def _try_to_look(self, group_id: str, now_ms: int, broker: Broker | None) -> int:
        try:
            return self._look(group_id, now_ms, broker)
        except (RedisError, OperationalError, OSError):
            raise
        except Exception:
            log.exception("chord.broken", what="chord cannot be mended", chord=group_id)
            self._chords.look_again(group_id, now_ms + MAX_PAUSE_MS)
            return 0

    def _look(self, group_id: str, now_ms: int, broker: Broker | None) -> int:
        join = self._chords.read(group_id)
        if join is None:
            self._chords.unlist(group_id)
            self._pauses.pop(group_id, None)
            return 0
        if join.state == "ready":
            return self._dispatch(group_id, join, now_ms)
        slots = self._chords.slots(group_id)
        watch = Watch(now_ms, self._live_names(), self._grace_ms)  # after the slots: who claims later lives
        concerns = [
            (slot, raw, state) for slot, raw in slots.items() if watch.concerns(state := decode_slot(raw))
        ]
        mended = 0
        if broker is not None:
            mended = sum(self._mend(group_id, *concern, broker) for concern in concerns)
        self._pause(group_id, now_ms, soon=bool(concerns) and broker is not None)
        return mended

    def _pause(self, group_id: str, now_ms: int, *, soon: bool) -> None:
        suspected = soon and any(group == group_id for group, _, _ in self._missing)
        pause = 0 if suspected else min(2 * self._pauses.get(group_id, self._grace_ms // 2), MAX_PAUSE_MS)
        if pause:
            self._pauses[group_id] = pause
        self._chords.look_again(group_id, now_ms + pause)

    def _dispatch(self, group_id: str, join: Join, now_ms: int) -> int:
        overdue_ms = join.at_ms + self._grace_ms
        token = new_token()
        self._chords.look_again(group_id, max(overdue_ms, now_ms))
        if overdue_ms > now_ms or not self._chords.lease(group_id, seen=join.lease, token=token):
            return 0
        log.warning("chord.dispatch", what="body was not dispatched, it is now", chord=group_id)
        self._mender.dispatch(group_id, token)
        return 1

    def _mend(self, group_id: str, slot: str, raw: bytes, state: Slot, broker: Broker) -> int:
        if broker.holds(state.queue, state.task_id):
            return self._wait(group_id, slot, raw, state)
        tag = broker.unacked_tag(state.task_id)
        if tag is not None and state.status == "c":
            return self._again(group_id, slot, raw, state, lambda: broker.restore(tag))
        if (group_id, slot, raw) not in self._suspects:
            self._missing.add((group_id, slot, raw))
            return 0
        message = self._chords.message(group_id, slot)
        if self._mender.settle(group_id, slot, message):
            return 0
        if tag is not None:
            return self._again(group_id, slot, raw, state, lambda: broker.restore(tag))
        if message is None or (state.status == "c" and not state.acks_late):
            return self._fail(group_id, slot, raw, message)
        return self._again(group_id, slot, raw, state, lambda: self._mender.resend(message))

    def _wait(self, group_id: str, slot: str, raw: bytes, state: Slot) -> int:
        """The message is in its queue: nothing to mend, but the claim of a dead process ends."""
        if state.status == "c":
            waiting = state.waiting(since_ms=server_ms(self.client), lost=False)
            self._chords.change(group_id, slot, raw, waiting)
        return 0

    def _again(self, group_id: str, slot: str, raw: bytes, state: Slot, publish: Callable[[], None]) -> int:
        new = state.waiting(since_ms=server_ms(self.client), lost=state.status == "c")
        if new.losses > self._max_losses:
            return self._fail(group_id, slot, raw, self._chords.message(group_id, slot))
        if not self._chords.change(group_id, slot, raw, new):
            return 0
        log.warning("chord.resend", what="task of a chord is sent again", chord=group_id, task=state.task_id)
        publish()
        return 1

    def _fail(self, group_id: str, slot: str, raw: bytes, message: bytes | None) -> int:
        if self._chords.slot(group_id, slot) == raw:
            log.warning("chord.lost", what="task of a chord is lost for good", chord=group_id, slot=slot)
            self._mender.fail(group_id, slot, message)
        return 0


class Watch(NamedTuple):
    """Which slots may need mending."""

    now_ms: int
    alive: Collection[str]
    grace_ms: int

    def concerns(self, state: Slot) -> bool:
        if state.status == "c":
            return state.holder not in self.alive
        return state.at_ms + self.grace_ms <= self.now_ms


def _broker(connection: Any) -> Broker | None:
    """The broker, where it can be looked into; a channel of our own, which does not wait for a broker that is away."""
    return Broker(connection.channel()) if is_redis(connection) else None
