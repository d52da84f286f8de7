"""Who asks a real gateway: keys, cookies, pages of others, quotas, and what of it stands in the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from redis import Redis

from mosaic_queues.settings import Settings
from mosaic_tasks import list_runs, submit
from mosaic_tasks.access.audit import audit_of
from mosaic_tasks.access.gates import keys_of
from mosaic_tasks.app import app
from mosaic_tasks.gateway.callers import COOKIE
from tests.integration.gateway_tools import GatewayProcess, gateway
from tests.integration.issuers import AUDIENCE, issuer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("keys", reason="API keys without an expiry stay until they are revoked"),
]
WORKFLOW = """
name: greet
inputs: {who: string}
nodes:
  greet: {tool: "string:capwords", with: {s: "{{ inputs.who }}"}}
output: greet
"""
RUN = {"workflow": "greet", "inputs": {"who": "a secret of the run"}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "greet.yaml"
    file.write_text(WORKFLOW)
    return file


@pytest.fixture
def running(file: Path, redis_url: str, tmp_path: Path, mosaic_process: Settings) -> Iterator[GatewayProcess]:
    with gateway(file, redis_url=redis_url, home=tmp_path) as found:
        yield found


def start(client: httpx2.Client, **headers: str) -> httpx2.Response:
    return client.post("/v1/runs", json=RUN, headers=headers)


def test_an_open_gateway_closes_with_the_first_key_and_tells_who_does_what(running: GatewayProcess) -> None:
    with running.client() as anyone:
        assert start(anyone).status_code == 201
        key = keys_of(app).add("ci", tenant="acme", scopes=["submit"])
        refused = start(anyone)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    with running.client(key) as ci:
        run_id = start(ci).json()["run_id"]
        forbidden = ci.get("/v1/runs")
        assert forbidden.status_code == 403
        assert "lacks the scope 'read'" in forbidden.json()["detail"]
        old, new = key, keys_of(app).rotate("ci", grace_s=0)
        assert start(ci).status_code == 401
    with running.client(new) as ci:
        assert start(ci).status_code == 201
        keys_of(app).revoke("ci")
        assert start(ci).status_code == 401

    told = [
        (each.outcome, each.action, each.subject, each.tenant, each.run) for each in audit_of(app).last(100)
    ]
    assert told[0] == ("allowed", "POST /v1/runs", "anyone", "", "")
    assert ("allowed", "run.opened", "ci", "acme", run_id) in told
    assert ("refused", "GET /v1/runs", "ci", "acme", "") in told
    assert [each[0] for each in told].count("refused") == 4
    assert {each.address for each in audit_of(app).last(100)} == {"127.0.0.1"}
    everything = str(told) + str(audit_of(app).last(100)) + running.log
    for secret in (old, new, "a secret of the run"):
        assert secret.rpartition("_")[2] not in everything


def sign_in(client: httpx2.Client, key: str, **headers: str) -> httpx2.Response:
    own = {"Origin": str(client.base_url).rstrip("/"), **headers}
    return client.post("/login", data={"key": key}, headers=own)


class TestCookies:
    def test_a_session_lasts_as_long_as_its_key(self, running: GatewayProcess, redis_client: Redis) -> None:
        key = keys_of(app).add("ada", tenant="acme", scopes=["read", "submit"])
        with running.client() as browser:
            assert browser.get("/v1/runs").status_code == 401
            signed = sign_in(browser, key)
            cookie = signed.headers["set-cookie"]
            assert cookie.startswith(f"{COOKIE}=")
            assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
            assert "Secure" not in cookie  # on the loopback there is no TLS
            assert key not in cookie
            assert browser.get("/v1/runs").status_code == 200
            keys_of(app).revoke("ada")
            assert browser.get("/v1/runs").status_code == 401

    def test_it_ends_by_signing_out(self, running: GatewayProcess, redis_client: Redis) -> None:
        key = keys_of(app).add("ada", scopes=["read"])
        with running.client() as browser:
            sign_in(browser, key)
            stolen = browser.cookies[COOKIE]
            browser.post("/logout", headers={"Origin": running.url})
            assert COOKIE not in browser.cookies
        with running.client() as thief:
            thief.cookies.set(COOKIE, stolen)
            assert thief.get("/v1/runs").status_code == 401
        assert redis_client.keys("mosaic:{access}:session:*") == []

    def test_a_wrong_key_opens_none(self, running: GatewayProcess) -> None:
        keys_of(app).add("ada", scopes=["read"])
        with running.client() as browser:
            assert sign_in(browser, "mosaic_wrong").status_code == 401
            assert COOKIE not in browser.cookies
        assert [each.action for each in audit_of(app).last(5)] == ["POST /login"]

    def test_elsewhere_it_goes_over_tls_alone(self, file: Path, redis_url: str, tmp_path: Path) -> None:
        key = keys_of(app).add("ada", scopes=["read"])
        with (
            gateway(
                file, redis_url=redis_url, home=tmp_path, args=["--allowed-host", "mosaic.example"]
            ) as running,
            running.client() as browser,
        ):
            signed = sign_in(browser, key, Host="mosaic.example", Origin="https://mosaic.example")
            assert "Secure" in signed.headers["set-cookie"]


class TestPagesOfOthers:
    def test_they_cannot_use_a_cookie(self, running: GatewayProcess) -> None:
        key = keys_of(app).add("ada", scopes=["read", "submit"])
        with running.client() as browser:
            sign_in(browser, key)
            for headers in (
                {"Sec-Fetch-Site": "cross-site"},
                {"Sec-Fetch-Site": "same-site"},
                {"Origin": "https://evil.example"},
                {"Origin": "null"},
                {},
            ):
                refused = start(browser, **headers)
                assert refused.status_code == 403, headers
                assert "a page of another site" in refused.json()["detail"]
            assert start(browser, Origin=running.url).status_code == 201
            evil = {"Origin": "https://evil.example"}
            assert browser.post("/logout", headers=evil).status_code == 403
            assert browser.get("/v1/runs").status_code == 200
        with running.client() as browser:
            assert sign_in(browser, key, Origin="https://evil.example").status_code == 403

    def test_nor_an_open_gateway(self, running: GatewayProcess) -> None:
        with running.client() as browser:
            assert start(browser, Origin="https://evil.example").status_code == 403
            assert start(browser, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
            assert start(browser, Origin=running.url).status_code == 201
            assert start(browser).status_code == 201

    def test_a_key_says_enough(self, running: GatewayProcess) -> None:
        key = keys_of(app).add("ci", scopes=["submit"])
        with running.client(key) as client:
            assert start(client, Origin="https://app.example").status_code == 201


def test_what_cannot_be_entered_in_the_log_is_not_done(
    file: Path, redis_url: str, redis_client: Redis, tmp_path: Path
) -> None:
    run = submit(file, {"who": "x"})
    rights = "on >secret ~mosaic:[^{]* ~mosaic:{[^a]* %R~mosaic:{access}:* ~mosaic.* ~_kombu.* &* +@all"
    redis_client.execute_command("ACL", "SETUSER", "no-log", *rights.split())
    try:
        guest = redis_url.replace("://", "://no-log:secret@", 1)
        with gateway(file, redis_url=guest, home=tmp_path) as running, running.client() as anyone:
            assert anyone.get(f"/v1/runs/{run.id}").status_code == 200
            assert anyone.post(f"/v1/runs/{run.id}/cancel").status_code == 503
            assert run.record().status == "running"
            assert start(anyone).status_code == 503
            assert [each.run_id for each in list_runs()] == [run.id]
    finally:
        redis_client.execute_command("ACL", "DELUSER", "no-log")


def test_quotas(file: Path, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "quotas.yaml").write_text("tenants:\n  acme: {open_runs: 2}\n  '*': {starts_per_minute: 1}\n")
    ring = keys_of(app)
    acme = ring.add("acme", tenant="acme", scopes=["submit", "cancel"])
    other = ring.add("other", tenant="other", scopes=["submit"])
    env = {"MOSAIC_QUOTAS": str(tmp_path / "quotas.yaml")}
    with gateway(file, redis_url=redis_url, home=tmp_path, env=env) as running:
        with running.client(acme) as client:
            first = start(client).json()["run_id"]
            assert start(client).status_code == 201
            wrong = start(client)
            assert wrong.status_code == 429
            assert int(wrong.headers["retry-after"]) >= 1
            assert "2 open runs" in wrong.json()["detail"]
            client.post(f"/v1/runs/{first}/cancel")
            nothing = client.post("/v1/runs", json={**RUN, "workflow": "none"})
            assert nothing.status_code == 422  # it starts nothing, and takes no place
            assert start(client).status_code == 201
            assert start(client).status_code == 429
        with running.client(other) as client:
            assert start(client).status_code == 201
            assert start(client).status_code == 429
    refused = [each for each in audit_of(app).last(100) if each.outcome == "refused"]
    assert [each.reason.partition(":")[0] for each in refused] == ["QuotaExceeded"] * 3


def test_tokens_of_a_provider(file: Path, redis_url: str, tmp_path: Path) -> None:
    with issuer() as provider:
        env = {"MOSAIC_OIDC_ISSUER": provider.url, "MOSAIC_OIDC_AUDIENCE": AUDIENCE}
        with gateway(file, redis_url=redis_url, home=tmp_path, env=env) as running:
            with running.client(provider.token()) as ada:
                assert start(ada).status_code == 201
                assert len(ada.get("/v1/runs").json()["runs"]) == 1
            with running.client(provider.token(tenant="other")) as bob:
                assert bob.get("/v1/runs").json()["runs"] == []
            with running.client(token := provider.token(aud="other")) as eve:
                refused = eve.get("/v1/runs")
                assert refused.status_code == 401
                assert token not in refused.text + running.log
            with running.client("x" * 60_000) as eve:
                assert eve.get("/v1/runs").status_code in (400, 401, 431)
    assert json.dumps([each.subject for each in audit_of(app).last(1)]) == '[""]'
