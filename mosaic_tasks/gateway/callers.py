"""What the routes have in common: the gateway they belong to, and who asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, cast

from celery import Celery
from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from fastapi.security.http import HTTPAuthorizationCredentials

from mosaic_queues.errors import UnknownRun
from mosaic_tasks.access.principal import Gate, Principal, Scope
from mosaic_tasks.client import Run, get_run
from mosaic_tasks.gateway.catalog import Catalog

_bearer = HTTPBearer(auto_error=False, description="An API key, or a token of the identity provider.")


class Gateway(NamedTuple):
    """What one gateway serves.

    Attributes:
        app: the Celery app that runs are published with.
        catalog: the workflows that can be started.
        gate: tells who asks.
    """

    app: Celery
    catalog: Catalog
    gate: Gate


def gateway_of(request: Request) -> Gateway:
    """That of a request."""
    return cast("Gateway", request.app.state.gateway)


def caller(scope: Scope) -> Callable[..., Principal]:
    """A dependency: who asks, and has this scope."""

    def admitted(
        gateway: Annotated[Gateway, Depends(gateway_of)],
        shown: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    ) -> Principal:
        principal = gateway.gate.admit(shown.credentials if shown else None)
        principal.require(scope)
        return principal

    return admitted


def run_seen_by(principal: Principal, run_id: str, gateway: Gateway) -> Run:
    """A run that is the principal's business; of another tenant's it is told no more than of one that never was.

    Raises:
        UnknownRun: there is none for it.
    """
    run = get_run(run_id, app=gateway.app)
    if not principal.sees(run.plan().tenant):
        raise UnknownRun(f"there is no run {run_id}")
    return run


Responses = dict[int | str, dict[str, Any]]
