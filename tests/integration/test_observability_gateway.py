"""What a gateway counts of itself, whom it tells, and the trace of a request that starts a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mosaic_tasks import get_run
from mosaic_tasks.access.gates import keys_of
from mosaic_tasks.app import app
from tests.integration.collector import collecting
from tests.integration.gateway_tools import GatewayProcess, gateway
from tests.services import READY_S, Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

HELLO = """
name: hello
nodes: {greet: {tool: "string:capwords", with: {s: "hello you"}}}
output: greet
"""
HELD = """
name: held
nodes: {held: {tool: "string:capwords", with: {s: later}, queue: nobody}}
output: held
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "workflows"
    found.mkdir()
    for name, text in (("hello", HELLO), ("held", HELD)):
        (found / f"{name}.yaml").write_text(text, "utf-8")
    return found


def figures(served: GatewayProcess) -> dict[tuple[str, ...], float]:
    with served.client() as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    return read(answer.text)


def read(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_requests_streams_and_refusals_are_counted_by_route(
    folder: Path, redis_url: str, tmp_path: Path
) -> None:
    with gateway(folder, redis_url=redis_url, home=tmp_path) as served, served.client() as client:
        run_id = client.post("/v1/runs", json={"workflow": "held"}).json()["run_id"]
        for path in ("/v1/runs/none", "/no/such/place", f"/{run_id}"):
            client.get(path)
        before = figures(served)
        with client.stream("GET", f"/v1/runs/{run_id}/events") as events:
            lines = events.iter_lines()
            next(lines)
            during = figures(served)
            lines.close()
        name = "mosaic_gateway_request_seconds_count"
        assert before[name, "POST", "/v1/runs", "201"] == 1
        assert before[name, "GET", "/v1/runs/{run_id}", "404"] == 1
        assert before[name, "GET", "unmatched", "404"] == 2
        assert run_id not in str(before)
        assert (before["mosaic_gateway_streams",], during["mosaic_gateway_streams",]) == (0, 1)
        client.post(f"/v1/runs/{run_id}/cancel")


def test_the_trace_of_a_request_is_linked_from_the_run_that_it_starts(
    folder: Path, redis_url: str, tmp_path: Path, workers: Workers
) -> None:
    with collecting() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        workers.start("mosaic_tasks.app", ["mosaic.cpu"], env=env).wait_ready()
        with (
            gateway(folder, redis_url=redis_url, home=tmp_path, env=env) as served,
            served.client() as client,
        ):
            header = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
            run_id = client.post("/v1/runs", json={"workflow": "hello"}, headers=header).json()["run_id"]
            get_run(run_id).wait(READY_S)
            spans = collector.await_run(run_id, calls=1)
            (root,) = [span for span in spans if not span.parent]
            assert root.links == [("ab" * 16, "cd" * 8)]
            spans = collector.await_that(lambda spans: any(s.name == "submit hello" for s in spans) and spans)
        (submitted,) = [span for span in spans if span.name == "submit hello"]
        assert (submitted.trace, submitted.parent) == (root.trace, root.id)
        assert submitted.pid != root.pid


@pytest.mark.leaves("keys", reason="API keys stay until they are revoked")
def test_only_who_has_the_scope_is_told_and_refusals_are_counted(
    folder: Path, redis_url: str, tmp_path: Path
) -> None:
    ring = keys_of(app)
    reader, operator = ring.add("reader", scopes=["read"]), ring.add("operator", scopes=["operate"])
    with gateway(folder, redis_url=redis_url, home=tmp_path, args=["--require-key"]) as served:
        for key, status in ((None, 401), ("no-such-key", 401), (reader, 403), (operator, 200)):
            with served.client(key) as client:
                answer = client.get("/metrics")
            assert answer.status_code == status
        found = read(answer.text)
        assert found["mosaic_gateway_refused_total", "unauthenticated"] == 2
        assert found["mosaic_gateway_refused_total", "forbidden"] == 1
        assert operator not in answer.text
