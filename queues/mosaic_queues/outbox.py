"""Publishes ready calls as Celery messages: many calls a message, many messages a round trip.

The ledger is the truth: a call that is ready stays in the outbox until it is claimed, so a message that is lost or sent
twice costs time, never a result.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from mosaic_queues.ledger import Group

log = structlog.get_logger(__name__)

CALL_TASK = "mosaic.call"
"""Name of the task that runs calls: `(run_id, [call ids])`."""

BatchSize = Callable[[str, Sequence[str]], int]
"""How many of these calls, in this queue, one message may carry."""


def one_call_a_message(_queue: str, _calls: Sequence[str]) -> int:
    """The batch size without knowledge of the calls."""
    return 1


class Outbox:
    """Sends calls to the queues they wait for."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def publish(
        self, run_id: str, groups: Iterable[Group], *, batch_size: BatchSize = one_call_a_message
    ) -> bool:
        """Publishes; False when the broker does not answer (the sweeper publishes later)."""
        messages = [
            (queue, part) for queue, calls in groups for part in _parts(calls, batch_size(queue, calls))
        ]
        if not messages:
            return True
        try:
            with self._app.producer_pool.acquire(block=True) as producer, producer.batch():
                for queue, calls in messages:
                    self._send(producer, run_id, queue, calls)
        except (OperationalError, *self._app.connection_for_write().connection_errors) as error:
            log.warning(
                "broker does not answer, the sweeper publishes later",
                event_name="outbox.down",
                run=run_id,
                error=str(error),
            )
            return False
        return True

    def _send(self, producer: Any, run_id: str, queue: str, calls: Sequence[str]) -> None:
        message = self._app.amqp.as_task_v2(
            uuid.uuid4().hex,
            CALL_TASK,
            (run_id, calls),
            root_id=run_id,
            argsrepr=describe(run_id, calls),
            kwargsrepr="{}",
            ignore_result=True,
            origin="mosaic",
        )
        producer.publish(
            message.body,
            exchange="",
            routing_key=queue,
            serializer="json",
            headers={**message.headers, "sent_at": time.time()},
            retry=True,
            retry_policy={"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 1.0},
            **message.properties,
        )


def describe(run_id: str, calls: Sequence[str]) -> str:
    """The arguments of a call message as Flower shows them."""
    named = ", ".join(calls[:3])
    return f"({run_id}, [{named}{', ...' if len(calls) > 3 else ''}], {len(calls)} calls)"


def _parts(calls: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for first in range(0, len(calls), size):
        yield calls[first : first + size]
