"""Reports in an object store over HTTP: a server on loopback that speaks as much of S3 as is needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from mosaic_queues.errors import InputError
from mosaic_tasks.reports.places import Store

pytestmark = pytest.mark.integration


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


def test_a_bucket_gets_whole_files_and_gives_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3(monkeypatch) as server:
        store = Store("s3://reports/week-48", work=tmp_path / "work")
        with store.writing("items/00001-shop.html") as path:
            path.write_bytes(b"<p>")
        assert server.objects == {"/reports/week-48/items/00001-shop.html": b"<p>"}
        assert store.holds("items/00001-shop.html")
        store.fetch("items/00001-shop.html", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"<p>"
        assert not store.holds("none")
        with pytest.raises(ZeroDivisionError):
            write_half(store)
        assert len(server.objects) == 1
        assert list((tmp_path / "work").iterdir()) == []


def write_half(store: Store) -> None:
    with store.writing("half") as path:
        path.write_bytes(b"<")
        raise ZeroDivisionError


def test_a_bucket_that_is_closed_is_told_without_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3(monkeypatch) as server:
        server.is_closed = True
        store = Store("s3://reports/week-48", work=tmp_path)
        with (
            pytest.raises(InputError, match="cannot write 'a' in 's3://reports/week-48'") as told,
            store.writing("a") as path,
        ):
            path.write_bytes(b"x")
        assert "hush-hush" not in str(told.value)
