"""Whether a browser was led here by a page of somebody else (cross-site request forgery). Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from mosaic_queues.errors import Forbidden

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""They change nothing here, whoever asks."""


def check_origin(
    method: str, headers: Mapping[str, str], *, allowed: Collection[str] = (), is_told: bool = False
) -> None:
    """Checks a request for which a browser may vouch by itself: with a cookie, or at an open gate.

    Args:
        headers: by name in small letters.
        allowed: other origins whose pages may ask.
        is_told: the request must say where it comes from, as all browsers do.

    Raises:
        Forbidden: a page from elsewhere made it.
    """
    if method in SAFE_METHODS:
        return
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin in allowed and origin is not None:
        return
    is_foreign = site not in (None, "same-origin") or not (origin is None or _is_own(origin, headers))
    if is_foreign or (is_told and origin is None and site is None):
        raise Forbidden(
            "a page of another site made this request; open this gateway's own pages and ask there"
        )


def _is_own(origin: str, headers: Mapping[str, str]) -> bool:
    """By host and port: behind a proxy the scheme that we see may be another than the browser's."""
    try:
        return bool(host := urlsplit(origin).netloc.lower()) and host == headers.get("host", "").lower()
    except ValueError:
        return False
