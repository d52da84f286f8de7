"""Runs of schedules: what a schedule says becomes a plan, and a tick becomes a run, once.

A tick's run has the idempotency key `schedule/NAME/TIME`, so whoever starts a tick again gets the run that it has. Who
takes the key decides the run's id. Where the schedule was changed before that run was opened, it is opened as the
schedule is now, by that very id: who took the key may be frozen, and of both only the first to open it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mosaic_queues.errors import InputError, UnknownRun
from mosaic_queues.times import utc_text
from mosaic_tasks.definition.plan import Plan, plan_hash
from mosaic_tasks.definition.schedules import inputs_at, shown_tick
from mosaic_tasks.definition.schemas import complete_inputs
from mosaic_tasks.definition.terms import Terms
from mosaic_tasks.definition.workflow import Workflow
from mosaic_tasks.execution.process import Process
from mosaic_tasks.scheduling.schedules import Put, Said, Schedule, Schedules
from mosaic_tasks.scheduling.ticks import Timing, previous
from mosaic_tasks.submission import open_run, plan_for
from mosaic_tasks.webhooks.targets import check_url


def put_schedule(schedules: Schedules, name: str, workflow: Workflow) -> Put:
    """Adds the schedule of this name of a workflow, or changes what it says.

    Raises:
        DefinitionError: the workflow is wrong, or the inputs of one of its schedules do not fit.
        InputError: the name is that of another workflow's or tenant's schedule, or its webhook may not be told.
    """
    spec = workflow.schedules[name]
    if spec.webhook is not None:
        check_url(spec.webhook)
    terms = Terms(priority=spec.priority, budget_usd=spec.budget, tenant=spec.tenant)
    plan = terms.of(plan_for(workflow))
    data = plan.encode()
    said = Said(workflow=workflow.name, plan=plan_hash(data), inputs=spec.inputs, webhook=spec.webhook)
    return schedules.put(name, said=said, timing=Timing.of(spec), plan=data, tenant=spec.tenant)


def start_tick(process: Process, schedule: Schedule, plan: Plan, tick: int, *, before: int) -> str:
    """The id of the run of a tick, which starts unless it did.

    Args:
        before: the tick before it that has a run; 0: none has.

    Raises:
        BindingError: a template of the inputs fails.
        InputError: the inputs do not fit.
        ServerError, redis.RedisError: the server does not answer.
    """
    inputs, webhook = _inputs(schedule, plan, tick, before), schedule.said.webhook
    key = tick_key(schedule.name, tick)
    try:
        return open_run(process, plan, inputs, key=key, webhook=webhook).run_id
    except InputError:
        found = process.ledger.known_run(plan.tenant, key)
        if found is None:
            raise
        if not _is_there(process, found.run_id):
            open_run(process, plan, inputs, run_id=found.run_id, webhook=webhook)
        return found.run_id


def start_now(process: Process, schedule: Schedule, plan: Plan, now: int) -> str:
    """A run of a schedule besides its ticks, as if this were one.

    Raises:
        BindingError, InputError, ServerError, redis.RedisError: as `start_tick`.
    """
    inputs = _inputs(schedule, plan, now, schedule.ran)
    return open_run(process, plan, inputs, webhook=schedule.said.webhook).run_id


def tick_key(name: str, tick: int) -> str:
    """The idempotency key of a tick's run."""
    return f"schedule/{name}/{utc_text(1000 * tick)}"


def _inputs(schedule: Schedule, plan: Plan, tick: int, before: int) -> Mapping[str, Any]:
    shown = shown_tick(tick, before or previous(schedule.timing, tick), schedule.timing.zone)
    return complete_inputs(plan.inputs_schema, inputs_at(schedule.said.inputs, shown))


def _is_there(process: Process, run_id: str) -> bool:
    """Whether a run was opened: who noted its key may have died before."""
    try:
        process.ledger.run(run_id)
    except UnknownRun:
        return False
    return True


__all__ = ["put_schedule", "start_now", "start_tick", "tick_key"]
