"""The routes of OpenAI's API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response

from mosaic_tasks.access.principal import Principal
from mosaic_tasks.client import Run
from mosaic_tasks.definition.terms import Terms
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.gateway.bodies import StrictRoute
from mosaic_tasks.gateway.callers import Gateway, Here, Starter, caller, starter
from mosaic_tasks.gateway.completions.answering import Answering, Patience
from mosaic_tasks.gateway.completions.asking import ChatRequest
from mosaic_tasks.gateway.completions.failures import ErrorReply, InOurWords, Refused
from mosaic_tasks.gateway.completions.models import Model, Models, NoModel
from mosaic_tasks.gateway.completions.replies import ChatCompletion, Envelope, ModelCard, ModelList
from mosaic_tasks.gateway.readers import EVENT_STREAM
from mosaic_tasks.gateway.runs import IdempotencyKey
from mosaic_tasks.gateway.streams import AllReaders
from mosaic_tasks.submission import opening_of

_SINCE_S = int(time.time())
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": HTTPStatus(status).phrase}
    for status in (400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 421, 429, 500, 503, 504)
}

router = APIRouter(prefix="/v1", tags=["openai"], route_class=StrictRoute, responses=_ERRORS)


def install(web: FastAPI, gateway: Gateway) -> None:
    """Serves the workflows of a gateway as models."""
    web.state.models = Models(gateway.catalog)
    web.include_router(router)
    web.add_middleware(InOurWords)

    @web.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> Response:
        return error.response()


async def models_of(request: Request) -> Models:
    """The models of the gateway."""
    models: Models = request.app.state.models
    return models


Offered = Annotated[Models, Depends(models_of)]
Asker = Annotated[Principal, Depends(caller("submit"))]
MayStart = Annotated[Starter, Depends(starter())]


async def reader(gateway: Here, starter: MayStart) -> AsyncIterator[None]:
    """Whoever asks reads until the answer is there."""
    async with gateway.quotas.reading(starter.principal):
        yield


def _named(models: Models, name: str) -> Model:
    try:
        return models.named(name)
    except NoModel as error:
        raise Refused(HTTPStatus.NOT_FOUND, str(error), param="model", code="model_not_found") from error


@router.get("/models", operation_id="list_models", summary="The workflows that are models")
async def list_models(models: Offered, _asker: Asker) -> ModelList:
    """All workflows that a conversation can be put to."""
    return ModelList(data=[ModelCard(id=name, created=_SINCE_S) for name in models])


@router.get("/models/{model}", operation_id="get_model", summary="One of them")
async def get_model(
    model: Annotated[str, Path(description="The name of a workflow.")], models: Offered, _asker: Asker
) -> ModelCard:
    """A model; of a workflow that is none, why."""
    return ModelCard(id=_named(models, model).workflow.name, created=_SINCE_S)


@router.post(
    "/chat/completions",
    operation_id="create_chat_completion",
    summary="Ask a workflow as a model",
    response_model=None,
    responses={
        200: {
            "model": ChatCompletion,
            "description": "The answer; with `stream` server-sent events.",
            "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
        }
    },
    dependencies=[Depends(reader)],
)
async def create_chat_completion(
    body: ChatRequest,
    models: Offered,
    gateway: Here,
    starter: MayStart,
    readers: AllReaders,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Runs the workflow on the conversation, and gives its output as the model's answer. With an idempotency key the
    run goes on when its client leaves, who may come back for the answer; without one it is cancelled."""
    model = _named(models, body.model)
    inputs, process = body.inputs_for(model), process_for(gateway.app)

    def start() -> Run:
        terms = Terms(tenant=starter.principal.tenant)
        opening = opening_of(gateway.app, model.workflow, inputs, key=idempotency_key, terms=terms)
        return Run(starter.start(opening).run_id, process)

    run = await asyncio.to_thread(start)
    envelope = Envelope.now(run.id, body.model, counts=body.counts)
    return Answering(
        run,
        model,
        envelope,
        readers,
        streams=bool(body.stream),
        is_kept=idempotency_key is not None,
        patience=Patience(process.settings.gateway_silence_s, process.settings.gateway_patience_s),
    )
