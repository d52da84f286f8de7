"""What answers look like: their form in the OpenAPI document, and how they are made."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import Path, Response
from pydantic import BaseModel, Field

from mosaic_queues.transitions import RunRecord
from mosaic_tasks.gateway.callers import Responses
from mosaic_tasks.inspection.documents import to_json

Status = Literal["running", "done", "failed", "cancelled"]
RunId = Annotated[
    str, Path(description="The id of a run.", examples=["01990c2e-7d0a-7f3e-a5b1-0c9be8a1c001"])
]
NodeName = Annotated[str, Path(description="The name of a node of the run's workflow.", examples=["answer"])]


class Problem(BaseModel):
    """What is wrong with a request (RFC 9457)."""

    type: str = Field(
        description="What kind of problem; `about:blank`: the status says it.", examples=["about:blank"]
    )
    title: str = Field(description="The status in words.", examples=["Not Found"])
    status: int = Field(description="That of the answer.", examples=[404])
    detail: str = Field(description="A sentence for people.")
    errors: list[dict[str, Any]] | None = Field(
        default=None, description="Of a request that does not fit: where (`loc`) and why (`msg`)."
    )


class Started(BaseModel):
    """A run that was started, or that the idempotency key stands for."""

    run_id: str = Field(description="The id of the run.")
    workflow: str = Field(description="Its name.")
    is_new: bool = Field(description="False: it was there before.")


class RunState(BaseModel):
    """How a run stands. Times are Unix milliseconds of the server."""

    run_id: str = Field(description="The id of the run.")
    workflow: str = Field(description="Its name.")
    status: Status = Field(description="How it stands.")
    created_ms: int = Field(description="When it was opened.")
    ended_ms: int | None = Field(description="When it was over; null: it is not.")
    error: str = Field(description="Why it failed or was cancelled; else empty.")


class RunPage(BaseModel):
    """Some runs, newest first."""

    runs: list[RunState] = Field(description="At most `limit`.")
    next: str | None = Field(description="Give it as `before` for the next page; null: there is none.")


class NodeState(BaseModel):
    """How a node stands."""

    model_config = {"extra": "allow"}

    name: str = Field(description="Its name in the workflow.")
    kind: str = Field(description="tool, task, agent or mixture.")
    state: Literal["waiting", "ready", "running", "done", "skipped", "failed", "cancelled", "cut"] = Field(
        description="How it stands."
    )
    error: str = Field(description="Of the last attempt that failed.")


class RunWhole(RunState):
    """How a run and each of its nodes stand; and what came of it."""

    nodes: list[NodeState] = Field(description="In the order of the workflow.")
    output: Any = Field(description="Of a run that is done; else null.")


class NodeWhole(NodeState):
    """How a node stands, and what came of it; of a mixture with its `record`: votes, gate, what it saved."""

    output: Any = Field(description="Of a node that is done; else null.")


class Explained(BaseModel):
    """What a node of a run waits for; `node` is empty where it is about the run."""

    node: str = Field(description="Its name.")
    text: str = Field(description="A sentence.")


class Explanations(BaseModel):
    """What a run waits for."""

    run_id: str = Field(description="The id of the run.")
    explanations: list[Explained] = Field(description="One for each node that is not over.")


class Scored(BaseModel):
    """What a score said of the experts of a mixture: how right each was, from 0 to 1."""

    model_config = {"extra": "allow"}

    run: str = Field(description="The id of the run.")
    node: str = Field(description="The mixture.")
    value: float = Field(description="How right its answer was.")
    judged: dict[str, float] = Field(description="By expert.")


class WorkflowCard(BaseModel):
    """A workflow that can be started."""

    name: str = Field(description="What `POST /v1/runs` calls `workflow`.")
    description: str = Field(description="As its file says it.")
    inputs: dict[str, Any] = Field(description="JSON Schema of its inputs.")


class WorkflowPage(BaseModel):
    """The workflows that can be started."""

    workflows: list[WorkflowCard] = Field(description="By name.")


class WorkflowNode(BaseModel):
    """A node of a workflow."""

    name: str = Field(description="Its name.")
    kind: str = Field(description="tool, task, agent or mixture.")
    description: str = Field(description="As the file says it.")


class WorkflowWhole(WorkflowCard):
    """A workflow and its graph."""

    output: str = Field(description="The node whose output is the result.")
    nodes: list[WorkflowNode] = Field(description="In the order of the file.")
    mermaid: str = Field(description="The graph as a Mermaid flowchart.")


_TOLD = {
    400: "The body is no strict JSON.",
    401: "Nobody is known by what was shown.",
    403: "Whoever asks may not.",
    404: "There is no such thing, for whoever asks.",
    405: "The path has no such method; the header Allow lists those that it has.",
    408: "The body did not come in time.",
    409: "Not in the state that it is in.",
    413: "The body is too large.",
    414: "The query is too long.",
    415: "The body is no JSON by its Content-Type.",
    421: "The gateway is not known by this name.",
    422: "The request does not fit.",
    429: "The tenant has had its share; Retry-After says when there is more.",
    500: "Something went wrong in the gateway; its log says what.",
    503: "The server behind the gateway is away or full; Retry-After says when to ask again.",
}


def problems(*statuses: int) -> Responses:
    """Answers that say what is wrong, for the OpenAPI document."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _TOLD[status], "content": content} for status in statuses}


ALWAYS = problems(401, 403, 414, 421, 422, 429, 500, 503)
"""What any request may meet."""
OF_BODIES = problems(400, 408, 413, 415)
OF_RUNS = problems(404)


def run_state(record: RunRecord) -> dict[str, Any]:
    """A run's record as `RunState`."""
    return {
        "run_id": record.run_id,
        "workflow": record.name,
        "status": record.status,
        "created_ms": record.created_ms,
        "ended_ms": record.ended_ms,
        "error": record.error,
    }


def document(value: Any, *, status: HTTPStatus = HTTPStatus.OK, **headers: str) -> Response:
    """A JSON answer."""
    return Response(to_json(value), status_code=status.value, media_type="application/json", headers=headers)
