"""An idempotency key that is repeated finds its run before a tenant's share is asked, and counts once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from redis import Redis

from mosaic_queues.errors import InputError, QuotaExceeded
from mosaic_queues.settings import settings
from mosaic_tasks import get_run, list_runs
from mosaic_tasks.access.audit import Deed, audit_of
from mosaic_tasks.access.principal import Gate, Principal
from mosaic_tasks.access.quotas import SUBMISSION_S, quotas_of
from mosaic_tasks.app import app
from mosaic_tasks.definition.terms import Terms
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.gateway.callers import Gateway, Starter
from mosaic_tasks.gateway.catalog import Catalog
from mosaic_tasks.submission import Opening, Submitted, opening_of
from tests.integration.completions_served import OPEN, SCOPES, Keys, served, tool, workflow

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

ECHO = workflow("echo", {"answer": tool("echo", value="${inputs.question}")})
ADA = Principal(subject="ada", tenant="acme", scopes=SCOPES)
BOB = Principal(subject="bob", tenant="other", scopes=SCOPES)
RUN = {"workflow": "echo", "inputs": {"question": "How many?"}}
OPEN_RUNS = "mosaic:{access}:open:acme"


@pytest.fixture
def shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says what each tenant may do, and begins anew with it."""

    def say(**share: int) -> None:
        quotas = tmp_path / "quotas.yaml"
        quotas.write_text(json.dumps({"tenants": {"*": share}}))
        monkeypatch.setenv("MOSAIC_QUOTAS", str(quotas))
        settings.cache_clear()

    return say


@contextmanager
def asking(gate: Gate = OPEN) -> Iterator[Callable[..., httpx2.Response]]:
    """A gateway, and who starts runs at it."""
    with (
        served(ECHO, gate=gate) as url,
        httpx2.Client(base_url=url, timeout=30, trust_env=False) as http,
    ):

        def start(key: str | None = None, *, who: str = "none", **body: Any) -> httpx2.Response:
            named = {"Idempotency-Key": key} if key else {}
            headers = {"Authorization": f"Bearer {who}", **named}
            return http.post("/runs", json={**RUN, **body}, headers=headers)

        yield start


class TestOverHttp:
    @pytest.mark.parametrize("share", ["open_runs", "starts_per_minute"])
    def test_a_repeat_gets_its_run_at_a_full_share(self, shares: Callable[..., None], share: str) -> None:
        shares(**{share: 1})
        with asking() as start:
            first = start("k")
            assert (first.status_code, start().status_code, start("other").status_code) == (201, 429, 429)
            for _ in range(3):
                again = start("k")
                assert (again.status_code, again.json()["is_new"]) == (200, False)
                assert again.json()["run_id"] == first.json()["run_id"]
        assert [record.run_id for record in list_runs()] == [first.json()["run_id"]]

    def test_repeats_take_no_place(self, shares: Callable[..., None]) -> None:
        shares(open_runs=2)
        with asking() as start:
            run_id = start("k").json()["run_id"]
            assert {start("k").status_code for _ in range(3)} == {200}
            assert (start().status_code, start().status_code) == (201, 429)
            get_run(run_id).cancel()
            assert start("k").json() == {"run_id": run_id, "workflow": "echo", "is_new": False}
            assert (start().status_code, start().status_code) == (201, 429)

    def test_repeats_take_nothing_of_a_rate(self, shares: Callable[..., None]) -> None:
        shares(starts_per_minute=2)
        with asking() as start:
            assert [start("k").status_code for _ in range(4)] == [201, 200, 200, 200]
            assert (start().status_code, start().status_code) == (201, 429)

    def test_what_is_wrong_takes_nothing_of_a_rate(self, shares: Callable[..., None]) -> None:
        shares(starts_per_minute=1)
        wrongs: list[dict[str, Any]] = [
            {"webhook": "http://127.0.0.1/hook"},
            {"workflow": "other"},
            {"inputs": {}},
        ]
        with asking() as start:
            assert [start(**wrong).status_code for wrong in wrongs] == [422, 422, 422]
            assert start().status_code == 201

    def test_the_same_key_for_something_else_is_told_so(self, shares: Callable[..., None]) -> None:
        shares(open_runs=1)
        with asking() as start:
            assert start("k").status_code == 201
            other = start("k", inputs={"question": "How few?"})
        assert other.status_code == 422
        assert "with other inputs than these; give another key" in other.json()["detail"]

    def test_a_repeat_is_checked_as_the_first_was(self, shares: Callable[..., None]) -> None:
        shares(open_runs=1)
        with asking() as start:
            assert start("k").status_code == 201
            wrong = start("k", webhook="http://127.0.0.1/hook")
        assert (wrong.status_code, "webhook" in wrong.json()["detail"]) == (422, True)

    def test_the_same_key_of_another_tenant_is_another_one(self, shares: Callable[..., None]) -> None:
        shares(open_runs=1)
        with asking(Keys({"ada": ADA, "bob": BOB})) as start:
            first, other = start("k", who="ada"), start("k", who="bob")
            assert (first.status_code, other.status_code) == (201, 201)
            assert first.json()["run_id"] != other.json()["run_id"]
            assert start("k", who="bob").json()["run_id"] == other.json()["run_id"]
            assert start("l", who="bob").status_code == 429


class TestAtOnce:
    """Requests with one key that meet."""

    def test_two_first_ones_are_one_run_in_one_place(
        self, shares: Callable[..., None], monkeypatch: pytest.MonkeyPatch, redis_client: Redis
    ) -> None:
        shares(open_runs=1)
        both, real = threading.Barrier(2, timeout=30), Opening.open

        def together(opening: Opening) -> Submitted:
            both.wait()  # both have asked for their share, and neither has a run
            return real(opening)

        monkeypatch.setattr(Opening, "open", together)
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda _: started("k"), range(2))
        assert first.run_id == second.run_id
        assert {first.is_new, second.is_new} == {True, False}
        assert open_runs(redis_client) == [first.run_id]
        monkeypatch.undo()
        shares(open_runs=1)
        with pytest.raises(QuotaExceeded):
            started(None)
        get_run(first.run_id).cancel()
        assert started(None).is_new

    @pytest.mark.parametrize("share", ["open_runs", "starts_per_minute"])
    def test_one_that_comes_between_is_found(
        self, shares: Callable[..., None], monkeypatch: pytest.MonkeyPatch, share: str
    ) -> None:
        shares(**{share: 1})
        real, others = Opening.known, list[Submitted]()

        def overtaken(opening: Opening) -> Submitted | None:
            found = real(opening)
            monkeypatch.setattr(Opening, "known", real)
            others.append(started("k"))  # after this one has looked, and before it asks for its share
            return found

        monkeypatch.setattr(Opening, "known", overtaken)
        late = started("k")
        assert others == [Submitted(late.run_id, is_new=True)]
        assert not late.is_new
        refused = [entry for entry in audit_of(app).last(100) if entry.outcome == "refused"]
        assert refused == []

    def test_who_gives_up_takes_no_place_from_whoever_goes_on(self, shares: Callable[..., None]) -> None:
        shares(open_runs=1)
        with quotas_of(app).start(ADA, key="k") as first:
            with pytest.raises(ZeroDivisionError), quotas_of(app).start(ADA, key="k"):
                raise ZeroDivisionError
            with pytest.raises(QuotaExceeded), quotas_of(app).start(ADA, key="other"):
                pytest.fail("entered")
            first.give_up()
            with quotas_of(app).start(ADA, key="other"):
                pass

    def test_another_body_that_comes_at_once_leaves_the_first_its_place(
        self, shares: Callable[..., None], monkeypatch: pytest.MonkeyPatch, redis_client: Redis
    ) -> None:
        shares(open_runs=1)
        real = Opening.open

        def overtaken(opening: Opening) -> Submitted:
            submitted = real(opening)
            monkeypatch.setattr(
                Opening, "known", lambda _: None
            )  # as it was before the first one opened its run
            monkeypatch.setattr(Opening, "open", real)
            with pytest.raises(InputError, match="other inputs"):
                started("k", question="How few?")
            with pytest.raises(QuotaExceeded):
                started(None)
            return submitted

        monkeypatch.setattr(Opening, "open", overtaken)
        first = started("k")
        assert open_runs(redis_client) == [first.run_id]


class TestDeaths:
    def test_between_share_and_opening(self, shares: Callable[..., None], redis_client: Redis) -> None:
        shares(open_runs=1)
        killed_while("held = quotas_of(app).start(ADA, key='k'); held.__enter__()")
        with pytest.raises(QuotaExceeded):
            started(None)
        again = started("k")  # has the place of the first one
        assert again.is_new
        assert open_runs(redis_client) == [again.run_id]

    def test_between_key_and_opening(self, shares: Callable[..., None], redis_client: Redis) -> None:
        shares(open_runs=1)
        killed_while("Ledger.open_run = die\nSTARTER.start(OPENING)")
        [key] = redis_client.scan_iter("mosaic:once:acme:*")
        assert list_runs() == []
        again = started("k")
        assert again.is_new
        assert again.run_id.encode() in (redis_client.get(key) or b"")
        assert open_runs(redis_client) == [again.run_id]

    @pytest.mark.parametrize("is_late", [False, True])
    def test_between_opening_and_counting(
        self, shares: Callable[..., None], redis_client: Redis, is_late: bool
    ) -> None:
        shares(open_runs=1)
        killed_while("Start.opened = die\nSTARTER.start(OPENING)")
        [run] = list_runs()
        [place] = open_runs(redis_client)
        if is_late:
            redis_client.zincrby(OPEN_RUNS, -SUBMISSION_S * 1000, place)  # the time of the dead one is over
        assert started("k") == Submitted(run.run_id, is_new=False)
        assert open_runs(redis_client) == [run.run_id]
        with pytest.raises(QuotaExceeded):
            started(None)


def test_a_key_whose_run_is_gone_asks_for_a_share(shares: Callable[..., None], redis_client: Redis) -> None:
    shares(open_runs=1)
    gone = started("k").run_id
    redis_client.delete(*redis_client.scan_iter(f"mosaic:{{{gone}}}:*"))  # its retention is over
    held = started(None).run_id
    with pytest.raises(QuotaExceeded):
        started("k")
    get_run(held).cancel()
    again = started("k")
    assert again.is_new
    assert open_runs(redis_client) == [again.run_id]


@pytest.mark.parametrize("through", ["gateway", "client"])
def test_a_repeat_tells_no_webhook_again(shares: Callable[..., None], through: str) -> None:
    shares(open_runs=1)
    opening = opening_for("k")._replace(webhook="https://198.41.0.4/hook")
    start = {"gateway": lambda: starter().start(opening), "client": opening.open}[through]
    run_id = start().run_id
    webhooks = process_for(app).webhooks
    assert webhooks.read(run_id) is not None
    webhooks.drop(run_id)  # it is told
    assert start().run_id == run_id
    assert webhooks.read(run_id) is None


def starter() -> Starter:
    return Starter(ADA, Gateway(app, Catalog([ECHO]), OPEN), Deed("POST /v1/runs"))


def opening_for(key: str | None, question: str = "How many?") -> Opening:
    return opening_of(app, ECHO, {"question": question}, key=key, terms=Terms(tenant=ADA.tenant))


def started(key: str | None, question: str = "How many?") -> Submitted:
    return starter().start(opening_for(key, question))


def open_runs(server: Redis) -> list[str]:
    """What counts as open."""
    return [each.decode() for each in cast("list[bytes]", server.zrange(OPEN_RUNS, 0, -1))]


def killed_while(step: str) -> None:
    """Another process takes a step and dies, without a word; it may `die` within it."""
    code = f"""
import os, signal
from mosaic_queues.ledger import Ledger
from mosaic_tasks.access.quotas import Start, quotas_of
from mosaic_tasks.app import app
from tests.integration.test_repeated_keys import ADA, opening_for, starter

STARTER, OPENING = starter(), opening_for("k")
def die(*_args, **_options):
    os.kill(os.getpid(), signal.SIGKILL)
{step}
die()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
