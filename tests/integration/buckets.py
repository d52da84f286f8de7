"""A server on loopback that speaks as much of S3 as reports need."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest


class _S3(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self._objects[self._key] = self.rfile.read(int(self.headers["content-length"]))
        self._answer(200)

    def do_GET(self) -> None:
        found = self._objects.get(self._key)
        self._answer(404 if found is None else 200, found or b"")

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        self._objects.pop(self._key, None)
        self._answer(204)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(403 if self.server.is_closed else status)  # type: ignore[attr-defined]
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 07:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    @property
    def _objects(self) -> dict[str, bytes]:
        found: dict[str, bytes] = self.server.objects  # type: ignore[attr-defined]
        return found

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path)

    def log_message(self, *_arguments: Any) -> None: ...


@contextmanager
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The server, for what reads this process's environment; it has `objects`, and may be `is_closed`."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _S3)
    server.objects, server.is_closed, server.daemon_threads = {}, False, True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "hush-hush",
        "AWS_REGION": "eu-central-1",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
