"""The gateway over real HTTP: runs started, listed, looked at, ended; what is wrong is told as a problem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mosaic_queues.settings import Settings
from mosaic_tasks import get_run
from tests.integration.gateway_tools import GatewayProcess, gateway
from tests.services import READY_S, ServerForTests, Workers

pytestmark = pytest.mark.integration

WORKFLOWS = {
    "hello": """
name: hello
description: Greets somebody.
inputs: {who: {type: string, default: world}}
nodes: {greet: {tool: "string:capwords", with: {s: "hello ${inputs.who}"}, description: Says it.}}
output: greet
""",
    "numbers": """
name: numbers
inputs: {n: {type: integer, default: 4}}
nodes: {numbers: {tool: "tests.integration.stream_tools:gated_numbers", with: {n: "${inputs.n}"}}}
output: numbers
""",
    "broken": """
name: broken
nodes: {fails: {tool: "tests.integration.stream_tools:fails"}}
output: fails
""",
    "held": """
name: held
nodes: {held: {tool: "string:capwords", with: {s: later}, queue: nobody}}
output: held
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("workflows")
    for name, text in WORKFLOWS.items():
        (found / f"{name}.yaml").write_text(text, "utf-8")
    return found


@pytest.fixture(scope="module")
def served(
    folder: Path, redis_server: ServerForTests, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """One gateway for all of them: it keeps nothing that the server does not hold."""
    url, home = redis_server.urls.redis_url, tmp_path_factory.mktemp("gateway")
    with gateway(folder, redis_url=url, home=home) as running:
        yield running


@pytest.fixture
def http(served: GatewayProcess, mosaic_process: Settings) -> Iterator[httpx2.Client]:
    with served.client() as client:
        yield client


@pytest.fixture
def worker(workers: Workers) -> Workers:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
    return workers


def start(http: httpx2.Client, workflow: str = "hello", **body: Any) -> str:
    answer = http.post("/v1/runs", json={"workflow": workflow, **body})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["run_id"])


def problem(answer: httpx2.Response, status: int) -> dict[str, Any]:
    """The problem that an answer is."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = answer.json()
    assert told["status"] == status
    assert told["detail"]
    assert "Traceback" not in answer.text
    return told


# -- a run's life -------------------------------------------------------------------------------------------


def test_a_run_is_started_looked_at_and_its_output_read(worker: Workers, http: httpx2.Client) -> None:
    answer = http.post("/v1/runs", json={"workflow": "hello", "inputs": {"who": "you"}})
    assert (answer.status_code, answer.json()["is_new"]) == (201, True)
    place = answer.headers["location"]
    assert place == f"/v1/runs/{answer.json()['run_id']}"
    get_run(answer.json()["run_id"]).wait(READY_S)
    told = http.get(place).json()
    assert (told["workflow"], told["status"], told["output"]) == ("hello", "done", "Hello You")
    assert [(node["name"], node["state"]) for node in told["nodes"]] == [("greet", "done")]
    node = http.get(f"{place}/nodes/greet").json()
    assert (node["state"], node["output"]) == ("done", "Hello You")
    assert "done" in http.get(f"{place}/explain").json()["explanations"][0]["text"]


def test_a_run_that_failed_says_why(worker: Workers, http: httpx2.Client) -> None:
    run_id = start(http, "broken")
    get_run(run_id).wait(READY_S)
    told = http.get(f"/v1/runs/{run_id}").json()
    assert (told["status"], told["output"]) == ("failed", None)
    assert "no such luck" in told["error"]


def test_an_idempotency_key_gives_one_run(http: httpx2.Client) -> None:
    first, second = (
        http.post("/v1/runs", json={"workflow": "hello"}, headers={"Idempotency-Key": "k"}) for _ in range(2)
    )
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["run_id"] == second.json()["run_id"]
    assert second.headers["location"] == first.headers["location"]
    other = http.post(
        "/v1/runs", json={"workflow": "hello", "inputs": {"who": "x"}}, headers={"Idempotency-Key": "k"}
    )
    assert "give another key" in problem(other, 422)["detail"]


def test_a_run_is_cancelled_once_and_runs_again(worker: Workers, http: httpx2.Client) -> None:
    run_id = start(http, "numbers", inputs={"n": 1})
    get_run(run_id).wait(READY_S)
    assert http.post(f"/v1/runs/{run_id}/cancel").json()["status"] == "done"
    assert http.post(f"/v1/runs/{run_id}/rerun", json={"node": "numbers"}).status_code == 200
    get_run(run_id).wait(READY_S)
    assert http.get(f"/v1/runs/{run_id}/nodes/numbers").json()["epoch"] == 1
    held = start(http, "held")
    ended = http.post(f"/v1/runs/{held}/cancel").json()
    assert (ended["status"], ended["error"]) == ("cancelled", "cancelled by anyone")


def test_what_is_no_mixture_is_not_scored(http: httpx2.Client) -> None:
    run_id = start(http)
    answer = http.post(f"/v1/runs/{run_id}/score", json={"node": "greet", "value": 1})
    assert "is no mixture" in problem(answer, 422)["detail"]


def test_runs_are_listed_newest_first_in_pages(worker: Workers, http: httpx2.Client) -> None:
    runs = [start(http, "hello") for _ in range(3)]
    runs += [start(http, "held")]
    for run_id in runs[:3]:
        get_run(run_id).wait(READY_S)
    page = http.get("/v1/runs", params={"limit": 3}).json()
    assert [run["run_id"] for run in page["runs"]] == runs[:0:-1]
    rest = http.get("/v1/runs", params={"before": page["next"]}).json()
    assert ([run["run_id"] for run in rest["runs"]], rest["next"]) == (runs[:1], None)
    done = http.get("/v1/runs", params={"status": "done", "workflow": "hello"}).json()
    assert [run["run_id"] for run in done["runs"]] == runs[2::-1]
    assert http.get("/v1/runs", params={"status": "running"}).json()["runs"][0]["run_id"] == runs[3]


def test_workflows_are_described(http: httpx2.Client) -> None:
    cards = {card["name"]: card for card in http.get("/v1/workflows").json()["workflows"]}
    assert cards.keys() == WORKFLOWS.keys()
    assert cards["hello"]["inputs"]["properties"]["who"]["default"] == "world"
    whole = http.get("/v1/workflows/hello").json()
    assert whole["nodes"] == [{"name": "greet", "kind": "tool", "description": "Says it."}]
    assert whole["mermaid"].startswith("flowchart TD")


def test_health(http: httpx2.Client) -> None:
    assert http.get("/health/live").json() == http.get("/health/ready").json() == {"status": "ok"}


# -- what is wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 400),
        (b'{"workflow": "hello", "workflow": "held"}', 400),
        (b'{"workflow": "hello", "inputs": {"who": NaN}}', 400),
        (b'{"workflow": "hello", "inputs": {"who": "\\ud800"}}', 400),
        (b'{"workflow": "hello", "inputs": {"who": "\xff"}}', 400),
        (b'{"workflow": "hello", "inputs": {"who": 1e999}}', 400),
        (b"[" * 200_000, 400),
        (b'{"workflow": "hello", "inputs": {"who": ' + b"[" * 70 + b"]" * 70 + b"}}", 400),
        (b'{"workflow": "hello", "inputs": {"who": 7}}', 422),
        (b'{"workflow": "hello", "inputs": {"whom": "x"}}', 422),
        (b'{"workflow": "hello", "inputs": {"who": 123456789012345678901234567890}}', 422),
        (b'{"workflow": "hello", "tenant": "other"}', 422),
        (b'{"workflow": "hello", "deadline_s": -1}', 422),
        (b'{"workflow": "hello", "priority": "nonsense"}', 422),
        (b'{"workflow": "hello", "priority": 99999999999999999999}', 422),
        (b'{"workflow": "../../etc/passwd"}', 422),
        (b'{"workflow": "hello.yaml"}', 422),
        (b'{"workflow": "hello", "inputs": {"who": "' + b"x" * 5_000_000 + b'"}}', 413),
    ],
)
def test_bodies_that_do_not_fit_are_told_as_problems(http: httpx2.Client, body: bytes, status: int) -> None:
    problem(http.post("/v1/runs", content=body, headers={"Content-Type": "application/json"}), status)
    assert http.get("/v1/runs").json()["runs"] == []


def test_a_request_that_does_not_fit_says_where(http: httpx2.Client) -> None:
    told = problem(http.post("/v1/runs", json={"inputs": 1}), 422)
    assert [each["loc"] for each in told["errors"]] == [["body", "workflow"], ["body", "inputs"]]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_a_body_that_is_no_json_by_its_type_is_refused(http: httpx2.Client, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    problem(http.post("/v1/runs", content=b'{"workflow": "hello"}', headers=headers), 415)


def test_a_body_without_length_is_refused_while_it_comes(http: httpx2.Client) -> None:
    pieces = (b" " * (1 << 16) for _ in range(100))
    answer = http.post("/v1/runs", content=pieces, headers={"Content-Type": "application/json"})
    assert "at most 4194304 bytes" in problem(answer, 413)["detail"]


def test_what_is_not_there(http: httpx2.Client) -> None:
    problem(http.get("/nothing"), 404)
    for path in ("", "/stream", "/events", "/explain", "/nodes/x"):
        problem(http.get(f"/v1/runs/01990c2e-7d0a-7f3e-a5b1-0c9be8a1c001{path}"), 404)
    problem(http.get("/v1/workflows/..%2F..%2Fetc%2Fpasswd"), 404)
    run_id = start(http)
    assert "'greet'" in problem(http.get(f"/v1/runs/{run_id}/nodes/gret"), 404)["detail"]
    problem(http.get(f"/v1/runs/{run_id}/stream", params={"node": "none"}), 404)


def test_methods(http: httpx2.Client) -> None:
    answer = http.put("/v1/runs")
    problem(answer, 405)
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"
    answer = http.options("/v1/runs")
    assert (answer.status_code, answer.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
    answer = http.head("/v1/runs")
    assert (answer.status_code, answer.content) == (200, b"")
    run_id = start(http, "held")
    answer = http.head(f"/v1/runs/{run_id}/events")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_answers_have_headers_that_keep_browsers_safe(http: httpx2.Client) -> None:
    for path in ("/health/live", "/nothing"):
        headers = http.get(path, headers={"X-Request-ID": "mine-1"}).headers
        assert headers["x-request-id"] == "mine-1"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
    assert len(http.get("/", headers={"X-Request-ID": "a b\tc"}).headers["x-request-id"]) == 32


def test_a_page_of_another_name_does_not_reach_the_loopback(http: httpx2.Client) -> None:
    problem(http.get("/v1/runs", headers={"Host": "evil.example"}), 421)
    problem(http.get("/v1/runs", headers={"Host": "127.0.0.1.evil.example:80"}), 421)
    assert http.get("/v1/runs", headers={"Host": "LOCALHOST:1"}).status_code == 200
    answer = http.post("/v1/runs", json={"workflow": "hello"}, headers={"Origin": "https://evil.example"})
    problem(answer, 403)


def test_cors_is_off_by_default(http: httpx2.Client) -> None:
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in http.options("/v1/runs", headers=asked).headers


def test_cors_is_on_for_named_origins(folder: Path, redis_url: str, tmp_path: Path) -> None:
    words = ["--cors", "https://app.example"]
    with gateway(folder, redis_url=redis_url, home=tmp_path, args=words) as served, served.client() as http:
        asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        answer = http.options("/v1/runs", headers=asked)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        foreign = http.options("/v1/runs", headers={**asked, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in foreign.headers
        started = http.post("/v1/runs", json={"workflow": "hello"}, headers={"Origin": "https://app.example"})
        assert started.status_code == 201


def test_a_gateway_whose_gate_opens_for_other_machines_does_not_start(
    folder: Path, redis_url: str, tmp_path: Path
) -> None:
    words = ["--host", "0.0.0.0"]
    with (
        pytest.raises(pytest.fail.Exception, match="make a key first"),
        gateway(folder, redis_url=redis_url, home=tmp_path, args=words),
    ):
        pass


def test_the_openapi_document_names_every_operation(http: httpx2.Client) -> None:
    document = http.get("/openapi.json").json()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    assert "submit_run" in ids
    for operation in operations:
        assert operation["tags"], operation["operationId"]
        assert operation["summary"], operation["operationId"]
