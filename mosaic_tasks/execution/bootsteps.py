"""What a worker's main process does besides running tasks: says which queues it serves, and sweeps."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
from celery import Celery, bootsteps
from celery.signals import worker_process_shutdown

from mosaic_queues.blocking_pop import end_blocking_pop
from mosaic_queues.broker import ANY, oldest_message, see_all_levels
from mosaic_queues.collector import end_loading
from mosaic_queues.errors import ConfigurationError, UnknownRun
from mosaic_queues.objects import expire_objects
from mosaic_queues.outbox import keep_client
from mosaic_queues.queue_ages import QueueAges
from mosaic_queues.run_recovery import Limits, RunRecovery
from mosaic_queues.sweeper import Sweeping, start_sweeping
from mosaic_queues.topology import topology
from mosaic_queues.transitions import INPUTS_CALL, Group, LiveCall, RunStanding
from mosaic_routing.serving import unhosted, worker_commands
from mosaic_tasks.definition.plan import INPUTS
from mosaic_tasks.engines.registry import close_engines
from mosaic_tasks.execution.burying import BuryingStep
from mosaic_tasks.execution.controlled import ControlStep, hosting
from mosaic_tasks.execution.hosting import Host
from mosaic_tasks.execution.machine import MachineStep
from mosaic_tasks.execution.placing.direct import delete_deserted
from mosaic_tasks.execution.placing.dispatching import release_sent
from mosaic_tasks.execution.prepared import CallId
from mosaic_tasks.execution.process import (
    Process,
    WorkerFacts,
    close_all,
    close_process,
    process_for,
    set_worker_facts,
)
from mosaic_tasks.pool import TaskPool
from mosaic_tasks.webhooks.telling import Telling

log = structlog.get_logger(__name__)

REFUSED = 1
"""Exit code of a worker that is of no use."""


class MosaicStep(bootsteps.StartStopStep):  # type: ignore[misc, unused-ignore]
    """Announces the worker and has its sweeper recover runs; ends both with the worker."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._sweeping: Sweeping | None = None
        self._host: Host | None = None
        if os.getcwd() not in sys.path:
            # where people keep their tools; `mosaic worker` finds them there too
            sys.path.append(os.getcwd())
        facts = facts_of(parent)
        refuse_unhosted(facts.queues, parent.app)
        refuse_topology()
        set_worker_facts(facts)
        end_loading()

    def start(self, parent: Any) -> None:
        """After the pool started, so that no thread of ours is forked."""
        set_worker_facts(facts_of(parent))  # other steps may have added queues
        process = process_for(parent.app)
        hosts = isinstance(parent.pool, TaskPool)
        process.start_liveness(queues=facts_of(parent).queues, slots=parent.concurrency or 1, hosts=hosts)
        if hosts:
            self._host = Host(process, loop=parent.pool.loop, slots=parent.pool.slots)
            process.host = parent.pool.hosted = self._host
            parent.pool.at_end(close_engines)
        self._sweeping = start_sweeping(
            run_recovery(process),
            namespace=process.settings.namespace,
            pause_s=process.settings.sweep_s,
        )

    def stop(self, parent: Any) -> None:
        """Ends the recovery of runs and says goodbye. Calls of a host are recorded first: its pool ends here."""
        if self._host is not None:
            parent.pool.stop()
        if self._sweeping is not None:
            self._sweeping.stop()
            self._sweeping = None
        if self._host is not None:
            self._host.close()
            self._host = None
        close_process(parent.app)

    terminate = stop


class LeanConsumer(bootsteps.StartStopStep):  # type: ignore[misc, unused-ignore]
    """Has the worker's consumer acknowledge with one Redis client, look into all levels of priority, and end without
    waiting for more, where the broker is one."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        """Whenever there is a new connection."""
        keep_client(consumer.task_consumer.channel)
        see_all_levels(consumer.task_consumer.channel)

    def shutdown(self, consumer: Any) -> None:
        """Before the connection closes: a worker that has nothing to do ends at once."""
        if consumer.task_consumer is not None:
            end_blocking_pop(consumer.task_consumer.channel)


def refuse_unhosted(queues: Sequence[str], app: Celery) -> None:
    """Ends a worker that would take calls of models that it does not host, and fail them.

    Raises:
        SystemExit: it serves such a queue.
    """
    if wrong := unhosted(queues, hosting(app)):
        named = " and ".join(repr(queue) for queue in wrong)
        told = f"it does not host what it would serve, {named}; start instead: {worker_commands(wrong)}"
        log.error("worker.refused", what=told)
        raise SystemExit(REFUSED)


def refuse_topology() -> None:
    """Ends a worker whose topology cannot be read: it names where dead letters go.

    Raises:
        SystemExit: it cannot.
    """
    try:
        topology()
    except ConfigurationError as error:
        log.error("worker.refused", what="the worker does not start", error=str(error))
        raise SystemExit(REFUSED) from None


def facts_of(worker: Any) -> WorkerFacts:
    """What a worker was started with."""
    return WorkerFacts(
        hostname=str(worker.hostname),
        queues=tuple(worker.app.amqp.queues.consume_from),
        slots=worker.concurrency or 1,
        task_events=bool(worker.task_events),
        pid=os.getpid(),
    )


class Recovering:
    """A worker's process, as the recovery of runs needs it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._telling = Telling(process.webhooks, process.ledger.run)

    def publish(self, run_id: str, groups: Sequence[Group]) -> None:
        """Sends ready calls in batches."""
        self._process.publish(run_id, self._process.plan_of(run_id), groups)

    def priority(self, run_id: str) -> int:
        """What its submission said. Where the router has placed calls, each has its own."""
        plan = self._process.plan_of(run_id)
        return ANY if plan.has_routed else plan.plan.priority

    def deadline_s(self, run_id: str) -> float | None:
        """What its submission or its workflow said."""
        return self._process.plan_of(run_id).plan.deadline_s

    def oldest_message(self, queue: str, priority: int) -> float | None:
        """Looks at the head of a queue."""
        return oldest_message(self._process.app, queue, priority)

    def is_stranded(self, run_id: str, call: LiveCall) -> bool:
        """Whether the router sent it where nobody takes it any more, or has not placed it."""
        return not self._process.is_served(call.queue) and self._process.plan_of(run_id).is_routed(call.call)

    def early(self, delayed: Mapping[str, Sequence[LiveCall]]) -> Mapping[str, Sequence[str]]:
        """Those that wait for their turn where there is room now."""
        return self._process.places.early(delayed) if self._process.places is not None else {}

    def timeout_s(self, run_id: str, call: str) -> float | None:
        """The timeout of a node's calls; what only collects them or reads along has none."""
        named = CallId(call)
        is_timed = named.item is not None or "." not in named.own
        return self._process.plan_of(run_id).plan.nodes[named.node].timeout_s if is_timed else None

    def node_of(self, run_id: str, call: str) -> str:
        """`node 'people'`, or the workflow for its inputs."""
        return self._process.plan_of(run_id).label(INPUTS if call == INPUTS_CALL else CallId(call).node)

    def run_ended(self, run_id: str, standing: RunStanding) -> None:
        """It is counted, and its trace gets its root. What was sent and will not be asked any more is no load."""
        self._process.observer.run_ended(run_id, standing)
        if standing.status != "done":
            with suppress(UnknownRun):  # past its retention by now: what it had sent has lapsed
                if self._process.plan_of(run_id).has_routed:
                    release_sent(self._process, run_id)

    def calls_lost(self, run_id: str, calls: Sequence[LiveCall], now_ms: int) -> None:
        """They are counted, and told of: who lost them cannot."""
        nodes = self._process.plan_of(run_id).plan.nodes
        for call in calls:
            name = nodes[CallId(call.call).node].name
            self._process.observer.lost(run_id, call, name, now_ms=now_ms)

    def round_over(self, ages: QueueAges, mended: int) -> None:
        """How long calls wait is left for whoever asks, and webhooks are told of runs that ended."""
        self._process.observer.swept(ages, mended=mended)
        self._telling.sweep()

    def over(self, run_ids: Sequence[str]) -> None:
        """Objects outlive their run by the retention. Who watches is told how they ended."""
        process = self._process
        process.payloads.keep_objects_until(run_ids, time.time() + process.settings.retention_s)
        process.reporter.runs_ended([run for run in process.ledger.runs(run_ids) if run is not None])

    def expire(self) -> None:
        """Deletes the objects of runs past their retention, and the queues of workers that died."""
        expire_objects(self._process.client, namespace=self._process.settings.namespace)
        delete_deserted(self._process)


def run_recovery(process: Process) -> RunRecovery:
    """Recovers the runs of a process's server."""
    config = process.settings
    limits = Limits(
        grace_s=config.outbox_grace_s,
        max_run_s=config.max_run_s,
        max_run_bytes=config.max_run_bytes,
        plans_s=config.max_run_s + config.retention_s,
    )
    return RunRecovery(process.ledger, host=Recovering(process), limits=limits)


@worker_process_shutdown.connect(weak=False)
def _close_child(**_options: Any) -> None:
    close_all()


def install_steps(app: Celery) -> None:
    """Adds the steps to the workers of an app."""
    app.steps["worker"].update((MosaicStep, MachineStep))
    app.steps["consumer"].update((LeanConsumer, BuryingStep, ControlStep))
