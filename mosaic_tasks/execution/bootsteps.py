"""What a worker's main process does besides running tasks: says which queues it serves, and sweeps."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from celery import Celery, bootsteps
from celery.signals import worker_process_shutdown

from mosaic_queues.heads import oldest_message
from mosaic_queues.ledger import Group
from mosaic_queues.objects import expire_objects
from mosaic_queues.sweeper import Sweeper
from mosaic_tasks.execution.process import (
    Process,
    WorkerFacts,
    close_all,
    close_process,
    process_for,
    set_worker_facts,
)


class MosaicStep(bootsteps.StartStopStep):  # type: ignore[misc, unused-ignore]
    """Announces the worker and runs a sweeper; ends both with the worker."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._sweeper: Sweeper | None = None
        if os.getcwd() not in sys.path:
            sys.path.append(
                os.getcwd()
            )  # where people keep their tools; `mosaic worker` finds them there too
        set_worker_facts(facts_of(parent))

    def start(self, parent: Any) -> None:
        """After the pool started, so that no thread of ours is forked."""
        process = process_for(parent.app)
        process.start_liveness(queues=facts_of(parent).queues, slots=parent.concurrency or 1)
        self._sweeper = sweeper(process)
        self._sweeper.start()

    def stop(self, parent: Any) -> None:
        """Ends the sweeper and says goodbye."""
        if self._sweeper is not None:
            self._sweeper.stop()
            self._sweeper = None
        close_process(parent.app)

    terminate = stop


def facts_of(worker: Any) -> WorkerFacts:
    """What a worker was started with."""
    return WorkerFacts(
        hostname=str(worker.hostname),
        queues=tuple(worker.app.amqp.queues.consume_from),
        slots=worker.concurrency or 1,
        task_events=bool(worker.task_events),
    )


def sweeper(process: Process) -> Sweeper:
    """A sweeper on a process's server and broker."""
    config = process.settings

    def publish(run_id: str, groups: Sequence[Group]) -> None:
        process.publish(run_id, process.plan_of(run_id), groups)

    return Sweeper(
        process.ledger,
        publish=publish,
        oldest_message=lambda queue: oldest_message(process.app, queue),
        over=lambda run_id: process.payloads.keep_objects_until(run_id, time.time() + config.retention_s),
        expire=lambda: expire_objects(process.client, namespace=config.namespace),
        pause_s=config.sweep_s,
        grace_s=config.outbox_grace_s,
        plans_s=config.max_run_s + config.retention_s,
        lock_s=max(5 * config.sweep_s, 5.0),
    )


@worker_process_shutdown.connect(weak=False)
def _close_child(**_options: Any) -> None:
    close_all()


def install_step(app: Celery) -> None:
    """Adds the step to the workers of an app."""
    app.steps["worker"].add(MosaicStep)
