"""Bearer tokens of an identity provider (OpenID Connect): signed with one of its keys, for us, and in force."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mosaic_queues.errors import Unauthenticated
from mosaic_tasks.access.extra import needs_gateway
from mosaic_tasks.access.keyring import SCOPES
from mosaic_tasks.access.principal import Principal, Scope
from mosaic_tasks.access.provider import Provider

with needs_gateway():
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jws import JWSRegistry
    from joserfc.util import urlsafe_b64decode

ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""Asymmetric ones alone: with `HS256` whoever knows the public key could sign, and with `none` anybody."""
MOST_BYTES = 16_384
LEEWAY_S = 60
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,100}")
_LATEST_MS = 2**53
_SUBJECT = re.compile(r"[!-~ ]{1,200}")


class TokenRules(msgspec.Struct, frozen=True, kw_only=True):
    """What tokens must be.

    Attributes:
        issuer: who made them.
        audience: for whom.
        tenant_claim: names the tenant; empty: all have the tenant ''.
        scope_claim: lists the scopes, as a list or parted by spaces; others than ours say nothing here.
    """

    issuer: str
    audience: str
    tenant_claim: str = "tenant"
    scope_claim: str = "scope"

    def principal(self, claims: Mapping[str, Any], *, now_s: float) -> Principal:
        """Whom the claims of a token stand for, whose signature is right.

        Raises:
            Unauthenticated: nobody, or not now.
        """
        registry = jwt.JWTClaimsRegistry(
            now=int(now_s),
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "value": self.audience},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            registry.validate(dict(claims))
        except JoseError as error:
            raise Unauthenticated(f"the token is not for here, or not in force: {error}") from None
        return Principal(
            subject=_told(claims, "sub", _SUBJECT),
            tenant=_told(claims, self.tenant_claim, _TENANT) if self.tenant_claim else "",
            scopes=_scopes(claims.get(self.scope_claim)),
            until_ms=min(int(claims["exp"]) * 1000, _LATEST_MS),
        )


def _told(claims: Mapping[str, Any], claim: str, form: re.Pattern[str]) -> str:
    value = claims.get(claim)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise Unauthenticated(f"the token has no usable claim {claim!r}; its provider has to put one in")
    return value


def _scopes(claim: object) -> frozenset[Scope]:
    listed = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else ()
    return frozenset(each for each in SCOPES if each in listed)


class Tokens:
    """Tells who shows a token."""

    def __init__(
        self, rules: TokenRules, provider: Provider, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._rules, self._provider, self._clock = rules, provider, clock

    def admit(self, token: str) -> Principal:
        """Who shows a token.

        Raises:
            Unauthenticated: it is none, nobody's, or not in force.
            ProviderUnavailable: nobody can say now whose it is.
        """
        algorithm, kid = _header(token)
        key = self._provider.key(kid)
        if key is None:
            raise Unauthenticated("the token is signed with a key that its provider does not list")
        try:
            registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
            found = jwt.decode(token, key, algorithms=[algorithm], registry=registry)
        except (JoseError, ValueError, TypeError, RecursionError):
            raise Unauthenticated("the token's signature is wrong, or it cannot be read") from None
        return self._rules.principal(found.claims, now_s=self._clock())


def _header(token: str) -> tuple[str, str | None]:
    """Algorithm and name of the key, of a token that may be one.

    Raises:
        Unauthenticated: it is none that we take.
    """
    if len(token) > MOST_BYTES or token.count(".") != 2:
        raise Unauthenticated("this is neither an API key nor a token (JWT); show one of them")
    try:
        raw = urlsafe_b64decode(token.partition(".")[0].encode("ascii"))
        header = msgspec.json.decode(raw, type=dict[str, Any])
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise Unauthenticated("the token has no readable header") from None
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise Unauthenticated(f"the token is not signed as is allowed here: {', '.join(sorted(ALGORITHMS))}")
    if "crit" in header or "jwk" in header or "b64" in header or str(kind).lower() not in _TYPES:
        raise Unauthenticated("the token's header asks for what is not taken here")
    if kid is not None and not isinstance(kid, str):
        raise Unauthenticated("the token has no readable header")
    return algorithm, kid


__all__ = ["ALGORITHMS", "TokenRules", "Tokens"]
