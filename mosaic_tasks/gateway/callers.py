"""What the routes have in common: the gateway they belong to, and who asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, NamedTuple, cast

import msgspec
from celery import Celery
from fastapi import Depends, Request, Security
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from fastapi.security.http import HTTPAuthorizationCredentials

from mosaic_queues.errors import AccessError, QuotaExceeded, Unauthenticated, UnknownRun
from mosaic_tasks.access.addresses import is_loopback
from mosaic_tasks.access.audit import Audit, Deed, audit_of
from mosaic_tasks.access.gates import sessions_of
from mosaic_tasks.access.origins import SAFE_METHODS, check_origin
from mosaic_tasks.access.principal import Gate, Principal, Scope
from mosaic_tasks.access.quotas import Quotas, quotas_of
from mosaic_tasks.access.sessions import Sessions
from mosaic_tasks.client import Run, get_run
from mosaic_tasks.gateway.catalog import Catalog
from mosaic_tasks.gateway.readers import PRINCIPAL
from mosaic_tasks.submission import Opening, Submitted

COOKIE = "mosaic_session"
"""Holds the token of a browser's session."""

_bearer = HTTPBearer(auto_error=False, description="An API key, or a token of the identity provider.")


class Gateway(NamedTuple):
    """What one gateway serves.

    Attributes:
        app: the Celery app that runs are published with.
        catalog: the workflows that can be started.
        gate: tells who asks.
        origins: other origins whose pages may ask (CORS).
    """

    app: Celery
    catalog: Catalog
    gate: Gate
    origins: Collection[str] = ()

    @property
    def sessions(self) -> Sessions:
        """Of people in a browser."""
        return sessions_of(self.app)

    @property
    def quotas(self) -> Quotas:
        """Of tenants."""
        return quotas_of(self.app)

    @property
    def audit(self) -> Audit:
        """Who did what."""
        return audit_of(self.app)


def gateway_of(request: Request) -> Gateway:
    """That of a request."""
    return cast("Gateway", request.app.state.gateway)


async def _here(request: Request) -> Gateway:  # a plain function would be called in a thread
    return gateway_of(request)


Here = Annotated[Gateway, Depends(_here)]


def caller(scope: Scope) -> Callable[..., Principal]:
    """A dependency: who asks, and has this scope, which the OpenAPI document tells. What changes something is in the
    audit log when it is given.
    """

    def admitted(
        request: Request,
        gateway: Here,
        shown: HTTPAuthorizationCredentials | None = Security(_bearer, scopes=[scope]),  # noqa: B008
    ) -> Principal:
        with _told_to(gateway.audit, deed := _deed(request)):
            principal = _who(request, gateway, shown.credentials if shown else None)
        with _told_to(gateway.audit, deed, principal):
            principal.require(scope)
        setattr(request.state, PRINCIPAL, principal)
        if request.method not in SAFE_METHODS:
            gateway.audit.allowed(principal, deed)
        return principal

    return admitted


class Starter(NamedTuple):
    """Somebody who has the scope to start runs. What it does calls the server: leave it to a thread.

    Attributes:
        principal: who.
    """

    principal: Principal
    gateway: Gateway
    deed: Deed

    def start(self, opening: Opening) -> Submitted:
        """Opens a run; or finds that of its idempotency key, which takes nothing of the tenant's share.

        Raises:
            QuotaExceeded: the tenant may start none now.
            InputError, ServerError: as `Opening.open`.
        """
        with _told_to(self.gateway.audit, self.deed, self.principal):
            try:
                submitted = self._known(opening) or self._opened(opening)
            except QuotaExceeded:
                found = self._known(opening)  # whoever sent the same key has it open since
                if found is None:
                    raise
                submitted = found
        self._tell_opened(submitted.run_id)
        return submitted

    def rerun(self, run: Run, node: str) -> None:
        """Runs a node of a run again.

        Raises:
            QuotaExceeded: the tenant may start none now.
            InputError, UnknownRun: as `Run.rerun`.
        """
        with (
            _told_to(self.gateway.audit, self.deed, self.principal),
            self.gateway.quotas.start(self.principal) as start,
        ):
            run.rerun(node)
            start.opened(run.id)
        self._tell_opened(run.id)

    def _known(self, opening: Opening) -> Submitted | None:
        found = opening.known()
        if found is not None and opening.key is not None:
            self.gateway.quotas.counts(self.principal, opening.key, found.run_id)
        return found

    def _opened(self, opening: Opening) -> Submitted:
        with self.gateway.quotas.start(self.principal, key=opening.key) as start:
            submitted = opening.open()
            start.opened(submitted.run_id)
        return submitted

    def _tell_opened(self, run_id: str) -> None:
        self.gateway.audit.came_of(self.principal, Deed("run.opened", self.principal.address, run_id))


def starter(scope: Scope = "submit") -> Callable[..., Coroutine[Any, Any, Starter]]:
    """A dependency: who asks, and has this scope; whether the tenant may start one more run is seen when it does."""

    who = caller(scope)

    async def admitted(
        request: Request,
        gateway: Here,
        principal: Principal = Depends(who),  # noqa: B008
    ) -> Starter:
        return Starter(principal, gateway, _deed(request))

    return admitted


@contextmanager
def _told_to(audit: Audit, deed: Deed, principal: Principal | None = None) -> Iterator[None]:
    """Enters what is refused in it."""
    try:
        yield
    except AccessError as error:
        audit.refused(principal, deed, error)
        raise


def _deed(request: Request) -> Deed:
    path = getattr(request.scope.get("route"), "path", request.url.path)
    run_id = str(request.path_params.get("run_id", ""))
    return Deed(f"{request.method} {path}", _address(request), run_id)


def _address(request: Request) -> str:
    return request.client.host if request.client else "unix"


def _who(request: Request, gateway: Gateway, credential: str | None) -> Principal:
    """Who asks: by a credential, else by the session in the cookie, else whom the gate lets in without any.

    Raises:
        Unauthenticated: nobody that is known.
        Forbidden: a page from elsewhere made a browser ask.
    """
    principal = gateway.gate.admit(credential) if credential else _browsing(request, gateway)
    return msgspec.structs.replace(principal, address=_address(request))


def _browsing(request: Request, gateway: Gateway) -> Principal:
    token = request.cookies.get(COOKIE)
    if token is None:
        check_origin(request.method, request.headers, allowed=gateway.origins)
        return gateway.gate.admit(None)
    check_origin(request.method, request.headers, is_told=True)
    with suppress(Unauthenticated):
        return gateway.sessions.admit(token)
    return gateway.gate.admit(None)


def sign_in(request: Request, response: Response, key: str) -> Principal:
    """Begins a session of whoever shows this key, with a cookie in the response.

    Raises:
        Unauthenticated: it is nobody's.
        Forbidden: a page from elsewhere made the browser ask.
    """
    gateway, deed = gateway_of(request), _deed(request)
    with _told_to(gateway.audit, deed):
        check_origin(request.method, request.headers, is_told=True)
        principal = gateway.gate.admit(key)
    gateway.audit.allowed(principal, deed)
    sessions = gateway.sessions
    response.set_cookie(
        COOKIE, sessions.open(principal), max_age=int(sessions.longest_s), **_cookie_rules(request)
    )
    return principal


def sign_out(request: Request, response: Response) -> None:
    """Ends the session of the cookie, if there is one.

    Raises:
        Forbidden: a page from elsewhere made the browser ask.
    """
    check_origin(request.method, request.headers, is_told=True)
    if token := request.cookies.get(COOKIE):
        gateway_of(request).sessions.close(token)
    response.delete_cookie(COOKIE, **_cookie_rules(request))


def _cookie_rules(request: Request) -> dict[str, Any]:
    """No script reads it, no other site sends it, and no wire carries it in the clear."""
    is_secure = not is_loopback(request.url.hostname or "")
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": is_secure}


def run_seen_by(principal: Principal, run_id: str, gateway: Gateway) -> Run:
    """A run that is the principal's business; of another tenant's it is told no more than of one that never was.

    Raises:
        UnknownRun: there is none for it.
    """
    with suppress(UnknownRun):
        run = get_run(run_id, app=gateway.app)
        if principal.sees(run.plan().tenant):
            return run
    error = UnknownRun(f"there is no run {run_id!r} here; it never was, or is past its retention")
    gateway.audit.refused(principal, Deed("run.seen", principal.address, run_id), error)
    raise error


Responses = dict[int | str, dict[str, Any]]
