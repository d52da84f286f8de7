"""The workflows of the gateway over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Response
from starlette.exceptions import HTTPException

from mosaic_queues.errors import InputError
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.definition.drawing import mermaid
from mosaic_tasks.definition.workflow import Workflow
from mosaic_tasks.gateway.answers import ALWAYS, WorkflowPage, WorkflowWhole, document, problems
from mosaic_tasks.gateway.callers import Here, caller

router = APIRouter(prefix="/v1/workflows", tags=["workflows"], responses=ALWAYS)

Reader = Annotated[Principal, Depends(caller("read"))]


@router.get(
    "", operation_id="list_workflows", summary="List workflows", responses={200: {"model": WorkflowPage}}
)
def list_workflows(here: Here, _principal: Reader) -> Response:
    """Those that can be started here, with the JSON Schema of their inputs."""
    return document({"workflows": [_card(workflow) for workflow in here.catalog.values()]})


@router.get(
    "/{name}",
    operation_id="get_workflow",
    summary="A workflow and its graph",
    responses={**problems(404), 200: {"model": WorkflowWhole}},
)
def read_workflow(
    name: Annotated[str, Path(description="Its name.", examples=["hello"])], here: Here, _principal: Reader
) -> Response:
    """Its inputs, its nodes, and a drawing."""
    try:
        workflow = here.catalog.named(name)
    except InputError as error:
        raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from None
    nodes = [
        {"name": each, "kind": node.kind, "description": node.description}
        for each, node in workflow.nodes.items()
    ]
    return document(
        {**_card(workflow), "output": workflow.output, "nodes": nodes, "mermaid": mermaid(workflow)}
    )


def _card(workflow: Workflow) -> dict[str, Any]:
    return {
        "name": workflow.name,
        "description": workflow.description,
        "inputs": workflow.inputs_schema,
    }
