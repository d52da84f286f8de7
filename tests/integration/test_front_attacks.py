"""What strangers try at the gateway's door: hostile names, odd requests, bodies that are held back, readers of what is
gone."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from redis import Redis

from mosaic_queues.errors import InputError, UnknownRun
from mosaic_queues.settings import Settings
from mosaic_queues.texts import MOST_ERROR_CHARS
from mosaic_tasks import Run, get_run, submit
from mosaic_tasks.gateway.entrance import BODIES_AT_ONCE
from mosaic_tasks.gateway.problems import MOST_DETAIL_CHARS, MOST_ERRORS
from mosaic_tasks.gateway.readers import _ELSEWHERE, frames
from mosaic_tasks.inspection import reading
from tests.integration.gateway_tools import GatewayProcess, gateway
from tests.services import READY_S, ServerForTests

pytestmark = pytest.mark.integration

HELD = """
name: held
inputs: {what: {default: 1}}
nodes: {held: {tool: "string:capwords", with: {s: later}, queue: nobody}}
output: held
"""
BODY_BYTES = 65_536
END = "Host: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("workflows")
    (found / "held.yaml").write_text(HELD, "utf-8")
    return found


@pytest.fixture(scope="module")
def served(
    folder: Path, redis_server: ServerForTests, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    url, home = redis_server.urls.redis_url, tmp_path_factory.mktemp("gateway")
    env = {"MOSAIC_GATEWAY_BODY_BYTES": str(BODY_BYTES)}
    with gateway(folder, redis_url=url, home=home, env=env) as running:
        yield running


@pytest.fixture
def http(served: GatewayProcess, mosaic_process: Settings) -> Iterator[httpx2.Client]:
    with served.client() as client:
        yield client


@pytest.fixture
def held(folder: Path, mosaic_process: Settings) -> Run:
    return submit(folder / "held.yaml")


# -- names --------------------------------------------------------------------------------------------------

HOSTILE = [
    "a\r\nX-Evil: 1",
    "</script><script>alert(1)</script>",
    "}{",
    "a\0b",
    "\ud800",
    "\u202eabc",
    "x" * 8_000,
    "../../etc/passwd",
    "%00",
    "\x1b]0;t\x07",
    "\uffff",
]
PLACES = [
    "/v1/runs/{}",
    "/v1/runs/{}/stream",
    "/v1/runs/{}/nodes/held",
    "/v1/runs/RUN/nodes/{}",
    "/v1/runs/RUN/stream?node={}",
    "/v1/runs/RUN/stream?after={}",
    "/v1/runs/RUN/events?after={}",
    "/v1/runs?status={}",
    "/v1/workflows/{}",
    "/v1/models/{}",
    "/runs/{}",
    "/runs/RUN?node={}",
    "/runs/{}/changes",
    "/assets/{}",
]


def test_hostile_names_are_not_found_or_do_not_fit_wherever_they_stand(
    served: GatewayProcess, http: httpx2.Client, held: Run, redis_client: Redis
) -> None:
    before = set(redis_client.keys("*"))
    for name in HOSTILE:
        spelled = quote(name.encode("utf-8", "surrogatepass"), safe="")
        for place in PLACES:
            answer = http.get(place.replace("RUN", held.id).format(spelled))
            assert answer.status_code in (404, 414, 422), (name[:40], place, answer.text[:500])
            assert "<script>alert" not in answer.text or "json" in answer.headers["content-type"]
            assert len(answer.content) < 50_000
        for workflow in (name, "held"):
            body = {"workflow": workflow, "objective": name, name: name}
            answer = http.post(
                "/v1/runs", content=json.dumps(body), headers={"Content-Type": "application/json"}
            )
            assert answer.status_code in (400, 422), (name[:40], answer.text[:500])
    assert {key for key in set(redis_client.keys("*")) - before if b"access" not in key} == set()
    assert "Traceback" not in served.log
    assert not any(sign in served.log for sign in ("\x1b", "\0", "\nX-Evil"))


def test_what_is_no_text_is_refused_in_python_too(folder: Path, mosaic_process: Settings) -> None:
    with pytest.raises(UnknownRun, match=r"no run '\\ud800'"):
        get_run("\ud800")
    with pytest.raises(InputError, match=r"the key '\\ud800' is no text"):
        submit(folder / "held.yaml", key="\ud800")


def test_why_a_run_was_cancelled_is_text(held: Run) -> None:
    assert held.cancel("\x1b]0;t\x07 \ud800" + "x" * 100_000)
    told = held.record().error
    assert told.startswith("\\x1b]0;t\\x07 \\ud800xx")
    assert len(told) < 2 * MOST_ERROR_CHARS


def test_an_answer_that_says_what_is_wrong_is_not_as_long_as_what_was_sent(http: httpx2.Client) -> None:
    long = "y" * (BODY_BYTES // 2)
    for body in ({"workflow": long}, {"workflow": "held", long: 1}, {"workflow": "held", "priority": long}):
        answer = http.post("/v1/runs", json=body)
        assert answer.status_code == 422
        assert len(answer.text) < 3 * MOST_DETAIL_CHARS
    answer = http.post("/v1/runs", json={"workflow": "held", **{f"f{each}": 1 for each in range(3_000)}})
    assert len(answer.json()["errors"]) == MOST_ERRORS


# -- requests -----------------------------------------------------------------------------------------------


def answered(served: GatewayProcess, begun: bytes) -> bytes:
    """All that a connection is told; the last request closes it."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=READY_S) as sock:
        sock.sendall(begun)
        return b"".join(iter(partial(sock.recv, 65_536), b""))


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "CONNECT", "PATCH", "FOO", "get", "PRI"])
def test_no_method_breaks_any_path(served: GatewayProcess, mosaic_process: Settings, method: str) -> None:
    places = [
        "/",
        "/v1/runs",
        "/v1/runs/x/stream",
        "/health/live",
        "/openapi.json",
        "/login",
        "/nowhere",
    ]
    for place in [*places, "http://elsewhere/", "elsewhere:443", "//elsewhere/%2e%2e/", "/../x"]:
        told = answered(served, f"{method} {place} HTTP/1.1\r\n{END}".encode())
        head, _, body = told.partition(b"\r\n\r\n")
        assert head[:10] in (b"HTTP/1.1 2", b"HTTP/1.1 3", b"HTTP/1.1 4"), (place, told)
        assert not (method == "HEAD" and body), (place, told)


def test_requests_in_a_row_are_answered_in_their_order(
    served: GatewayProcess, mosaic_process: Settings
) -> None:
    asked = [f"GET /v1/runs/{each} HTTP/1.1\r\nHost: localhost\r\n\r\n" for each in range(49)]
    told = answered(served, "".join([*asked, f"GET /v1/runs/49 HTTP/1.1\r\n{END}"]).encode())
    places = [told.index(f"there is no run '{each}' here".encode()) for each in range(50)]
    assert places == sorted(places)
    assert told.count(b"HTTP/1.1 404 ") == 50


# -- bodies -------------------------------------------------------------------------------------------------


def test_bodies_that_are_held_back_take_no_more_than_their_room(
    served: GatewayProcess, http: httpx2.Client, redis_client: Redis
) -> None:
    """They are read before it is known whose they are: without a limit, a thousand strangers take all of the memory."""
    begun, rest = b'{"workflow": "held"' + b" " * (BODY_BYTES - 4_096), b"}"
    fit = BODIES_AT_ONCE * BODY_BYTES // len(begun)
    head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(begun + rest)}\r\n\r\n"
    with ExitStack() as opened:
        at = ("127.0.0.1", served.port)
        socks = [opened.enter_context(socket.create_connection(at, timeout=READY_S)) for _ in range(fit + 3)]
        for sock in socks:
            sock.sendall(b"POST /v1/runs HTTP/1.1\r\n" + head.encode() + begun)
        refused = _told(socks, 3)
        told = [_answer(sock) for sock in refused]
        assert [(each.status, each.headers["retry-after"]) for each in told] == [(503, "2")] * 3
        for sock in socks:
            if sock not in refused:
                sock.sendall(rest)
        assert Counter(_answer(sock).status for sock in socks if sock not in refused) == {201: fit}
    assert http.post("/v1/runs", json={"workflow": "held"}).status_code == 201


def _told(socks: list[socket.socket], count: int) -> list[socket.socket]:
    """So many of them, those that are told something though their bodies are not complete."""
    found = list[socket.socket]()
    while len(found) < count:
        new = select.select([sock for sock in socks if sock not in found], [], [], READY_S)[0]
        assert new, f"{len(found)} are refused"
        found += new
    return found


def _answer(sock: socket.socket) -> HTTPResponse:
    answer = HTTPResponse(sock)
    answer.begin()
    return answer


# -- what is gone -------------------------------------------------------------------------------------------


def _lose(client: Redis, run: Run) -> None:
    """Nobody is told of it: so is a run that a server lost, or whose retention ended while its readers were away."""
    client.delete(*client.keys(f"*{run.id}*"))


def test_readers_of_a_run_that_is_gone_are_told(
    held: Run, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LOOK_S", 0.05)

    async def read_on() -> list[bytes]:
        events = frames(held.aevents(), lambda _: b"", lambda: b"over", silence_s=0.02)
        while await anext(events):  # what happened so far
            pass
        _lose(redis_client, held)
        return [each async for each in events]

    with held.stream() as pieces:
        assert asyncio.run(asyncio.wait_for(read_on(), READY_S))[-1] == _ELSEWHERE
        with pytest.raises(UnknownRun, match="past its retention"):
            next(pieces)
