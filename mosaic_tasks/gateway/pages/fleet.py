"""The page of the workers: `/workers`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, NamedTuple

from celery import Celery
from fastapi import APIRouter, Depends, Response

from mosaic_queues.connection import server_ms
from mosaic_queues.liveness import LiveProcess, live_processes
from mosaic_queues.work import Work, work_of
from mosaic_routing.inventory import EngineReport, engines
from mosaic_routing.machines import REPORTS, Machine, machines
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.gateway.callers import Here, caller
from mosaic_tasks.gateway.pages.desk import AtDesk, Desk
from mosaic_tasks.gateway.pages.live import Fragments, Looking
from mosaic_tasks.gateway.pages.rendering import PageRoute, fragment, page

router = APIRouter(prefix="/workers", route_class=PageRoute, include_in_schema=False)

LOOK_S = 2.0
"""Workers report so often, or a little more."""

Operator = Annotated[Principal, Depends(caller("operate"))]


class QueueRow(NamedTuple):
    """A queue, its messages, and how many workers and slots serve it."""

    name: str
    work: Work
    workers: int
    slots: int


class Fleet(NamedTuple):
    """What lives; `processes` are those that consume queues."""

    processes: Sequence[LiveProcess]
    queues: Sequence[QueueRow]
    engines: Sequence[EngineReport]
    machines: Sequence[Machine]
    now_ms: int


@router.get("")
async def workers_page(gateway: Here, desk: AtDesk, principal: Operator) -> Response:
    """Processes, queues, engines and GPUs."""
    parts = await desk.studio.make(partial(_parts, gateway.app, desk))
    return page("workers", principal, parts=parts, live="/workers/changes")


@router.get("/changes")
async def workers_changes(gateway: Here, desk: AtDesk, principal: Operator) -> Response:
    """The same, renewed."""
    return desk.renewed(gateway, principal, "workers", partial(_parts, gateway.app, desk), Looking(LOOK_S))


def _parts(app: Celery, desk: Desk) -> Fragments:
    return {"fleet": fragment("_fleet", fleet=_fleet(app, desk))}


def _fleet(app: Celery, desk: Desk) -> Fleet:
    client, keys = desk.ledger.client, desk.ledger.keys
    processes = [process for process in live_processes(client, keys) if process.queues]
    return Fleet(
        sorted(processes, key=lambda process: (process.host, process.started_ms)),
        _queues(app, processes),
        engines(client, keys=keys),
        machines(REPORTS.aged(client, keys=keys)),
        server_ms(client),
    )


def _queues(app: Celery, processes: Sequence[LiveProcess]) -> list[QueueRow]:
    serving: dict[str, list[int]] = {}
    for process in processes:
        for queue in process.queues:
            serving.setdefault(queue, []).append(process.slots)
    works = work_of(app, sorted(serving))
    return [QueueRow(name, works[name], len(serving[name]), sum(serving[name])) for name in works]
