"""Requests made from the OpenAPI document, fitting it and not, against a real gateway with a real worker behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi import checks

from mosaic_tasks import get_run, submit
from tests.integration.gateway_tools import GatewayProcess, gateway
from tests.services import READY_S, ServerForTests, Workers

pytestmark = pytest.mark.integration

HELLO = """
name: hello
inputs: {who: {type: string, default: world}, often: {type: integer, default: 1}}
nodes: {greet: {tool: "string:capwords", with: {s: "hello ${inputs.who}"}}}
output: greet
"""
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.missing_required_header,
    checks.unsupported_method,
]
EXAMPLES = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("workflows")
    (found / "hello.yaml").write_text(HELLO, "utf-8")
    return found


@pytest.fixture(scope="module")
def served(
    folder: Path, redis_server: ServerForTests, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("gateway")
    with gateway(folder, redis_url=redis_server.urls.redis_url, home=home) as running:
        yield running


@pytest.mark.usefixtures("mosaic_process")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fit", "unfit"])
def test_no_request_breaks_the_gateway(
    served: GatewayProcess, folder: Path, workers: Workers, mode: GenerationMode
) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
    run = submit(folder / "hello.yaml")
    run.wait(READY_S)
    open_gate = SchemathesisConfig.from_dict({"generation": {"with-security-parameters": False}})
    document = schemathesis.openapi.from_url(f"{served.url}/openapi.json", config=open_gate)
    tried = 0
    for found in document.get_all_operations():
        operation = found.ok()
        known = {"run_id": run.id, "node": "greet", "name": "hello"}
        named = {each.name for each in operation.path_parameters}
        for given_path in ({}, {name: known[name] for name in named & known.keys()}):
            if given_path or not named:
                _try(operation, mode, given_path)
                tried += 1
            elif named:
                _try(operation, mode, {})
                tried += 1
    assert tried > 20
    assert get_run(run.id).record().status in ("done", "running", "cancelled")


def _try(operation: schemathesis.schemas.APIOperation, mode: GenerationMode, path: dict[str, str]) -> None:
    strategy = operation.as_strategy(generation_mode=mode, path_parameters=path or None)

    @seed(7)
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=strategy)
    def tried(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS, timeout=READY_S)

    with contextlib.suppress(Unsatisfiable):  # nothing in it can be wrong
        tried()
