"""A receiver of webhooks on loopback, which notes what it is told and answers as it is told."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """What came, and what is answered.

    Attributes:
        statuses: of the next answers, each with its headers; when they are used up: 204.
        before: is called before each answer.
    """

    url: str
    came: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    statuses: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    before: Callable[[], object] = lambda: None

    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.came]


@contextmanager
def receiving(
    context: ssl.SSLContext | None = None, *, at: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[Receiver]:
    server = ThreadingHTTPServer(at, _Handler)
    scheme = "http"
    if context is not None:
        server.socket, scheme = context.wrap_socket(server.socket, server_side=True), "https"
    server.receiver = receiver = Receiver(f"{scheme}://{at[0]}:{server.server_port}/hook")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        receiver: Receiver = self.server.receiver  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers["content-length"]))
        receiver.came.append(({name.lower(): value for name, value in self.headers.items()}, body))
        receiver.before()
        status, headers = receiver.statuses.pop(0) if receiver.statuses else (204, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_arguments: Any) -> None: ...
