"""One POST to one address. No redirect is followed, and no more is read of the answer than its head.

An HTTP library would resolve the name again and read what it is sent for as long as it trickles; here the connection is
made to the address that was checked, and all of it ends by one deadline.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Mapping
from typing import NamedTuple

from mosaic_tasks.webhooks.targets import Address, Target

_MAX_HEAD_BYTES = 16 * 1024


class Answer(NamedTuple):
    """What a receiver said.

    Attributes:
        retry_after_s: it asks to be left alone for so long.
    """

    status: int
    retry_after_s: float | None = None


def post(
    target: Target, address: Address, headers: Mapping[str, str], body: bytes, *, timeout_s: float
) -> Answer:
    """Sends the body.

    Raises:
        OSError: no connection, no valid certificate, no HTTP, or no answer in time.
    """
    deadline = time.monotonic() + timeout_s
    with socket.create_connection((str(address), target.port), timeout=timeout_s) as plain:
        plain.settimeout(_left(deadline))
        with _secured(plain, target) as connection:
            connection.settimeout(_left(deadline))
            connection.sendall(_request(target, headers, body))
            return _answer(_head(connection, deadline))


def _secured(plain: socket.socket, target: Target) -> socket.socket:
    if not target.is_tls:
        return plain
    return ssl.create_default_context().wrap_socket(plain, server_hostname=target.host)


def _request(target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    fields = {
        "Host": target.authority,
        "User-Agent": "mosaic-tasks",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    lines = [f"POST {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def _head(connection: socket.socket, deadline: float) -> bytes:
    """That of the answer; what a receiver says before it (100, 103) is passed over."""
    read, size = b"", 0
    while True:
        head, end, rest = read.partition(b"\r\n\r\n")
        if end and not re.match(rb"HTTP/1\.1 1\d\d[ \r]", head + end):
            return head + end
        if end:
            read = rest
            continue
        connection.settimeout(_left(deadline))
        piece = connection.recv(4096)
        read, size = read + piece, size + len(piece)
        if not piece or size > _MAX_HEAD_BYTES:
            raise OSError("it answers with something else than HTTP")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it does not answer in time")
    return left


def _answer(head: bytes) -> Answer:
    status = re.match(rb"HTTP/1\.[01] (\d{3})[ \r]", head)
    if status is None:
        raise OSError("it answers with something else than HTTP")
    pause = re.search(rb"\r\nretry-after: *(\d{1,6}) *\r\n", head, re.IGNORECASE)
    return Answer(int(status[1]), float(pause[1]) if pause else None)
