"""The page of one run: `/runs/{run_id}`, and what can be done to it there."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, Response

from mosaic_queues.ledger import Ledger
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.client import Run
from mosaic_tasks.gateway.callers import Here, Starter, caller, run_seen_by, starter
from mosaic_tasks.gateway.pages.bells import Bell
from mosaic_tasks.gateway.pages.desk import AtDesk, Desk, Reader, Seen, seen_by
from mosaic_tasks.gateway.pages.live import Fragments
from mosaic_tasks.gateway.pages.looks import Look, look
from mosaic_tasks.gateway.pages.rendering import PageRoute, fragment, page, see

router = APIRouter(prefix="/runs/{run_id}", route_class=PageRoute, include_in_schema=False)

PARTS = ("head", "output", "waits", "graph", "timeline", "nodes", "detail")
"""Of the page, from top to bottom; each has a template."""

NodeName = Annotated[str, Query(max_length=200)]


@router.get("")
async def run_page(run: Seen, desk: AtDesk, principal: Reader, node: NodeName = "") -> Response:
    """A run, and one of its nodes in full."""
    seen = await desk.studio.make(partial(_look, run, desk, node))
    live = f"/runs/{run.id}/changes" + (f"?{urlencode({'node': node})}" if node else "")
    parts = _parts(seen, principal)
    return page("run", principal, look=seen, parts=parts, live=live)


@router.get("/changes")
async def run_changes(
    run: Seen, gateway: Here, desk: AtDesk, principal: Reader, node: NodeName = ""
) -> Response:
    """The page of a run, renewed."""
    bell = Bell(desk.ledger, await asyncio.to_thread(_streams, run, desk.ledger))
    key = ("run", run.id, node, principal.scopes)
    return desk.renewed(gateway, principal, key, lambda: _parts(_look(run, desk, node), principal), bell)


@router.post("/cancel")
def cancel(run: Annotated[Run, Depends(seen_by(caller("cancel")))]) -> Response:
    """Ends the run."""
    run.cancel("cancelled on the status page")
    return see(f"/runs/{run.id}")


Restarter = Annotated[Starter, Depends(starter("cancel"))]


def _run_again(run_id: str, starter: Restarter) -> Run:
    return run_seen_by(starter.principal, run_id, starter.gateway)


@router.post("/rerun")
def rerun(
    run: Annotated[Run, Depends(_run_again)], starter: Restarter, node: Annotated[str, Form()]
) -> Response:
    """Runs a node again, and all that depends on it."""
    starter.rerun(run, node)
    return _back_to(run, node)


@router.post("/score")
def score(
    run: Annotated[Run, Depends(seen_by(caller("score")))],
    node: Annotated[str, Form()],
    value: Annotated[float, Form()],
) -> Response:
    """Says how right the answer of a mixture is."""
    run.score(node, value)
    return _back_to(run, node)


def _back_to(run: Run, node: str) -> Response:
    return see(f"/runs/{run.id}?{urlencode({'node': node})}#detail")


def _look(run: Run, desk: Desk, node: str) -> Look:
    return look(run, desk.charts.of(run), desk.ledger, node=node)


def _parts(seen: Look, principal: Principal) -> Fragments:
    return {part: fragment(f"_{part}", look=seen, scopes=principal.scopes) for part in PARTS}


def _streams(run: Run, ledger: Ledger) -> list[str]:
    """What tells that the page is to be made anew: the run's events, and what its output node says."""
    return [ledger.keys.run(run.id)[3], ledger.keys.stream(run.id, str(run.plan().output))]
