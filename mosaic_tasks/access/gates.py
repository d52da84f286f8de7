"""Which gate a gateway has: by what is set up, and where it listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import Celery

from mosaic_queues.connection import server_ms
from mosaic_queues.errors import ConfigurationError, Unauthenticated
from mosaic_queues.settings import Settings
from mosaic_tasks.access.addresses import is_loopback
from mosaic_tasks.access.keyring import SCOPES, KeyRing
from mosaic_tasks.access.principal import Gate, Principal
from mosaic_tasks.access.quotas import quotas_of
from mosaic_tasks.access.secrets import PREFIX
from mosaic_tasks.access.sessions import Sessions
from mosaic_tasks.execution.process import process_for

if TYPE_CHECKING:
    from mosaic_tasks.access.tokens import Tokens

ANYONE = Principal(subject="anyone", scopes=frozenset(SCOPES))
"""Who enters an open gate."""


def gate_for(app: Celery, *, host: str, required: bool = False) -> Gate:
    """The gate of a gateway that listens at `host`.

    With an identity provider (`MOSAIC_OIDC_ISSUER`) its tokens enter, and API keys too. Without, API keys do. It is
    open only where nobody from another machine comes, no key was ever made, and nobody asked for one to be `required`.

    Args:
        host: a name, an address, or `unix:PATH`.
        required: closed in any case.

    Raises:
        ConfigurationError: it would be open to other machines, or the identity provider is not set up rightly, or the
            file of quotas cannot be used.
        redis.RedisError: the server is away.
    """
    tokens = _tokens(process_for(app).settings)
    quotas_of(app)  # a file that cannot be used is told now, and not to each who starts a run
    if tokens is not None:
        return ClosedGate(app, tokens)
    if required or keys_of(app).is_closed():
        return ClosedGate(app)
    if not is_loopback(host):
        raise ConfigurationError(
            f"a gateway at {host!r} would let everybody in who reaches it; make a key first by `mosaic keys add NAME "
            "--scope submit --scope read`, or set MOSAIC_OIDC_ISSUER, or listen at 127.0.0.1"
        )
    return OpenGate(app)


class ClosedGate:
    """Lets in who shows an API key, or where there are `tokens` a token."""

    def __init__(self, app: Celery, tokens: Tokens | None = None) -> None:
        self._app, self._tokens = app, tokens

    def admit(self, credential: str | None) -> Principal:
        """Who shows this.

        Raises:
            Unauthenticated: nobody that is known, or nothing is shown.
            redis.RedisError: the server is away.
        """
        if not credential:
            raise Unauthenticated("show who you are, by the header `Authorization: Bearer KEY`")
        if self._tokens is not None and not credential.startswith(PREFIX):
            return self._tokens.admit(credential)
        return keys_of(self._app).admit(credential)


class OpenGate:
    """Lets anyone in, with all scopes, until the first key is made: then it is closed, at once and for good."""

    def __init__(self, app: Celery) -> None:
        self._app, self._closed = app, ClosedGate(app)

    def admit(self, credential: str | None) -> Principal:
        """Anyone; or who shows this, once there is a key.

        Raises:
            Unauthenticated: there is a key, and this is none.
            redis.RedisError: the server is away.
        """
        return self._closed.admit(credential) if keys_of(self._app).is_closed() else ANYONE


def stands(app: Celery, principal: Principal) -> bool:
    """Whether what somebody has shown some time ago would still let in: a stream goes on no longer than that.

    Raises:
        redis.RedisError: the server is away.
    """
    keys, process = keys_of(app), process_for(app)
    if principal.key:
        return keys.holder(principal.key) is not None
    if principal.until_ms:
        return principal.until_ms > server_ms(process.client)
    return not keys.is_closed()


def keys_of(app: Celery) -> KeyRing:
    """The API keys of an app's server."""
    process = process_for(app)
    return KeyRing(process.client, process.ledger.keys)


def sessions_of(app: Celery) -> Sessions:
    """The sessions of an app's server."""
    process = process_for(app)
    return Sessions(process.client, process.ledger.keys, keys_of(app), longest_s=process.settings.session_s)


def _tokens(config: Settings) -> Tokens | None:
    if config.oidc_issuer is None:
        return None
    if not config.oidc_audience:
        raise ConfigurationError(
            "MOSAIC_OIDC_ISSUER is set and MOSAIC_OIDC_AUDIENCE is not; set it to the name of this gateway at the "
            "provider, or tokens for other services would be taken here"
        )
    from mosaic_tasks.access.provider import Provider
    from mosaic_tasks.access.tokens import TokenRules, Tokens

    rules = TokenRules(
        issuer=config.oidc_issuer,
        audience=config.oidc_audience,
        tenant_claim=config.oidc_tenant_claim,
        scope_claim=config.oidc_scope_claim,
    )
    return Tokens(rules, Provider(config.oidc_issuer))


__all__ = ["ANYONE", "ClosedGate", "OpenGate", "gate_for", "keys_of", "sessions_of", "stands"]
