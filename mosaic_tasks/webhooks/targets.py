"""Where a webhook may go. A URL comes from whoever asks, so it must not lead to what only this machine can reach."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from mosaic_queues.errors import InputError
from mosaic_tasks.webhooks.configuration import Allowed, allowed

Address = IPv4Address | IPv6Address

MAX_URL_CHARS = 2048
_METADATA: frozenset[Address] = frozenset([ip_address("168.63.129.16")])
"""Public by its number, but Azure's machines have secrets there; in other clouds that is link-local or private."""
_SPECIAL = IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20")
"""Set apart by IANA, which not every Python knows of; clouds have secrets in the first, too."""
_UNICAST = IPv6Network("2000::/3")
"""What of IPv6 is given out to the public."""
_TRANSLATED = IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""The third quarter of IPv6 addresses that lead to the IPv4 address in the fourth."""
_ADVICE = "MOSAIC_WEBHOOK_ALLOW names hosts and networks that are meant all the same"


class Target(NamedTuple):
    """A URL that may be told.

    Attributes:
        host: without brackets; TLS asks for its certificate.
        authority: host and port as the header `Host` has them.
        path: with the query.
    """

    is_tls: bool
    host: str
    port: int
    authority: str
    path: str

    def __repr__(self) -> str:
        return f"<Target {self.place}>"

    @property
    def place(self) -> str:
        """The URL for messages: without the path, where services keep tokens."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}"


def target_of(url: str, allowed: Allowed) -> Target:
    """The parts of a URL; asks no server.

    Raises:
        InputError: it is malformed or oddly spelled, has no TLS, or names an address that is not allowed.
    """
    parts = _parts(url)
    host = (parts.hostname or "").rstrip(".")
    target = Target(
        is_tls=parts.scheme == "https",
        host=host,
        port=parts.port or (443 if parts.scheme == "https" else 80),
        authority=parts.netloc,
        path=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )
    if address := _address(host):
        check_addresses(target, [address], allowed)
    elif not target.is_tls and host not in allowed.hosts and not allowed.networks:
        raise InputError(f"the webhook {target.place} has no TLS; write https, or {_ADVICE}")
    return target


def check_url(url: str) -> Target:
    """Whether a URL may be told, as far as is known now; whoever tells it checks it again. Returns its parts.

    Raises:
        InputError: it may not.
        ConfigurationError: MOSAIC_WEBHOOK_ALLOW is malformed.
    """
    permitted = allowed()
    target = target_of(url, permitted)
    with suppress(OSError):  # the resolver may be away now and there when it is needed
        resolved(target, permitted)
    return target


def _parts(url: str) -> SplitResult:
    if len(url) > MAX_URL_CHARS or not re.fullmatch(r"[!-~]+", url):
        raise InputError(
            f"the URL of the webhook has more than {MAX_URL_CHARS} characters, or others than URLs have"
        )
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise InputError("the URL of the webhook is malformed; write https://host/path") from None
    if not known:
        # Not even its beginning is shown, which is a name or a token in `token:x-oauth@host`.
        raise InputError("a webhook has a URL such as https://host/path, and this is none")
    if "@" in parts.netloc or "\\" in url:
        raise InputError(
            "the URL of the webhook names a user or has a backslash; leave them out, it is signed anyway"
        )
    _check_spelling(parts.hostname or "")
    return parts


def _check_spelling(host: str) -> None:
    """Resolvers take `0x7f000001`, `2130706433` and `127.1` for 127.0.0.1; other readers of a URL do not."""
    last = host.rstrip(".").rpartition(".")[2]
    if re.fullmatch(r"\d+|0x[0-9a-f]*", last) and (_address(host) is None or host.endswith(".")):
        raise InputError(f"the webhook's host {host!r} is an oddly spelled address; write it as 192.0.2.1")
    if _address(host) is None and not re.fullmatch(r"([a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?", host):
        raise InputError(f"the webhook's host {host!r} is no name; write names in other scripts as xn--...")


def _address(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def resolved(target: Target, allowed: Allowed) -> list[Address]:
    """The addresses of a target; connect to these and ask no resolver again, which might then say something else.

    Raises:
        InputError: one of them is not allowed.
        OSError: the name is not known now.
    """
    found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    addresses = list(dict.fromkeys(ip_address(str(entry[4][0])) for entry in found))
    check_addresses(target, addresses, allowed)
    return addresses


def check_addresses(target: Target, addresses: list[Address], allowed: Allowed) -> None:
    """Whether all addresses of a target may be told.

    Raises:
        InputError: one may not.
    """
    for address in addresses:
        if target.host in allowed.hosts or _is_in(address, allowed):
            continue
        if not target.is_tls:
            raise InputError(f"the webhook {target.place} has no TLS; write https, or {_ADVICE}")
        if not _is_public(address):
            raise InputError(
                f"the webhook {target.place} leads to {address}, which is no public address; {_ADVICE}"
            )


def _is_in(address: Address, allowed: Allowed) -> bool:
    return any(address in network for network in allowed.networks)


def _is_public(address: Address) -> bool:
    inner = _embedded(address)
    if isinstance(address, IPv6Address) and address not in _UNICAST:
        is_led_on = address in _TRANSLATED or address.ipv4_mapped is not None
        return is_led_on and all(map(_is_public, inner))
    is_set_apart = address in _METADATA or any(address in network for network in _SPECIAL)
    return address.is_global and not address.is_multicast and not is_set_apart and all(map(_is_public, inner))


def _embedded(address: Address) -> list[Address]:
    """The IPv4 addresses that an IPv6 address may lead to."""
    if isinstance(address, IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _TRANSLATED or int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in found if each is not None]
