"""An identity provider for tests: OpenID Connect discovery and a list of public keys, over HTTP on the loopback."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwk, jwt

AUDIENCE = "mosaic"


class Issuer:
    """A provider.

    Attributes:
        url: its name.
        asked: the paths that were asked for.
        answers: bodies by path, instead of the right ones; None: it answers 503.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        self.answers: dict[str, bytes | None] = {}
        self.keys: dict[str, Any] = {}
        self.add("first")

    def add(self, kid: str, kind: str = "EC", **more: str) -> None:
        """A further key to sign with."""
        size: Any = {"EC": "P-256", "RSA": 2048, "OKP": "Ed25519"}[kind]
        self.keys[kid] = jwk.generate_key(kind, size, {"kid": kid, **more})  # type: ignore[call-overload]

    def document(self, path: str) -> bytes | None:
        """What is answered."""
        self.asked.append(path)
        if path in self.answers:
            return self.answers[path]
        if path == "/keys":
            return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys.values()]}).encode()
        return json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"}).encode()

    def claims(self, **more: Any) -> dict[str, Any]:
        """Those of a good token; None takes one away."""
        now_s = int(time.time())
        good = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "iat": now_s,
            "exp": now_s + 600,
            "tenant": "acme",
            "scope": "openid submit read",
        }
        return {name: value for name, value in {**good, **more}.items() if value is not None}

    def token(
        self, kid: str = "first", *, alg: str = "ES256", key: Any = None, header: Any = None, **more: Any
    ) -> str:
        """A token, good unless told otherwise."""
        head = {"alg": alg, "kid": kid, **(header or {})}
        return jwt.encode(head, self.claims(**more), key or self.keys[kid], algorithms=[alg])


@contextlib.contextmanager
def issuer(tls: ssl.SSLContext | None = None) -> Iterator[Issuer]:
    """A provider that answers until the block ends; with `tls` as `https://localhost`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = found.document(self.path)
            self.send_response(200 if body is not None else 503)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = server.server_address[1]
    found = Issuer(f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}")
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
