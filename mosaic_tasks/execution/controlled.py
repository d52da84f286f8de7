"""What Celery's remote control, and so Flower, asks of a worker: to revoke calls and runs, which it knows by the ids of
their events, and to take from other queues.

A revoked call is taken from whoever holds it and fails here, by the rule of its node; its holder, which may be a child
of any pool, is told that it runs for nothing. A worker that dies in between has revoked nothing: the call is ready
again.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import structlog
from celery import bootsteps
from celery.worker.state import revoked
from redis.exceptions import RedisError

from mosaic_queues.errors import CallRevoked, UnknownRun
from mosaic_queues.recalls import Recalled
from mosaic_queues.transitions import LiveCall
from mosaic_routing.serving import unhosted
from mosaic_tasks.execution.holding import Holding
from mosaic_tasks.execution.outcomes import failure
from mosaic_tasks.execution.prepared import CallId
from mosaic_tasks.execution.process import Process, process_for
from mosaic_tasks.execution.settling import Settling

log = structlog.get_logger(__name__)

LOOK_S = 0.25
REASON = "it was revoked, by Celery's `revoke` or in Flower"
_OURS = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12})(?::(.+))?")
"""The id of a run, or of a call of one, as a task: a UUID of version 7; those of Celery's own tasks have version 4."""


class ControlStep(bootsteps.StartStopStep):  # type: ignore[misc, unused-ignore]
    """Looks a few times a second at what remote control has changed in the worker."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._timer: Any = None
        self._seen: dict[Any, float] = {}
        self._due: deque[Any] = deque()

    def start(self, consumer: Any) -> None:
        """Whenever there is a new connection. What other workers told meanwhile was revoked before."""
        self._seen = revoked.as_dict()
        self._timer = consumer.timer.call_repeatedly(LOOK_S, self._look, (consumer,))

    def stop(self, _consumer: Any) -> None:
        """Looks no more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    shutdown = stop

    def _look(self, consumer: Any) -> None:
        process, queues = process_for(consumer.app), tuple(consumer.app.amqp.queues.consume_from)
        try:
            if queues != process.serves:
                cancel_unhosted(consumer, queues)
                process.serve(queues)
            self._revoke(process)
        except RedisError as error:
            log.warning("control.lost", what="the server was lost, so it is revoked later", error=str(error))

    def _revoke(self, process: Process) -> None:
        self._due.extend(self._newly_revoked())
        while self._due:
            task_id = self._due.popleft()
            try:
                revoke(process, task_id)
            except RedisError:
                self._due.appendleft(task_id)
                raise

    def _newly_revoked(self) -> Iterator[str]:
        """What was revoked since the last look: what runs again, in a run that goes on, was revoked before."""
        before, self._seen = self._seen, revoked.as_dict() if revoked else {}
        yield from (task_id for task_id, at in self._seen.items() if before.get(task_id) != at)


def hosting(app: Any) -> set[str]:
    """The queues of the models that an app's worker hosts."""
    return {queue for step in app.steps["worker"] for queue in getattr(step, "hosting", ())}


def cancel_unhosted(consumer: Any, queues: Sequence[str]) -> None:
    """Takes no more from queues of models that it does not host: it would fail their calls."""
    for queue in unhosted(queues, hosting(consumer.app)):
        log.error("control.refused", what="it does not host what it was told to serve", queue=queue)
        consumer.call_soon(consumer.cancel_task_queue, queue)


def revoke(process: Process, task_id: Any) -> None:
    """Cancels a run, or fails a call, where the id is that of one.

    Raises:
        redis.RedisError: the server is away.
    """
    named = _OURS.fullmatch(task_id) if isinstance(task_id, str) else None
    if named is None:
        return
    run_id, call = named.groups()
    with suppress(UnknownRun):
        if call is None:
            process.ledger.end_run(run_id, "cancelled", REASON)
        elif (found := _live(process, run_id, call)) is not None:
            _fail(process, run_id, found)


def _live(process: Process, run_id: str, call: str) -> LiveCall | None:
    return next((each for each in process.ledger.live_calls(run_id) if each.call == call), None)


def _fail(process: Process, run_id: str, found: LiveCall) -> None:
    holding = Holding(process, run_id, process.plan_of(run_id), [found.call])
    is_claimed = found.state == "claimed"
    try:
        if is_claimed:
            process.ledger.hand_back(run_id, [(found.call, found.fence)], holder=holding.claimant)
        holding.advance()
        _settle(holding, found)
        holding.commit()
    except RedisError:
        holding.let_go()
        raise
    finally:
        process.reporter.flush()  # the watch looks only while calls run
        if is_claimed:
            process.ledger.recalls.send([Recalled(found.claimant, run_id, [found.call])])


def _settle(holding: Holding, found: LiveCall) -> None:
    """Fails what was claimed; a mailbox that waits, and a call that waits for its next attempt, cannot be."""
    if not holding.claimed and not CallId(found.call).is_shadow:
        what = "a call that waits cannot be revoked, its run can"
        log.warning("control.waits", what=what, run=holding.run_id, call=found.call, state=found.state)
    node = holding.plan.node(CallId(found.call).node)
    while (claim := holding.next_claim()) is not None:
        Settling(holding).fail(claim, failure(node, claim, CallRevoked(REASON)))
