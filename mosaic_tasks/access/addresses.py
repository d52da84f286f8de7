"""Which addresses are those of this machine alone. Pure."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether nobody on another machine reaches what listens here: 127.0.0.0/8, ::1, localhost, a unix socket.

    Args:
        host: a name, an address, or `unix:PATH`.
    """
    if host.startswith("unix:") or host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
