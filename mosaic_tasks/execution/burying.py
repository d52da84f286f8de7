"""What a worker does with messages that nobody can work on: ours become dead letters, those of others stay Celery's.

A message is ours by the name of its task, `mosaic.` and what follows; one that tells none, by its queue. The letter is
noted in the step that acknowledges the message; then Celery does what it always does with it (log, signals, a failure
for who waits for its result), and its own acknowledgement finds nothing left to do.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import Any

import structlog
from celery import bootsteps
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from mosaic_queues.broker import is_redis
from mosaic_queues.dead_letters import DeadLetter, DeadLetters, dead_letters, task_of
from mosaic_queues.errors import CallLost
from mosaic_queues.topology import topology
from mosaic_queues.transitions import Claim
from mosaic_queues.unreadable import bear_unreadable
from mosaic_tasks.execution.process import Process

log = structlog.get_logger(__name__)

_OURS = "mosaic."
"""How the names of our tasks and queues begin."""


class BuryingStep(bootsteps.StartStopStep):  # type: ignore[misc, unused-ignore]
    """Has a worker's consumer keep what it cannot work on, where the broker is a Redis."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        """Whenever there is a new connection."""
        channel = consumer.task_consumer.channel
        if not is_redis(consumer.connection):
            return
        burying = Burying(DeadLetters(channel), worker=str(consumer.hostname))
        kind = type(consumer)
        consumer.on_unknown_message = burying.before(kind.on_unknown_message.__get__(consumer), _unknown)
        consumer.on_unknown_task = burying.before(kind.on_unknown_task.__get__(consumer), _unregistered)
        consumer.on_invalid_task = burying.before(kind.on_invalid_task.__get__(consumer), _invalid)
        decode_error = kind.on_decode_error.__get__(consumer)
        undecodable = burying.before(lambda _body, message, error: decode_error(message, error), _undecodable)
        consumer.on_decode_error = lambda message, error: undecodable(None, message, error)
        bear_unreadable(channel, burying.refuse)


class Burying:
    """What one consumer does with such messages."""

    def __init__(self, letters: DeadLetters, *, worker: str) -> None:
        self._letters, self._worker = letters, worker
        self._queues = frozenset(queue for group in topology().workers for queue in group.queues)

    def before(self, do: Callable[..., Any], reason: Callable[..., str]) -> Callable[..., Any]:
        """What Celery does with a message, after one of ours was noted."""

        def handle(body: Any, message: Any, *error: Exception) -> Any:
            if is_ours(message, self._queues):
                self._bury(message, reason(message, *error))
            return do(body, message, *error)

        return handle

    def refuse(self, queue: str, raw: bytes) -> None:
        """What came from a queue and is no message: it cannot be handed on to anybody."""
        text = raw.decode(errors="backslashreplace")
        log.error("dead.letter", what="what is no message is a dead letter", queue=queue, text=text[:200])
        reason = f"no message that kombu can read: {text[:80]!r}"
        self._letters.add(
            DeadLetter(id=uuid.uuid4().hex, reason=reason, queue=queue, worker=self._worker, text=text)
        )

    def _bury(self, message: Any, reason: str) -> None:
        if self._letters.bury(message, reason, worker=self._worker):
            log.error(
                "dead.letter",
                what="a message that nobody can work on is a dead letter; see: mosaic dead show ID",
                id=message.delivery_tag,
                queue=message.delivery_info.get("routing_key"),
                reason=reason,
            )


def is_ours(message: Any, queues: Collection[str] = ()) -> bool:
    """Whether a message is for a task of ours; one that names none: whether it came from a queue of ours.

    Args:
        queues: further ones that are ours.
    """
    if (task := task_of(message)) is not None:
        return task.startswith(_OURS)
    queue = str(message.delivery_info.get("routing_key"))
    return queue.startswith(_OURS) or queue in queues


def bury_lost(process: Process, run_id: str, claim: Claim, *, queue: str, reason: CallLost) -> None:
    """Notes a call that killed the processes which ran it. Its run tells of it all the same, so what cannot be noted is
    only logged."""
    letter = DeadLetter(
        id=f"{run_id}:{claim.call}",
        reason=f"CallLost: {reason}",
        queue=queue,
        worker=process.facts.hostname,
        run=run_id,
        calls=(claim.call,),
    )
    try:
        with dead_letters(process.app) as letters:
            if letters is not None:
                letters.add(letter)
    except (RedisError, OperationalError, OSError) as error:
        log.warning("dead.untold", what="a lost call is no dead letter", id=letter.id, error=str(error))


def _unknown(message: Any) -> str:
    return f"it names no task ({message.content_type or 'without content type'}); only Celery's messages belong here"


def _unregistered(message: Any, _error: Exception) -> str:
    return f"no task {task_of(message)!r} is registered here; this worker may be older than who sent it"


def _invalid(_message: Any, error: Exception) -> str:
    return f"its arguments are wrong: {error}"


def _undecodable(_message: Any, error: Exception) -> str:
    return f"its body cannot be decoded: {error}"


__all__ = ["Burying", "BuryingStep", "bury_lost", "is_ours"]
