"""Runs over HTTP: started, listed, looked at, ended, run again, scored."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from mosaic_queues.connection import server_errors
from mosaic_routing.targets import Objective
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.definition.terms import Terms
from mosaic_tasks.execution.process import ledger_url, process_for
from mosaic_tasks.gateway.answers import (
    ALWAYS,
    OF_BODIES,
    OF_RUNS,
    Explanations,
    NodeName,
    NodeWhole,
    RunId,
    RunPage,
    RunState,
    RunWhole,
    Scored,
    Started,
    Status,
    document,
    run_state,
)
from mosaic_tasks.gateway.bodies import StrictRoute
from mosaic_tasks.gateway.callers import Here, Starter, caller, run_seen_by, starter
from mosaic_tasks.inspection.listing import Wanted, page_of_runs
from mosaic_tasks.submission import opening_of

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=StrictRoute, responses=ALWAYS)

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="The same key of the same tenant gives the same run, started once.",
    ),
]
Reader = Annotated[Principal, Depends(caller("read"))]
Ender = Annotated[Principal, Depends(caller("cancel"))]
Scorer = Annotated[Principal, Depends(caller("score"))]


class Asked(BaseModel):
    """What a request may say, and nothing else."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Submission(Asked):
    """What to run, and on what terms; what is left out is as the workflow says."""

    workflow: str = Field(description="Its name, as `GET /v1/workflows` lists it.", examples=["hello"])
    inputs: dict[str, Any] = Field(
        default_factory=dict,
        description="By name, as the workflow declares them.",
        examples=[{"who": "world"}],
    )
    priority: int | str = Field(
        default=0, description="0 is the most urgent, 9 gives way; or a name, such as `batch`."
    )
    objective: Objective | None = Field(default=None, description="What routing cares for most.")
    deadline_s: float | None = Field(default=None, gt=0, description="The run fails when it takes longer.")
    budget_usd: float | None = Field(default=None, ge=0, description="Its calls may cost so much together.")
    webhook: str | None = Field(
        default=None,
        repr=False,
        description="Where the end of the run is told, by a signed POST; only where the operator allows it.",
        examples=["https://example.org/hooks/runs"],
    )

    def terms(self, tenant: str) -> Terms:
        """On whose account, and how."""
        return Terms(
            priority=self.priority,
            objective=self.objective,
            deadline_s=self.deadline_s,
            budget_usd=self.budget_usd,
            tenant=tenant,
        )


class Again(Asked):
    """What to run again."""

    node: str = Field(description="With all that depends on it.", examples=["answer"])


class Verdict(Asked):
    """How right the answer of a mixture was."""

    node: str = Field(description="The mixture.", examples=["answer"])
    value: float = Field(ge=0, le=1, description="0 is wrong, 1 is right.")
    answer: Any = Field(default=None, description="The right one, where it is known.")


@router.post(
    "",
    operation_id="submit_run",
    summary="Start a run",
    status_code=HTTPStatus.CREATED,
    responses={
        **OF_BODIES,
        200: {"model": Started, "description": "The key stands for a run that was there before."},
        201: {"model": Started, "description": "The run is started; Location says where it is."},
    },
)
def submit_run(
    body: Submission,
    here: Here,
    starter: Annotated[Starter, Depends(starter())],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Starts a run of a workflow of this gateway, on the account of whoever asks."""
    workflow = here.catalog.named(body.workflow)
    terms = body.terms(starter.principal.tenant)
    run_id, is_new = starter.start(
        opening_of(here.app, workflow, body.inputs, key=idempotency_key, terms=terms, webhook=body.webhook)
    )
    return document(
        {"run_id": run_id, "workflow": workflow.name, "is_new": is_new},
        status=HTTPStatus.CREATED if is_new else HTTPStatus.OK,
        Location=f"/v1/runs/{run_id}",
    )


@router.get("", operation_id="list_runs", summary="List runs", responses={200: {"model": RunPage}})
def list_runs(
    here: Here,
    principal: Reader,
    status: Annotated[Status | None, Query(description="Those in this state alone.")] = None,
    workflow: Annotated[
        str | None, Query(max_length=100, description="Those of this workflow alone.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="So many at most.")] = 50,
    before: Annotated[
        str | None, Query(max_length=100, description="Those that are older than this run: `next` of a page.")
    ] = None,
) -> Response:
    """Runs of the tenant, newest first; with the scope `operate` those of all tenants. Some pages have few runs."""
    process = process_for(here.app)
    wanted = Wanted(principal.sees_alone, status, workflow)
    with server_errors(ledger_url(here.app)):
        page = page_of_runs(
            process.ledger, wanted, limit=limit, before=before or None, now_ms=process.now_ms()
        )
    return document({"runs": [run_state(record) for record in page.records], "next": page.next})


@router.get(
    "/{run_id}",
    operation_id="get_run",
    summary="How a run stands",
    responses={**OF_RUNS, 200: {"model": RunWhole}},
)
def read_run(run_id: RunId, here: Here, principal: Reader) -> Response:
    """The run, each of its nodes, and its output when it is done."""
    run = run_seen_by(principal, run_id, here)
    view, record = run.view(), run.record()
    output = run.output() if record.status == "done" else None
    return document({**run_state(record), "nodes": view.nodes, "output": output})


@router.get(
    "/{run_id}/nodes/{node}",
    operation_id="get_node",
    summary="How a node of a run stands",
    responses={**OF_RUNS, 200: {"model": NodeWhole}},
)
def read_node(run_id: RunId, node: NodeName, here: Here, principal: Reader) -> Response:
    """The node, and its output when it is done; of a mixture also how it came to that."""
    run = run_seen_by(principal, run_id, here)
    check_node(run.plan(), node)
    view = run.node(node)
    has_output = view.state == "done" and not view.asked_by
    return document({**view._asdict(), "output": run.node_output(node) if has_output else None})


@router.get(
    "/{run_id}/explain",
    operation_id="explain_run",
    summary="What a run waits for",
    responses={**OF_RUNS, 200: {"model": Explanations}},
)
def explain_run(run_id: RunId, here: Here, principal: Reader) -> Response:
    """Of each node that is not over, what it waits for; of a run that is over, how it ended."""
    run = run_seen_by(principal, run_id, here)
    return document({"run_id": run_id, "explanations": run.explain()})


@router.post(
    "/{run_id}/cancel",
    operation_id="cancel_run",
    summary="Cancel a run",
    responses={**OF_RUNS, 200: {"model": RunState}},
)
def cancel_run(run_id: RunId, here: Here, principal: Ender) -> Response:
    """Ends a run; one that is over stays as it is."""
    run = run_seen_by(principal, run_id, here)
    run.cancel(f"cancelled by {principal.subject}")
    return document(run_state(run.record()))


@router.post(
    "/{run_id}/rerun",
    operation_id="rerun_node",
    summary="Run a node again",
    responses={**OF_RUNS, **OF_BODIES, 200: {"model": RunState}},
)
def rerun_node(
    run_id: RunId, body: Again, here: Here, starter: Annotated[Starter, Depends(starter("cancel"))]
) -> Response:
    """Runs a node and all that depends on it again; the rest is kept."""
    run = run_seen_by(starter.principal, run_id, here)
    starter.rerun(run, body.node)
    return document(run_state(run.record()))


@router.post(
    "/{run_id}/score",
    operation_id="score_mixture",
    summary="Score the answer of a mixture",
    responses={**OF_RUNS, **OF_BODIES, 200: {"model": Scored}},
)
def score_mixture(run_id: RunId, body: Verdict, here: Here, principal: Scorer) -> Response:
    """Says how right it was, so that later mixtures know their experts better. A second score replaces the first."""
    run = run_seen_by(principal, run_id, here)
    return document(run.score(body.node, body.value, answer=body.answer))


def check_node(plan: Plan, name: str) -> None:
    """Checks that a workflow has a node of this name.

    Raises:
        HTTPException: 404, it has not.
    """
    names = [node.name for node in plan.nodes]
    if name not in names:
        hint = did_you_mean(name, names)
        raise HTTPException(HTTPStatus.NOT_FOUND, f"the workflow {plan.name!r} has no node {name!r}{hint}")


__all__ = ["IdempotencyKey", "check_node", "router"]
