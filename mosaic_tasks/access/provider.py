"""The public keys of an identity provider, by OpenID Connect discovery.

They are read again when a token names one that is not known, since providers change theirs; but never more often than
each `PAUSE_S`, so that tokens with made-up keys are no flood to the provider. While it is away, the keys that were
read last serve on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog

from mosaic_queues.errors import ConfigurationError, ProviderUnavailable
from mosaic_tasks.access.addresses import is_loopback
from mosaic_tasks.access.extra import needs_gateway

with needs_gateway():
    import httpx2
    from joserfc import jwk
    from joserfc.errors import JoseError
    from joserfc.util import urlsafe_b64decode

log = structlog.get_logger(__name__)

PAUSE_S = 30.0
FRESH_S = 3_600.0
"""Keys are read again after this, so that one which the provider withdrew is not believed for ever."""
_READ_S = 3.0
_WAIT_S = 1.0
_MOST_BYTES = 1_048_576
_LEAST_RSA_BITS = 2_048
_KINDS = frozenset({"EC", "OKP", "RSA"})
"""Public keys alone: a key that is no secret must never be taken for one."""
_FIELDS = frozenset({"alg", "crv", "e", "kid", "kty", "n", "use", "x", "y"})


class Provider:
    """One identity provider; may be shared by threads.

    Args:
        issuer: its URL, as tokens name it.
        clock: seconds.
    """

    def __init__(self, issuer: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        _check_url(issuer, "MOSAIC_OIDC_ISSUER")
        self.issuer = issuer
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: Mapping[str, jwk.Key] = {}
        self._read_s = self._tried_s = -float("inf")

    def key(self, kid: str | None) -> jwk.Key | None:
        """The key of this name; without a name, the only one that there is. None: it lists none.

        Raises:
            ProviderUnavailable: none is known, and it could not be asked when it was asked last.
        """
        found = self._find(kid)
        # Whoever knows no key waits for who reads them just now; all others go on with what they have.
        wait_s = _WAIT_S if found is None else 0.0
        is_due = found is None or self._clock() - self._read_s >= FRESH_S
        if is_due and self._lock.acquire(timeout=wait_s):
            try:
                if found is not None or self._find(kid) is None:
                    self._refresh()
            finally:
                self._lock.release()
        found = self._find(kid) if is_due else found
        if found is None and self._read_s < self._tried_s:
            raise self._away()
        return found

    def _away(self) -> ProviderUnavailable:
        wait_s = max(1.0, self._tried_s + PAUSE_S - self._clock())
        told = f"the identity provider does not answer as it should; ask again in {wait_s:.3g} s"
        return ProviderUnavailable(told, retry_after_s=wait_s)

    def _find(self, kid: str | None) -> jwk.Key | None:
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

    def _refresh(self) -> None:
        """Reads the keys anew, if that is not too soon."""
        if self._clock() - self._tried_s < PAUSE_S:
            return
        self._tried_s = self._clock()
        try:
            self._keys = _keys_of(self.issuer)
        except (httpx2.HTTPError, httpx2.InvalidURL, ConfigurationError, ValueError, RecursionError) as error:
            log.warning(
                "access.provider",
                what="cannot read the keys of the identity provider; those that are known serve on",
                issuer=self.issuer,
                error=str(error),
            )
        else:
            self._read_s = self._clock()


def _keys_of(issuer: str) -> Mapping[str, jwk.Key]:
    with httpx2.Client(timeout=_READ_S, follow_redirects=False) as client:
        found = _read(client, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise ValueError(f"{issuer!r} calls itself {found.get('issuer')!r}; the two must be the same")
        place = str(found.get("jwks_uri"))
        _check_url(place, "the provider's jwks_uri")
        listed = _read(client, place).get("keys")
    if not isinstance(listed, list):
        raise ValueError(f"{place!r} lists no keys")
    return {str(each.get("kid", "")): key for each in listed if (key := _usable(each)) is not None}


def _read(client: httpx2.Client, url: str) -> dict[str, Any]:
    """A JSON object, of bounded size and within bounded time."""
    deadline, body = time.monotonic() + _READ_S, b""
    with client.stream("GET", url, headers={"Accept": "application/json"}) as answer:
        answer.raise_for_status()
        for part in answer.iter_bytes():
            body += part
            if len(body) > _MOST_BYTES or time.monotonic() > deadline:
                raise ValueError(f"{url!r} answers too much, or too slowly")
    return msgspec.json.decode(body, type=dict[str, Any])


def _usable(listed: Any) -> jwk.Key | None:
    """A key that signatures can be checked with; None: it is for something else, weak, or not readable."""
    if not isinstance(listed, dict) or listed.get("kty") not in _KINDS or listed.get("use", "sig") != "sig":
        return None
    try:
        if listed["kty"] == "RSA" and len(urlsafe_b64decode(listed["n"].encode())) * 8 < _LEAST_RSA_BITS:
            return None
        return jwk.import_key({name: value for name, value in listed.items() if name in _FIELDS})
    except (JoseError, ValueError, KeyError, AttributeError, TypeError) as error:
        log.warning("access.provider", what="cannot use a key", kid=listed.get("kid"), error=str(error))
        return None


def _check_url(url: str, what: str) -> None:
    """Keys that anybody on the way can exchange are worth nothing.

    Raises:
        ConfigurationError: it is no URL that can be trusted.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host, parts = "", urlsplit("")
    if (
        not host
        or parts.scheme not in ("https", "http")
        or (parts.scheme == "http" and not is_loopback(host))
    ):
        raise ConfigurationError(f"{what} is {url!r}; give a URL with https://")
