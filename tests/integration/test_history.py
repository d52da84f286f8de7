"""The history of runs: newest first, by tenant, in pages; bounded; and never wrong about runs that are not there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis
from typer.testing import CliRunner

from mosaic_queues.history import OPENING_MS
from mosaic_queues.ledger import Ledger
from mosaic_queues.settings import Settings, settings
from mosaic_tasks import Workflow, get_run, list_runs, submit
from mosaic_tasks.app import app
from mosaic_tasks.cli import application
from mosaic_tasks.execution.process import Process, close_all, process_for

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

WORKFLOW = Workflow.from_yaml("{name: w, nodes: {n: {task: t, queue: nobody}}, output: n}")
OTHER = Workflow.from_yaml("{name: other, nodes: {n: {task: t, queue: nobody}}, output: n}")


def ids(**wanted: Any) -> list[str]:
    return [record.run_id for record in list_runs(**wanted)]


def test_runs_are_listed_newest_first_also_those_that_are_over() -> None:
    runs = [submit(each).id for each in (WORKFLOW, OTHER, WORKFLOW, OTHER)]
    get_run(runs[1]).cancel()
    assert ids() == runs[::-1]
    assert ids(status="cancelled") == [runs[1]]
    assert ids(status="running", workflow="other") == [runs[3]]
    assert ids(limit=2) == runs[:1:-1]
    assert ids(limit=2, before=runs[2]) == runs[1::-1]
    assert ids(before=runs[0]) == []


def test_a_tenant_sees_its_own_runs() -> None:
    own, other, nobody = submit(WORKFLOW, tenant="a").id, submit(WORKFLOW, tenant="b").id, submit(WORKFLOW).id
    assert (ids(tenant="a"), ids(tenant="b"), ids(tenant="")) == ([own], [other], [nobody])
    assert ids() == [nobody, other, own]


def test_tenants_have_idempotency_keys_of_their_own() -> None:
    runs = [submit(WORKFLOW, tenant=tenant, key="k").id for tenant in ("a", "b", "", "a")]
    assert len(set(runs)) == 3
    assert runs[0] == runs[3]
    assert submit(WORKFLOW, key="a:k").id not in runs


def test_more_runs_than_one_trip_reads_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mosaic_tasks.inspection.listing._AT_ONCE", 2)
    monkeypatch.setattr("mosaic_tasks.inspection.listing._MOST_LOOKED_AT", 4)
    runs = [submit(OTHER).id, *(submit(WORKFLOW).id for _ in range(7))]
    assert ids(workflow="other") == [runs[0]]
    assert ids(limit=5) == runs[:2:-1]


def test_the_history_is_bounded(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mosaic_queues.history.TRIM_EACH", 1)
    bounded(monkeypatch, MOSAIC_HISTORY_RUNS="3")
    runs = [submit(WORKFLOW, tenant="a").id for _ in range(5)]
    assert ids() == ids(tenant="a") == runs[:1:-1]
    for name in ("mosaic:history", "mosaic:history:a"):
        assert redis_client.zcard(name) == 3
        assert redis_client.pttl(name) > 0


def test_what_is_older_than_any_retention_goes(redis_client: Redis) -> None:
    redis_client.zadd("mosaic:history", {"00000000-0001-7000-8000-000000000000": 0})
    run = submit(WORKFLOW)
    assert redis_client.zrange("mosaic:history", 0, -1) == [run.id.encode()]


def test_a_run_that_is_gone_is_left_out_and_forgotten(redis_client: Redis) -> None:
    process = process_for(app)
    run = submit(WORKFLOW)
    redis_client.delete(*process.ledger.keys.run(run.id))
    assert ids() == []
    assert redis_client.zcard("mosaic:history") == 1  # it might be about to open
    now_ms = process.now_ms() + 2 * OPENING_MS
    process.ledger.history.forget(None, [run.id], now_ms=now_ms)
    assert redis_client.zcard("mosaic:history") == 0


def test_a_submission_that_dies_before_it_opens_its_run_leaves_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dies(*_args: Any, **_options: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "open_run", dies)
        with pytest.raises(KeyboardInterrupt):
            submit(WORKFLOW, key="again")
    assert ids() == []
    run = submit(WORKFLOW, key="again")
    assert ids() == [run.id]


def test_a_submission_makes_no_more_trips_for_it(redis_client: Redis) -> None:
    submit(WORKFLOW)
    assert _trips(process_for(app)) == _trips(process_for(app)) == 1


def _trips(process: Process) -> int:
    """How often a submission talks to the ledger's server."""
    sent = 0

    def counted(connection: Any, *args: Any, **options: Any) -> None:
        nonlocal sent
        sent += 1
        original(connection, *args, **options)

    connection_class = process.client.connection_pool.connection_class
    original = connection_class.send_packed_command
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connection_class, "send_packed_command", counted)
        submit(WORKFLOW)
    return sent


def test_the_command_shows_them() -> None:
    first, last = submit(WORKFLOW), submit(OTHER)
    first.cancel()
    runner = CliRunner()
    told = json.loads(runner.invoke(application, ["status", "--json"]).stdout)
    assert [record["run_id"] for record in told] == [last.id, first.id]
    told = json.loads(runner.invoke(application, ["status", "--status", "cancelled", "--json"]).stdout)
    assert [record["run_id"] for record in told] == [first.id]
    shown = runner.invoke(application, ["status", "--limit", "1"]).stdout
    assert last.id in shown
    assert first.id not in shown
    assert "there is no such run" in runner.invoke(application, ["status", "--status", "failed"]).stdout


def bounded(monkeypatch: pytest.MonkeyPatch, **env: str) -> Settings:
    """This process with other settings."""
    close_all()
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    return settings()
