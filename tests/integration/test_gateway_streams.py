"""Server-sent events of the gateway: live, resumable, bounded; gateways and servers that go away under readers."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from redis import Redis

from mosaic_queues.connection import ServerUrls, connect, urls_of
from mosaic_queues.server import server_binary
from mosaic_queues.settings import Settings
from mosaic_tasks import get_run
from tests.integration.gateway_tools import GatewayProcess, Told, gateway, told
from tests.integration.stream_tools import open_gate
from tests.services import READY_S, Workers

pytestmark = pytest.mark.integration

TOOLS = "tests.integration.stream_tools"
NUMBERS = f"""
name: numbers
inputs: {{n: {{type: integer, default: 4}}}}
nodes: {{numbers: {{tool: "{TOOLS}:gated_numbers", with: {{n: "${{inputs.n}}"}}}}}}
output: numbers
"""
FAILS = f"""
name: fails
nodes: {{fails: {{tool: "{TOOLS}:fails"}}}}
output: fails
"""
LONG = f"""
name: long
nodes: {{texts: {{tool: "{TOOLS}:long_texts"}}}}
output: texts
"""
PIPED = """
name: piped
nodes: {{numbers: {{tool: "tests.integration.gateway_run_tools:piped_numbers", with: {{path: "{pipe}"}}}}}}
output: numbers
"""
LAST = "Last-Event-ID"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "workflows"
    found.mkdir()
    for name, text in {"numbers": NUMBERS, "fails": FAILS, "long": LONG}.items():
        (found / f"{name}.yaml").write_text(text, "utf-8")
    return found


@pytest.fixture
def worker(workers: Workers) -> Workers:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
    return workers


@contextlib.contextmanager
def served(folder: Path, redis_url: str, home: Path, **env: str) -> Iterator[GatewayProcess]:
    with gateway(folder, redis_url=redis_url, home=home, env=env) as running:
        yield running


def start(served: GatewayProcess, workflow: str = "numbers", n: int | None = None) -> str:
    inputs = {} if n is None else {"n": n}
    with served.client() as http:
        answer = http.post("/v1/runs", json={"workflow": workflow, "inputs": inputs})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["run_id"])


@contextlib.contextmanager
def reading(served: GatewayProcess, path: str, after: str = "", **params: str) -> Iterator[Iterator[Told]]:
    headers = {LAST: after} if after else {}
    with served.client() as http, http.stream("GET", path, headers=headers, params=params) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield told(answer)


def read_all(served: GatewayProcess, path: str, after: str = "") -> list[Told]:
    with reading(served, path, after) as events:
        return [event for event in events if event.kind != ":"]


def numbers_of(events: list[Told]) -> list[int]:
    return [number for event in events if event.kind == "items" for number in event.data["value"]]


def next_of(events: Iterator[Told], kind: str) -> Told:
    return next(event for event in events if event.kind == kind)


# -- reading on ---------------------------------------------------------------------------------------------


def test_streams_are_live_and_go_on_from_any_place(
    worker: Workers,
    folder: Path,
    redis_url: str,
    redis_client: Redis,
    tmp_path: Path,
    mosaic_process: Settings,
) -> None:
    with served(folder, redis_url, tmp_path) as gate:
        run_id = start(gate)
        stream, happened = f"/v1/runs/{run_id}/stream", f"/v1/runs/{run_id}/events"
        with reading(gate, stream) as events:
            first = next_of(events, "items")
            assert (first.data["value"], first.data["offset"], first.data["node"]) == ([0], 0, "numbers")
            open_gate(redis_client, "more")
            rest = list(events)
        assert numbers_of(rest) == [1, 2, 3]
        assert (rest[-1].kind, rest[-1].data["offset"]) == ("end", 4)
        whole = [first, *rest]
        assert whole == read_all(gate, stream)
        get_run(run_id).wait(READY_S)
        for place, event in enumerate(whole[:-1], 1):
            assert read_all(gate, stream, event.id) == whole[place:]
        assert [event.kind for event in read_all(gate, stream, whole[-1].id)] == ["over"]
        everything = read_all(gate, happened)
        assert [event.id for event in everything[:-1]] == [event.id for event in get_run(run_id).events()]
        assert [event.kind for event in everything[:1] + everything[-2:]] == ["opened", "closed", "over"]
        assert everything[-1].data == {"status": "done", "error": ""}
        assert "numbers" in next(event for event in everything if event.kind == "done").data["nodes"]
        for place, event in enumerate(everything[:-1], 1):
            assert read_all(gate, happened, event.id) == everything[place:]
        for path in (stream, happened):
            with gate.client() as http:
                answer = http.get(path, headers={LAST: "nonsense"})
            assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


def test_events_come_while_they_happen_and_go_on_after_an_end(
    worker: Workers,
    folder: Path,
    redis_url: str,
    redis_client: Redis,
    tmp_path: Path,
    mosaic_process: Settings,
) -> None:
    with served(folder, redis_url, tmp_path) as gate:
        run_id = start(gate, n=2)
        with reading(gate, f"/v1/runs/{run_id}/events") as events:
            next_of(events, "claimed")
            open_gate(redis_client, "more")
            ended = next_of(events, "closed")
            assert [event.kind for event in events] == ["over"]
        open_gate(redis_client, "more")
        get_run(run_id).rerun("numbers")
        assert [event.kind for event in read_all(gate, f"/v1/runs/{run_id}/events", ended.id)][-2:] == [
            "closed",
            "over",
        ]


def test_a_stream_of_a_node_that_failed_says_so(
    worker: Workers, folder: Path, redis_url: str, tmp_path: Path, mosaic_process: Settings
) -> None:
    with served(folder, redis_url, tmp_path) as gate:
        run_id = start(gate, "fails")
        (over,) = read_all(gate, f"/v1/runs/{run_id}/stream")
    assert (over.kind, over.data["status"], over.id) == ("over", "failed", "")
    assert "no such luck" in over.data["error"]


def test_a_long_silence_is_filled_with_comments(folder: Path, redis_url: str, tmp_path: Path) -> None:
    with served(folder, redis_url, tmp_path, MOSAIC_GATEWAY_SILENCE_S="0.05") as gate:
        run_id = start(gate)
        with reading(gate, f"/v1/runs/{run_id}/stream") as events:
            assert [event.kind for event in itertools.islice(events, 3)] == [":", ":", ":"]


# -- gateways that end under their readers ------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("what", ["stream", "events"])
def test_a_reader_whose_gateway_ends_reads_on_at_another(
    worker: Workers,
    folder: Path,
    redis_url: str,
    redis_client: Redis,
    tmp_path: Path,
    mosaic_process: Settings,
    number: signal.Signals,
    what: str,
) -> None:
    (tmp_path / "other").mkdir()
    with served(folder, redis_url, tmp_path) as gate, served(folder, redis_url, tmp_path / "other") as other:
        run_id = start(gate, n=20)
        path, seen = f"/v1/runs/{run_id}/{what}", list[Told]()
        with reading(gate, path) as events:
            seen.append(next_of(events, "items" if what == "stream" else "claimed"))
            gate.signal(number)
            if number == signal.SIGTERM:
                (parting,) = events
                assert "read on" in parting.data
                assert gate.wait() == 0
            else:
                with pytest.raises(httpx2.TransportError):
                    list(events)
                assert gate.wait() == -signal.SIGKILL
        open_gate(redis_client, "more")
        seen += read_all(other, path, seen[-1].id)
        whole = read_all(other, path)
        assert seen == [event for event in whole if event in seen]
        assert seen == whole[whole.index(seen[0]) :]


# -- readers that sleep or leave ----------------------------------------------------------------------------


def test_a_reader_that_reads_nothing_is_dropped(
    worker: Workers,
    folder: Path,
    redis_url: str,
    redis_client: Redis,
    tmp_path: Path,
    mosaic_process: Settings,
) -> None:
    env = {"MOSAIC_GATEWAY_PATIENCE_S": "0.5", "MOSAIC_QUOTAS": str(one_reader(tmp_path))}
    with served(folder, redis_url, tmp_path, **env) as gate:
        run_id = start(gate, "long")
        with asleep(gate.port, f"/v1/runs/{run_id}/stream") as sleeper:
            assert sleeper.recv(1, socket.MSG_PEEK)  # it is let in
            await_free(gate, f"/v1/runs/{run_id}/events")
            open_gate(redis_client, "more")
            assert get_run(run_id).wait(READY_S).status == "done"
            assert b"the end" not in b"".join(iter(lambda: received(sleeper), b""))


def one_reader(folder: Path) -> Path:
    """Quotas that let one reader in at a time."""
    path = folder / "quotas.yaml"
    path.write_text("tenants: {'*': {readers: 1}}", "utf-8")
    return path


def received(connection: socket.socket) -> bytes:
    """The next bytes; none when the other side has dropped it."""
    try:
        return connection.recv(1 << 16)
    except ConnectionResetError:
        return b""


@contextlib.contextmanager
def asleep(port: int, path: str) -> Iterator[socket.socket]:
    """A reader that asks, and reads nothing."""
    with socket.socket() as connection:
        connection.settimeout(READY_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        yield connection


def test_a_reader_that_leaves_frees_its_place_at_once(folder: Path, redis_url: str, tmp_path: Path) -> None:
    with served(folder, redis_url, tmp_path, MOSAIC_QUOTAS=str(one_reader(tmp_path))) as gate:
        path = f"/v1/runs/{start(gate)}/events"
        for _ in range(3):
            with reading(gate, path) as events:
                next_of(events, "opened")
                with gate.client() as http:
                    answer = http.get(path)
                assert (answer.status_code, answer.headers["content-type"]) == (
                    429,
                    "application/problem+json",
                )
                assert int(answer.headers["retry-after"]) > 0
            await_free(gate, path)


def await_free(gate: GatewayProcess, path: str) -> None:
    """Waits until a reader may come again, which it can only ask; twice, since the first one takes the place too."""
    deadline = time.monotonic() + READY_S
    came = 0
    with gate.client() as http:
        while came < 2:
            if time.monotonic() > deadline:
                pytest.fail("the place of a reader that left is not free")
            with http.stream("GET", path) as answer:
                came += answer.status_code == 200


# -- a server that goes away --------------------------------------------------------------------------------


class Server:
    """A server with its data on disk, which the test kills and starts again."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._socket = directory, f"{directory}/valkey.sock"
        self.urls: ServerUrls = urls_of(f"unix://{self._socket}?db=0")
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        words = {"port": "0", "unixsocket": self._socket, "dir": str(self._directory), "save": ""}
        options = [word for name, value in words.items() for word in (f"--{name}", value)]
        options += ["--appendonly", "yes", "--appendfsync", "always"]
        command = [server_binary(), *options]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        self._process = self._start()


def test_a_server_that_is_away_is_told_and_readers_read_on(
    tmp_path: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server, pipe = Server(tmp_path_factory.mktemp("v")), tmp_path / "pipe"
    os.mkfifo(pipe)
    (folder / "piped.yaml").write_text(PIPED.format(pipe=pipe), "utf-8")
    try:
        with (
            Workers(server.urls, tmp_path) as started,
            served(folder, server.urls.redis_url, tmp_path) as gate,
        ):
            started.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
            path = f"/v1/runs/{start(gate, 'piped')}/stream"
            with (
                reading(gate, path) as events,
                reading(gate, "/changes") as listed,
                gate.client() as http,
            ):
                seen = [next_of(events, "items")]
                assert "runs" in next_of(listed, "change").data
                server.kill()
                away(http.get("/health/ready"))
                assert http.get("/health/live").status_code == 200
                away(http.post("/v1/runs", json={"workflow": "numbers"}))
                server.start()
                with connect(server.urls.redis_url) as client:
                    client.ping()
                pipe.write_text("go on", "utf-8")
                seen += [event for event in events if event.kind != ":"]
                other = start(gate, "fails")
                if not tells_of(listed, other):
                    with reading(gate, "/changes") as again:
                        assert tells_of(again, other)
            if seen[-1].kind != "end":
                seen += read_all(gate, path, seen[-1].id)
            assert numbers_of(seen) == [0, 1, 2, 3, 4]
            assert http_ready(gate)
    finally:
        server.kill()


def tells_of(listed: Iterator[Told], run_id: str) -> bool:
    """Whether a list shows a run, before its stream ends."""
    return any(f"run-{run_id}" in event.data for event in listed if event.kind == "change")


def away(answer: httpx2.Response) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert int(answer.headers["retry-after"]) > 0
    assert "sock" not in answer.text


def http_ready(gate: GatewayProcess) -> bool:
    with gate.client() as http:
        return http.get("/health/ready").status_code == 200
