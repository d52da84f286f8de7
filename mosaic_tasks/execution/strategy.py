"""How a worker takes up our messages: Celery's way, or a shorter one.

A solo worker runs a message where it receives it, so there is no pool to hand a request to, and nothing can ask about
it or revoke it meanwhile: the driver is called at once and the message acknowledged after it. That spares about a
third of what Celery spends on a message. A worker with the async pool hands the calls of a message to its host, and
acknowledges it when none of them needs it any more. Calls emit their own task events in every case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from celery import Celery
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import InvalidTaskError
from celery.utils.log import get_task_logger
from celery.worker import state
from celery.worker.strategy import default

from mosaic_queues.stencils import PLAN_HEADER
from mosaic_tasks.execution.driver import drive
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.pool import TaskPool as AsyncPool

logger = get_task_logger(__name__)

Handler = Callable[..., Any]


def strategy(task: Any, app: Celery, consumer: Any, **options: Any) -> Handler:
    """The handler of a worker's messages of `mosaic.call` and `mosaic.close` (`Task.Strategy`)."""
    if isinstance(consumer.pool, AsyncPool):
        return hosted(task, app, consumer)
    if not isinstance(consumer.pool, SoloPool):
        return checked(default(task, app, consumer, **options))
    process = process_for(app)

    def handle(message: Any, _body: Any, ack: Callable[..., Any], *_rest: Any) -> None:
        run_id, calls = arguments(message.payload)
        state.all_total_count[0] += 1
        state.total_count[task.name] += 1
        drive(process, run_id, calls)
        ack(logger, consumer.connection_errors)

    return handle


def checked(handler: Handler) -> Handler:
    """Celery's handler, for messages that are ours; in a child of its pool it is too late to refuse them."""

    def handle(message: Any, *rest: Any) -> Any:
        arguments(message.payload)
        return handler(message, *rest)

    return handle


def hosted(task: Any, app: Celery, consumer: Any) -> Handler:
    """The handler of a worker with the async pool."""
    pool, host = consumer.pool, process_for(app).host
    assert host is not None, "the worker's step starts before its consumer"

    def handle(message: Any, _body: Any, ack: Callable[..., Any], *_rest: Any) -> None:
        run_id, calls = arguments(message.payload)
        state.all_total_count[0] += 1
        state.total_count[task.name] += 1
        acknowledge = partial(ack, logger, consumer.connection_errors)
        named = message.headers.get(PLAN_HEADER)
        plan = named if isinstance(named, str) else ""
        host.take(run_id, calls, partial(pool.call_in_hub, acknowledge), plan=plan)

    return handle


def arguments(payload: Any) -> tuple[str, Sequence[str]]:
    """Run id and call ids from a message's payload.

    Raises:
        InvalidTaskError: somebody else's message; it becomes a dead letter.
    """
    try:
        (run_id, calls), _options, _embed = payload
    except (TypeError, ValueError):
        raise InvalidTaskError(f"no run id and call ids in {str(payload)[:80]!r}") from None
    if not (isinstance(run_id, str) and isinstance(calls, list) and all(isinstance(c, str) for c in calls)):
        raise InvalidTaskError(f"no run id and call ids in {str(payload)[:80]!r}")
    return run_id, calls
