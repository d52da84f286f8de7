"""The page of all runs: `/`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlencode

from celery import Celery
from fastapi import APIRouter, Depends, Query, Response

from mosaic_queues.changes import RunChange
from mosaic_queues.connection import server_ms
from mosaic_queues.errors import UnknownRun
from mosaic_queues.transitions import RunRecord, RunStatus
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.client import Run, get_run, list_runs
from mosaic_tasks.gateway.callers import Here
from mosaic_tasks.gateway.pages.charts import Charts
from mosaic_tasks.gateway.pages.desk import AtDesk, Desk, Reader
from mosaic_tasks.gateway.pages.live import Fragments
from mosaic_tasks.gateway.pages.rendering import PageRoute, fragment, page
from mosaic_tasks.inspection.diagram import is_done

router = APIRouter(route_class=PageRoute, include_in_schema=False)

ON_A_PAGE = 25


class Choice(NamedTuple):
    """Which runs are listed.

    Attributes:
        before: the run that stands last on the page before; empty: this is the first one.
    """

    status: RunStatus | None
    workflow: str
    before: str

    def is_touched_by(self, change: RunChange, *, tenant: str | None) -> bool:
        """Whether the run may be listed otherwise than before, to whom sees the runs of a tenant (None: all)."""
        return (
            tenant in (None, change.tenant)
            and self.status in (None, change.was, change.status)
            and self.workflow in ("", change.name)
            and (not self.before or change.run_id < self.before)
        )

    def address(self, path: str = "/", *, before: str) -> str:
        """Where these runs are listed, from another one on."""
        said = {"status": self.status, "workflow": self.workflow, "before": before}
        words = urlencode({name: value for name, value in said.items() if value})
        return f"{path}?{words}" if words else path


class Row(NamedTuple):
    """A run in the list.

    Attributes:
        done: so many of its `nodes` are done, or need not be.
    """

    record: RunRecord
    tenant: str
    done: int
    nodes: int
    cost_usd: float
    took_ms: int

    @property
    def id(self) -> str:
        """Of its element in the page."""
        return f"run-{self.record.run_id}"


class Listed(NamedTuple):
    """A page of the list; `older`: where the next one is, empty where there is none."""

    rows: Sequence[Row]
    older: str
    now_ms: int

    @property
    def shows_tenants(self) -> bool:
        """Whether there is a column for them."""
        return any(row.tenant for row in self.rows)


def _chosen(
    status: Literal["", "running", "done", "failed", "cancelled"] = "",
    workflow: Annotated[str, Query(max_length=200)] = "",
    before: Annotated[str, Query(max_length=64)] = "",
) -> Choice:
    return Choice(status or None, workflow.strip(), before)


Chosen = Annotated[Choice, Depends(_chosen)]
"""What an address asks for."""


@router.get("/")
async def runs_page(
    gateway: Here,
    desk: AtDesk,
    principal: Reader,
    choice: Chosen,
) -> Response:
    """Runs, newest first."""
    table = await desk.studio.make(partial(_whole, gateway.app, desk, principal, choice))
    live = choice.address("/changes", before=choice.before)
    return page("runs", principal, table=table, choice=choice, live=live)


@router.get("/changes")
async def runs_changes(
    gateway: Here,
    desk: AtDesk,
    principal: Reader,
    choice: Chosen,
) -> Response:
    """The list, renewed."""
    tenant = principal.sees_alone
    news = desk.changes.listen(partial(choice.is_touched_by, tenant=tenant))
    render = partial(_parts, gateway.app, desk, principal, choice)
    return desk.renewed(gateway, principal, ("runs", tenant, choice), render, news)


def _whole(app: Celery, desk: Desk, principal: Principal, choice: Choice) -> str:
    listed = _listed(app, desk, principal, choice)
    return _table(listed, choice, _cells(listed))


def _parts(app: Celery, desk: Desk, principal: Principal, choice: Choice) -> Fragments:
    """The table without what is in its rows, which a browser keeps where they stay, and each row."""
    listed = _listed(app, desk, principal, choice)
    return {"runs": _table(listed, choice, {}), **_cells(listed)}


def _table(listed: Listed, choice: Choice, cells: Fragments) -> str:
    return fragment("_runs", listed=listed, choice=choice, cells=cells)


def _cells(listed: Listed) -> Fragments:
    return {row.id: fragment("_row", row=row, listed=listed) for row in listed.rows}


def _listed(app: Celery, desk: Desk, principal: Principal, choice: Choice) -> Listed:
    records = list_runs(
        tenant=principal.sees_alone,
        status=choice.status,
        workflow=choice.workflow or None,
        limit=ON_A_PAGE + 1,
        before=choice.before or None,
        app=app,
    )
    shown, now_ms = records[:ON_A_PAGE], server_ms(desk.ledger.client)
    older = choice.address(before=shown[-1].run_id) if len(records) > len(shown) else ""
    rows = [row for record in shown for row in _rows(app, desk.charts, record, now_ms)]
    return Listed(rows, older, now_ms)


def _rows(app: Celery, charts: Charts, record: RunRecord, now_ms: int) -> list[Row]:
    """Its row; none where it is past its retention since."""
    try:
        return [_row(get_run(record.run_id, app=app), charts, record, now_ms)]
    except UnknownRun:
        return []


def _row(run: Run, charts: Charts, record: RunRecord, now_ms: int) -> Row:
    chart = charts.of(run)
    view = chart.view()
    own = [node for node in view.nodes if not node.asked_by]
    return Row(
        record,
        chart.plan.tenant,
        sum(map(is_done, own)),
        len(own),
        sum(node.cost_usd for node in view.nodes),
        max((record.ended_ms or now_ms) - (view.begun_ms or record.created_ms), 0),
    )
