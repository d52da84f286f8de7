"""The whole Celery surface: `mosaic.call`, `mosaic.close`, `mosaic.consume` and `mosaic.submit`."""

from __future__ import annotations

from typing import Any

from celery import Celery, Task

from mosaic_queues.errors import ConfigurationError
from mosaic_queues.outbox import CALL_TASK, CLOSE_TASK, CONSUME_TASK
from mosaic_tasks.definition.terms import Terms
from mosaic_tasks.execution.driver import drive
from mosaic_tasks.execution.placing.dispatching import equip
from mosaic_tasks.execution.process import equip_with, process_for
from mosaic_tasks.submission import submit_to

SUBMIT_TASK = "mosaic.submit"


def _refused(name: str, instead: str) -> Any:
    """A limit of Celery's that is none, and that remote control cannot set."""

    def refuse(task: Task, _value: object) -> None:
        raise ConfigurationError(
            f"a message of {task.name} carries any number of calls, so it has no {name}; {instead}"
        )

    return property(lambda _task: None, refuse)


class MessageTask(Task):  # type: ignore[misc, unused-ignore]
    """A task whose messages bring calls: Celery's limits would count messages, and end what they are not about."""

    rate_limit = _refused("rate limit", "set `limits` in the topology")
    time_limit = _refused("time limit", "give the node a `timeout`")
    soft_time_limit = _refused("time limit", "give the node a `timeout`")


def register(app: Celery) -> None:
    """Registers the tasks with this app alone. Their calls emit task events themselves, one for each call."""
    equip_with(equip)
    options: dict[str, Any] = {
        "base": MessageTask,
        "shared": False,
        "acks_late": True,
        "reject_on_worker_lost": True,
        "ignore_result": True,
        "send_events": False,
        "Strategy": "mosaic_tasks.execution.strategy:strategy",
    }

    @app.task(name=CALL_TASK, **options)
    def call(run_id: str, calls: list[str]) -> None:
        """Runs calls of a run, and those that they make ready while the message's budget lasts."""
        drive(process_for(app), run_id, calls)

    @app.task(name=CLOSE_TASK, **options)
    def close(run_id: str, calls: list[str]) -> None:
        """The body of a node's chord: aggregates its calls and opens its successors."""
        drive(process_for(app), run_id, calls)

    @app.task(name=CONSUME_TASK, **options)
    def consume(run_id: str, calls: list[str]) -> None:
        """Reads what came of the streams of a node, and makes something of it."""
        drive(process_for(app), run_id, calls)

    @app.task(name=SUBMIT_TASK, shared=False, bind=True, acks_late=True)
    def submit(
        self: Any,
        workflow: str,
        inputs: dict[str, Any] | None = None,
        key: str | None = None,
        priority: int | str = 0,
        tenant: str = "",
    ) -> str:
        """Submits a workflow file that this worker can read; for apps that do not install this package."""
        terms = Terms(priority=priority, tenant=tenant)
        return submit_to(app, workflow, inputs, key=key or f"task-{self.request.id}", terms=terms).run_id
