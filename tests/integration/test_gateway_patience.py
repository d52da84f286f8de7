"""What a gateway bears, and for how long: idle clients, a server that hangs, readers who may no more."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from mosaic_queues.connection import connect
from mosaic_queues.server import server_binary
from mosaic_tasks.access.audit import audit_of
from mosaic_tasks.access.gates import keys_of
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import sending_once
from mosaic_tasks.gateway.serving import _hurry
from tests.integration.gateway_tools import GatewayProcess, gateway
from tests.integration.issuers import AUDIENCE, issuer
from tests.services import READY_S

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("keys", reason="API keys without an expiry stay until they are revoked"),
]
HELD = """
name: held
nodes: {held: {tool: "string:capwords", with: {s: later}, queue: nobody}}
output: held
"""
HEAD = b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "held.yaml"
    file.write_text(HELD)
    return file


@pytest.fixture
def running(file: Path, redis_url: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    env = {"MOSAIC_GATEWAY_PATIENCE_S": "0.5"}
    with gateway(file, redis_url=redis_url, home=tmp_path, env=env) as found:
        yield found


def said(running: GatewayProcess, begun: bytes) -> bytes:
    """What a connection is told until it is closed."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=READY_S) as sock:
        sock.sendall(begun)
        answer = b""
        try:
            while more := sock.recv(65_536):
                answer += more
        except ConnectionResetError:
            pass
        return answer


# -- clients ------------------------------------------------------------------------------------------------


def test_a_connection_on_which_nothing_is_asked_is_closed(running: GatewayProcess) -> None:
    for begun in (b"", b"G", HEAD):
        assert said(running, begun) == b""
    refused = said(running, HEAD + b"Content-Length: 99999999\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 413 ")


def test_more_connections_than_there_is_room_for_are_closed_and_said_once(
    file: Path, redis_url: str, tmp_path: Path
) -> None:
    with gateway(file, redis_url=redis_url, home=tmp_path) as running, contextlib.ExitStack() as opened:
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (200, 200))
        at = ("127.0.0.1", running.port)
        socks = [opened.enter_context(socket.create_connection(at, timeout=READY_S)) for _ in range(110)]
        running.wait_said("gateway.crowded")
        closed = select.select(socks, [], [], READY_S)[0]
        assert 0 < len(closed) <= 10
        opened.close()
        with running.client() as http:
            for _ in range(100):
                with contextlib.suppress(httpx2.TransportError):
                    assert http.get("/health/ready").status_code == 200
                    break
            else:
                pytest.fail("nobody gets in any more")
        assert running.log.count("gateway.crowded") == 1
        assert "Traceback" not in running.log


def test_a_body_of_two_lengths_is_refused_and_nothing_behind_it_is_read(running: GatewayProcess) -> None:
    lengths = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    smuggled = b"0\r\n\r\nGET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = said(running, HEAD + lengths + smuggled)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


# -- a server that hangs ------------------------------------------------------------------------------------


def test_a_server_that_hangs_is_not_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("v") / "s"
    words = ["--port", "0", "--unixsocket", str(place), "--dir", str(place.parent), "--save", ""]
    server = subprocess.Popen([server_binary(), *words], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        with connect(f"unix://{place}?db=0") as client, sending_once(client) as once:
            client.ping()  # has a connection that was made with more patience
            _hurry(cast("Any", SimpleNamespace(client=client, once=once)), 0.2)
            assert client.ping()
            os.kill(server.pid, signal.SIGSTOP)
            for each in (client, once):
                with pytest.raises(RedisTimeoutError):
                    each.ping()
            os.kill(server.pid, signal.SIGCONT)
            assert client.ping()
            client.close()
            once.close()
    finally:
        server.kill()
        server.wait()


# -- readers ------------------------------------------------------------------------------------------------


def start(client: httpx2.Client) -> str:
    return str(client.post("/v1/runs", json={"workflow": "held"}).json()["run_id"])


def reads_to_its_end(http: httpx2.Client, path: str, end: Any) -> str:
    """What a stream says once `end` was called while it is read."""
    with http.stream("GET", path) as answer:
        parts = answer.iter_text()
        assert next(parts).startswith("retry:")
        end()
        return "".join(parts)


def test_a_reader_whose_key_was_revoked_reads_no_further(file: Path, redis_url: str, tmp_path: Path) -> None:
    key = keys_of(app).add("ada", scopes=["submit", "read"])
    with gateway(file, redis_url=redis_url, home=tmp_path) as running, running.client(key) as ada:
        path = f"/v1/runs/{start(ada)}/stream"
        assert "may not any more" in reads_to_its_end(ada, path, lambda: keys_of(app).revoke("ada"))
        assert ada.get(path).status_code == 401


def test_a_reader_whose_token_is_over_reads_no_further(file: Path, redis_url: str, tmp_path: Path) -> None:
    with issuer() as provider:
        env = {"MOSAIC_OIDC_ISSUER": provider.url, "MOSAIC_OIDC_AUDIENCE": AUDIENCE}
        token = provider.token(exp=int(time.time()) + 1)
        serving = gateway(file, redis_url=redis_url, home=tmp_path, env=env)
        with serving as running, running.client(token) as ada:
            path = f"/v1/runs/{start(ada)}/events"
            assert "may not any more" in reads_to_its_end(ada, path, lambda: None)


def test_a_reader_at_an_open_gate_reads_no_further_once_it_closes(
    file: Path, redis_url: str, tmp_path: Path
) -> None:
    with gateway(file, redis_url=redis_url, home=tmp_path) as running, running.client() as anyone:
        path = f"/v1/runs/{start(anyone)}/stream"
        close = lambda: keys_of(app).add("ada", scopes=["read"])  # noqa: E731
        assert "may not any more" in reads_to_its_end(anyone, path, close)


def test_a_provider_that_is_away_is_told_as_such(file: Path, redis_url: str, tmp_path: Path) -> None:
    with issuer() as provider:
        provider.answers["/.well-known/openid-configuration"] = None
        env = {"MOSAIC_OIDC_ISSUER": provider.url, "MOSAIC_OIDC_AUDIENCE": AUDIENCE}
        serving = gateway(file, redis_url=redis_url, home=tmp_path, env=env)
        with serving as running, running.client(provider.token()) as ada:
            for path in ("/v1/runs", "/v1/models"):
                away = ada.get(path)
                assert (away.status_code, "provider" in away.text) == (503, True), away.text
                assert int(away.headers["retry-after"]) > 0
    assert audit_of(app).last(1)[0].reason.startswith("ProviderUnavailable")
