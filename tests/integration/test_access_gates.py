"""Gates, sessions and quotas on a real server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from mosaic_queues.errors import ConfigurationError, QuotaExceeded, Unauthenticated
from mosaic_queues.settings import Settings, settings
from mosaic_routing.guards import Guards, ServerBackend
from mosaic_tasks import Flow, Workflow, submit
from mosaic_tasks.access.gates import ANYONE, ClosedGate, OpenGate, gate_for, keys_of, sessions_of
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.access.quotas import SUBMISSION_S, Quota, Quotas, quotas_of
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import process_for
from tests.integration import run_tools as tools
from tests.integration.issuers import AUDIENCE, issuer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("keys", reason="an API key without an expiry stays until it is revoked"),
]
ADA = Principal(subject="ada", tenant="acme", scopes=frozenset({"submit", "read"}))


class TestGates:
    @pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "unix:/run/mosaic.sock"])
    def test_it_is_open_for_this_machine_until_there_is_a_key(self, host: str) -> None:
        gate = gate_for(app, host=host)
        assert gate.admit(None) == gate.admit("whatever a client library sends") == ANYONE
        key = keys_of(app).add("ci", scopes=["read"])
        with pytest.raises(Unauthenticated, match="show who you are"):
            gate.admit(None)
        with pytest.raises(Unauthenticated, match="not known here"):
            gate.admit("whatever a client library sends")
        assert gate.admit(key).subject == "ci"
        keys_of(app).revoke("ci")
        with pytest.raises(Unauthenticated):
            gate.admit(None)

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com"])
    def test_it_is_not_open_for_others(self, host: str) -> None:
        with pytest.raises(ConfigurationError, match="mosaic keys add NAME"):
            gate_for(app, host=host)
        keys_of(app).add("ci", scopes=["read"])
        assert isinstance(gate_for(app, host=host), ClosedGate)

    def test_a_key_may_be_required_before_there_is_one(self) -> None:
        assert isinstance(gate_for(app, host="127.0.0.1"), OpenGate)
        gate = gate_for(app, host="127.0.0.1", required=True)
        with pytest.raises(Unauthenticated):
            gate.admit(None)

    def test_a_provider_and_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with issuer() as provider:
            configure(monkeypatch, MOSAIC_OIDC_ISSUER=provider.url, MOSAIC_OIDC_AUDIENCE=AUDIENCE)
            gate = gate_for(app, host="0.0.0.0")
            key = keys_of(app).add("ci", scopes=["read"])
            assert gate.admit(key).subject == "ci"
            assert gate.admit(provider.token()).subject == "ada"
            for nobody in (None, "", "x", f"{key}x"):
                with pytest.raises(Unauthenticated):
                    gate.admit(nobody)

    def test_a_provider_needs_an_audience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        configure(monkeypatch, MOSAIC_OIDC_ISSUER="https://id.example")
        with pytest.raises(ConfigurationError, match="MOSAIC_OIDC_AUDIENCE"):
            gate_for(app, host="127.0.0.1")
        configure(monkeypatch, MOSAIC_OIDC_ISSUER="http://id.example", MOSAIC_OIDC_AUDIENCE="x")
        with pytest.raises(ConfigurationError, match="https://"):
            gate_for(app, host="127.0.0.1")


def configure(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    from mosaic_tasks.execution.process import close_process

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    close_process(app)


class TestSessions:
    def test_they_are_worth_what_their_key_is(self) -> None:
        ring, sessions = keys_of(app), sessions_of(app)
        token = sessions.open(ring.admit(ring.add("ci", tenant="acme", scopes=["read"])))
        assert sessions.admit(token).tenant == "acme"
        ring.rotate("ci", grace_s=60)
        assert sessions.admit(token).subject == "ci"
        ring.revoke("ci")
        with pytest.raises(Unauthenticated, match="sign in again"):
            sessions.admit(token)

    def test_they_end_when_they_are_closed(self) -> None:
        ring, sessions = keys_of(app), sessions_of(app)
        token = sessions.open(ring.admit(ring.add("ci", scopes=["read"])))
        sessions.close(token)
        for nobody in (token, "", "x"):
            with pytest.raises(Unauthenticated):
                sessions.admit(nobody)

    def test_none_outlasts_what_was_shown(self, redis_client: Redis) -> None:
        sessions, seconds = sessions_of(app), redis_client.time()[0]
        sessions.open(Principal(subject="ada", until_ms=(seconds + 60) * 1000))
        [name] = redis_client.keys("mosaic:{access}:session:*")
        assert 0 < redis_client.pttl(name) <= 61_000
        with pytest.raises(Unauthenticated):
            sessions.admit(sessions.open(Principal(subject="ada", until_ms=1)) and "gone")

    def test_none_stands_for_an_open_gate(self) -> None:
        with pytest.raises(Unauthenticated, match="none was shown"):
            sessions_of(app).open(ANYONE)

    def test_the_server_holds_no_token(self, redis_client: Redis) -> None:
        token = sessions_of(app).open(Principal(subject="ada", until_ms=4_000_000_000_000))
        stored = b"".join(name + (redis_client.dump(name) or b"") for name in redis_client.scan_iter())
        assert token.encode() not in stored


@pytest.fixture
def echo() -> Workflow:
    flow = Flow("echo")
    flow.output(flow.tool(tools.echo, value=flow.input("x", int)))
    return flow.build()


class TestOpenRuns:
    def quotas(self, limit: int) -> Quotas:
        return Quotas(process_for(app), {"acme": Quota(open_runs=limit)})

    def test_they_count_until_they_are_over(self, echo: Workflow) -> None:
        quotas, runs = self.quotas(2), []
        for _ in range(2):
            with quotas.start(ADA) as start:
                runs.append(submit(echo, {"x": 1}, tenant="acme"))
                start.opened(runs[-1].id)
        with (
            pytest.raises(QuotaExceeded, match="'acme' has had its share of 2 open runs") as caught,
            quotas.start(ADA),
        ):
            pytest.fail("entered")
        assert caught.value.retry_after_s > 0
        with quotas.start(Principal(subject="bob", tenant="other")):
            pass
        runs[0].cancel()
        with quotas.start(ADA) as start:
            start.opened(runs[0].id)

    def test_who_starts_nothing_holds_nothing(self) -> None:
        quotas = self.quotas(1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError), quotas.start(ADA):
                raise ZeroDivisionError
        with quotas.start(ADA), pytest.raises(QuotaExceeded), quotas.start(ADA):
            pytest.fail("entered")
        with quotas.start(ADA):
            pass

    def test_many_at_once_are_no_more_than_the_limit(self) -> None:
        quotas, inside, left = self.quotas(5), [], threading.Barrier(16)

        def one(_: int) -> bool:
            try:
                with quotas.start(ADA) as start:
                    inside.append(start)
                    left.wait()
                    return True
            except QuotaExceeded:
                left.wait()
                return False

        with ThreadPoolExecutor(16) as pool:
            assert sum(pool.map(one, range(16))) == 5

    def test_what_a_killed_gateway_held_lapses(self, redis_client: Redis, mosaic_process: Settings) -> None:
        killed_while("held = Quotas(process, {'acme': Quota(open_runs=1)}).start(ADA); held.__enter__()")
        quotas = self.quotas(1)
        with pytest.raises(QuotaExceeded), quotas.start(ADA):
            pytest.fail("entered")
        [place] = redis_client.zrange("mosaic:{access}:open:acme", 0, -1)
        redis_client.zincrby("mosaic:{access}:open:acme", -SUBMISSION_S * 1000, place)  # its time is over
        with quotas.start(ADA):
            pass


def killed_while(step: str) -> None:
    """Another process takes a step and dies, without a word."""
    code = f"""
import asyncio, os, signal
from mosaic_routing.guards import Guards, ServerBackend
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.access.quotas import Quota, Quotas
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import process_for

ADA = Principal(subject="ada", tenant="acme")
process = process_for(app)
process.__dict__["guards"] = Guards(ServerBackend(process.client, process.ledger.keys), expiry_s=0.5)
{step}
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9


class TestRates:
    def test_so_many_a_minute(self) -> None:
        quotas = Quotas(process_for(app), {"*": Quota(starts_per_minute=2, open_runs=9)})
        for _ in range(2):
            with quotas.start(ADA):
                pass
        with pytest.raises(QuotaExceeded, match="2 runs a minute") as caught, quotas.start(ADA):
            pytest.fail("entered")
        assert 0 < caught.value.retry_after_s <= 30
        with quotas.start(Principal(subject="bob", tenant="other")):
            pass


class TestReaders:
    @pytest.fixture(autouse=True)
    def quick(self, mosaic_process: Settings) -> Iterator[None]:
        """What a process held that died lapses soon."""
        process = process_for(app)
        guards = Guards(ServerBackend(process.client, process.ledger.keys), expiry_s=0.5)
        process.__dict__["guards"] = guards
        yield
        guards.close()

    def quotas(self) -> Quotas:
        return Quotas(process_for(app), {"*": Quota(readers=2)})

    def test_so_many_read_at_once(self) -> None:
        async def scenario() -> None:
            quotas = self.quotas()
            async with quotas.reading(ADA), quotas.reading(ADA):
                with pytest.raises(QuotaExceeded, match="2 streams at once"):
                    async with quotas.reading(ADA):
                        pytest.fail("entered")
                async with quotas.reading(Principal(subject="bob", tenant="other")):
                    pass
            async with quotas.reading(ADA):
                pass

        asyncio.run(scenario())

    def test_what_a_killed_gateway_read_lapses(self, mosaic_process: Settings) -> None:
        killed_while(
            "quotas = Quotas(process, {'*': Quota(readers=2)})\n"
            "held = quotas.reading(ADA), quotas.reading(ADA)\n"
            "async def read():\n"
            "    for each in held: await each.__aenter__()\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "asyncio.run(read())"
        )

        async def scenario() -> int:
            refused = 0
            async with asyncio.timeout(30):
                while True:
                    try:
                        async with self.quotas().reading(ADA):
                            return refused
                    except QuotaExceeded:
                        refused += 1

        assert asyncio.run(scenario()) > 0


class TestSettings:
    def test_a_file_says_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "quotas.yaml"
        file.write_text("tenants:\n  acme: {open_runs: 1}\n")
        configure(monkeypatch, MOSAIC_QUOTAS=str(file))
        with quotas_of(app).start(ADA), pytest.raises(QuotaExceeded), quotas_of(app).start(ADA):
            pytest.fail("entered")

    def test_a_wrong_file_stops_a_gateway_before_it_answers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        configure(monkeypatch, MOSAIC_QUOTAS=str(tmp_path / "none.yaml"))
        with pytest.raises(ConfigurationError, match=r"none\.yaml"):
            gate_for(app, host="127.0.0.1")

    def test_without_a_file_nobody_is_limited(self) -> None:
        with quotas_of(app).start(ADA), quotas_of(app).start(ADA):
            pass
