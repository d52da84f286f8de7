"""No tenant sees another's runs: each route of the gateway that names a run, and each that lists something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from mosaic_queues.settings import Settings
from mosaic_tasks import submit
from mosaic_tasks.access.audit import audit_of
from mosaic_tasks.access.gates import ClosedGate, keys_of
from mosaic_tasks.access.principal import Scope
from mosaic_tasks.app import app
from mosaic_tasks.gateway.application import application
from mosaic_tasks.gateway.callers import Gateway
from mosaic_tasks.gateway.catalog import Catalog
from mosaic_tasks.submission import new_run_id
from tests.integration.gateway_tools import GatewayProcess, gateway

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("keys", reason="API keys without an expiry stay until they are revoked"),
]
CANARY = "canary-of-acme"
WORKFLOW = """
name: greet
inputs: {who: string}
nodes:
  greet: {tool: "string:capwords", with: {s: "{{ inputs.who }}"}}
output: greet
"""
ALL: tuple[Scope, ...] = ("submit", "read", "cancel", "score")
CHANGES = ("POST", "PUT", "PATCH", "DELETE")


class Route(NamedTuple):
    """One way to ask the gateway for something; `body`: one that fits."""

    method: str
    path: str
    body: Any = None

    def to(self, **names: str) -> str:
        """Its path, with these names in it."""
        return self.path.format(**{"node": "greet", **names})


def routes(web: Any) -> list[Route]:
    """All of an application: those of its OpenAPI document, and its pages, which are not in there."""
    document = web.openapi()
    told = [
        Route(method.upper(), path, _body(operation, document))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method.upper() in ("GET", *CHANGES)
    ]
    pages = [
        Route(method, str(each.path))
        for each in web.routes
        for method in sorted((each.methods or set()) & {"GET", *CHANGES})
        if not each.include_in_schema and each.path != web.openapi_url
    ]
    assert told
    assert pages
    return told + pages


def _body(operation: dict[str, Any], document: dict[str, Any]) -> Any:
    """A body that has all that it must, as the schema shows it."""
    try:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
    except KeyError:
        return None
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    fields = schema.get("properties", {})
    return {
        name: fields[name].get("examples", [_ZERO.get(fields[name].get("type"), "greet")])[0]
        for name in schema.get("required", [])
    }


_ZERO = {"number": 0.5, "integer": 1, "boolean": False, "object": {}, "array": []}


class World(NamedTuple):
    """A gateway with a run of acme's, and who asks."""

    gateway: GatewayProcess
    run: str
    acme: str
    other: str
    nameless: str
    operator: str
    routes: list[Route]

    def ask(self, route: Route, key: str, run_id: str) -> httpx2.Response:
        """The answer; of a stream only its head."""
        body = (
            None
            if route.body is None
            else {**route.body, **({"node": "greet"} if "node" in route.body else {})}
        )
        with (
            self.gateway.client(key) as client,
            client.stream(route.method, route.to(run_id=run_id), json=body) as answer,
        ):
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                answer.read()
            return answer


@pytest.fixture
def world(mosaic_process: Settings, redis_url: str, tmp_path: Path) -> Iterator[World]:
    file = tmp_path / "greet.yaml"
    file.write_text(WORKFLOW)
    ring = keys_of(app)
    keys = [
        ring.add("acme", tenant="acme", scopes=ALL),
        ring.add("other", tenant="other", scopes=ALL),
        ring.add("nameless", scopes=ALL),
        ring.add("operator", tenant="other", scopes=[*ALL, "operate"]),
    ]
    web = application(Gateway(app, Catalog.of([file]), ClosedGate(app)))
    run = submit(file, {"who": CANARY}, tenant="acme")
    with gateway(file, redis_url=redis_url, home=tmp_path) as running:
        yield World(running, run.id, *keys, routes(web))


def of_runs(world: World) -> list[Route]:
    found = [route for route in world.routes if "{run_id}" in route.path]
    assert len(found) >= 5
    return found


def test_a_run_of_another_tenant_is_one_that_never_was(world: World) -> None:
    never = new_run_id()
    for route in of_runs(world):
        for stranger in (world.other, world.nameless):
            there, nowhere = world.ask(route, stranger, world.run), world.ask(route, stranger, never)
            assert there.status_code == nowhere.status_code == 404, route
            assert _told(there, world.run) == _told(nowhere, never), route
        there, nowhere = world.ask(route, "", world.run), world.ask(route, "", never)
        assert there.status_code == nowhere.status_code, route
        assert there.status_code in (401, 303, 403), route
    for route in sorted(of_runs(world), key=lambda route: route.method in CHANGES):
        friends = (world.acme,) if route.method in CHANGES else (world.acme, world.operator)
        assert all(world.ask(route, friend, world.run).status_code != 404 for friend in friends), route
    refused = [
        each for each in audit_of(app).last(1_000) if each.run == world.run and each.outcome == "refused"
    ]
    assert {(each.subject, each.address) for each in refused} == {
        ("other", "127.0.0.1"),
        ("nameless", "127.0.0.1"),
        ("", "127.0.0.1"),
    }
    assert CANARY not in str(audit_of(app).last(1_000))


def _told(answer: httpx2.Response, run_id: str) -> tuple[str, dict[str, str]]:
    """All that it says beside the names of run and request."""
    own = answer.headers.get("x-request-id", "no id")
    headers = {name: value for name, value in answer.headers.items() if name not in ("date", "x-request-id")}
    return answer.text.replace(run_id, "RUN").replace(own, "REQUEST"), headers


def test_nothing_that_lists_shows_it_and_no_idempotency_key_leads_to_it(world: World) -> None:
    listing = [route for route in world.routes if route.method == "GET" and "{" not in route.path]
    assert any(route.path == "/v1/runs" for route in listing)
    for stranger in (world.other, world.nameless):
        with world.gateway.client(stranger) as client:
            for route in listing:
                with client.stream("GET", route.path) as answer:
                    if "text/event-stream" in answer.headers.get("content-type", ""):
                        continue
                    answer.read()
                for secret in (world.run, CANARY, "acme"):
                    assert secret not in answer.text, (route, secret)
    with world.gateway.client(world.acme) as client:
        assert world.run in client.get("/v1/runs").text

    def start(key: str, who: str) -> httpx2.Response:
        with world.gateway.client(key) as client:
            body = {"workflow": "greet", "inputs": {"who": who}}
            return client.post("/v1/runs", json=body, headers={"Idempotency-Key": "monday"})

    first, second = start(world.acme, "a"), start(world.other, "b")
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["run_id"] != second.json()["run_id"]
