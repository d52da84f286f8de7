"""The status page over HTTP, and the runs that it keeps folded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from mosaic_tasks import Run, Workflow, get_run, submit
from mosaic_tasks.access.audit import audit_of
from mosaic_tasks.access.gates import keys_of
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.gateway.pages.charts import Charts
from mosaic_tasks.inspection.timeline import timeline
from tests.integration.gateway_tools import GatewayProcess, gateway, told

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

FLOW = Workflow.from_data(
    {
        "name": "held",
        "nodes": {
            "one": {"tool": "string:capwords", "with": {"s": "a"}, "queue": "nobody"},
            "two": {"tool": "string:capwords", "with": {"s": "${one}"}, "queue": "nobody"},
        },
        "output": "two",
    }
)


@pytest.fixture
def served(tmp_path: Path, redis_url: str) -> Iterator[GatewayProcess]:
    (tmp_path / "hello.yaml").write_text(
        "{name: hello, nodes: {a: {tool: 'string:capwords', with: {s: b}}}, output: a}", "utf-8"
    )
    with gateway(tmp_path / "hello.yaml", redis_url=redis_url, home=tmp_path) as running:
        yield running


def charts(**options: int) -> Charts:
    return Charts(process_for(app).ledger, **options)


def events_key(run: Run) -> str:
    return process_for(app).ledger.keys.run(run.id)[3]


def test_a_chart_takes_in_what_is_new() -> None:
    run, kept = submit(FLOW), charts()
    assert kept.of(run).view().counts() == {"ready": 1, "waiting": 1}
    run.cancel()
    view, chart = kept.of(run).look(now_ms=0)
    assert view == run.view()
    assert chart == timeline(run.plan(), run.events(), now_ms=0, run_id=run.id)
    assert kept.of(run) is kept.of(get_run(run.id))


def test_a_chart_begins_again_where_the_server_lost_what_it_had(redis_client: Redis) -> None:
    run, kept = submit(FLOW), charts()
    run.cancel()
    assert kept.of(run).view().status == "cancelled"
    ((last, _),) = redis_client.xrevrange(events_key(run), count=1)
    redis_client.xdel(events_key(run), last)
    assert kept.of(run).view() == run.view()
    assert kept.of(run).view().status == "running"


def test_the_charts_that_were_looked_at_longest_ago_go_first() -> None:
    kept, runs = charts(most_nodes=4), [submit(FLOW) for _ in range(3)]
    first = kept.of(runs[0])
    second = kept.of(runs[1])
    assert kept.of(runs[0]) is first
    kept.of(runs[2])
    assert kept.of(runs[0]) is first
    assert kept.of(runs[1]) is not second


def test_a_run_of_more_nodes_than_are_kept_is_kept_alone() -> None:
    kept, run = charts(most_nodes=1), submit(FLOW)
    assert kept.of(run) is kept.of(run)


def test_pages_load_nothing_from_elsewhere_and_are_kept_nowhere(served: GatewayProcess) -> None:
    with served.client() as client:
        for path in ("/", f"/runs/{submit(FLOW).id}", "/workers", "/runs/none"):
            answer = client.get(path)
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert answer.headers["cache-control"] == "no-store"
            assert " style=" not in answer.text


def test_files_are_kept_under_an_address_that_changes_with_them(served: GatewayProcess) -> None:
    with served.client() as client:
        page = client.get("/").text
        for name, kind in (
            ("status.css", "text/css"),
            ("status.js", "text/javascript"),
            ("icon.svg", "image/svg"),
        ):
            place = page.index(f"/assets/{name}?v=")
            answer = client.get(page[place : page.index('"', place)])
            assert answer.headers["content-type"].startswith(kind)
            assert "immutable" in answer.headers["cache-control"]
        assert client.get("/assets/..%2Frouter.py").status_code == 404
        assert client.get("/assets/layout.html.j2").status_code == 404


def test_what_is_wrong_is_told_on_a_page(served: GatewayProcess, redis_client: Redis) -> None:
    run = submit(FLOW)
    with served.client() as client:
        for path, status, words in (
            ("/runs/none", 404, "there is no run"),
            ("/?status=odd", 422, "makes no sense"),
            (f"/runs/{run.id}?node=none", 422, "has no node"),
        ):
            answer = client.get(path)
            assert (answer.status_code, words in answer.text) == (status, True)
            assert answer.text.startswith("<!doctype html>")


def test_a_form_of_another_site_changes_nothing(served: GatewayProcess) -> None:
    run = submit(FLOW)
    with served.client() as client:
        for headers in (
            {"Origin": "http://127.0.0.1:9"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "null"},
        ):
            for path, data in (
                ("cancel", {}),
                ("rerun", {"node": "one"}),
                ("score", {"node": "one", "value": "1"}),
            ):
                answer = client.post(f"/runs/{run.id}/{path}", data=data, headers=headers)
                assert answer.status_code == 403
    assert run.record().status == "running"


@pytest.mark.leaves("keys", reason="API keys without an expiry stay until they are revoked")
def test_what_a_form_does_stands_in_the_audit_log_once_and_what_it_may_not_do_as_refused(
    served: GatewayProcess,
) -> None:
    run = submit(FLOW)
    for name, scope in (("reader", "read"), ("ender", "cancel")):
        with served.client(keys_of(app).add(name, scopes=[scope])) as client:
            client.post(f"/runs/{run.id}/cancel")
    told = [(each.outcome, each.subject) for each in audit_of(app).last(10)]
    assert told == [("refused", "reader"), ("allowed", "ender")]
    assert run.record().status == "cancelled"


def shown(page: str, runs: list[Run]) -> list[bool]:
    """Which runs a list leads to."""
    return [f'href="/runs/{run.id}"' in page for run in runs]


def test_the_list_is_filtered_and_paged(served: GatewayProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [submit(FLOW) for _ in range(27)]
    runs[3].cancel()
    with served.client() as client:
        first = client.get("/").text
        assert shown(first, runs) == [False] * 2 + [True] * 25
        older = client.get(f"/?before={runs[2].id}").text
        assert f'href="/?before={runs[2].id}"' in first
        assert shown(older, runs) == [True] * 2 + [False] * 25
        cancelled = client.get("/?status=cancelled").text
        assert shown(cancelled, runs) == [place == 3 for place in range(27)]
        assert "No run is like this" in client.get("/?workflow=other").text


@contextlib.contextmanager
def changes(
    served: GatewayProcess, path: str = "/changes", key: str | None = None
) -> Iterator[Iterator[Any]]:
    """The parts of an open list that change."""
    with served.client(key) as client, client.stream("GET", path) as answer:
        assert answer.status_code == 200
        yield (each.data for each in told(answer) if each.kind == "change")


def test_an_open_list_is_sent_the_rows_that_changed(served: GatewayProcess, redis_client: Redis) -> None:
    first = submit(FLOW)
    with changes(served) as parts, changes(served, f"/changes?before={first.id}") as older:
        assert list(next(parts)) == ["runs", f"run-{first.id}"]
        second = submit(FLOW)
        came = next(parts)
        assert list(came) == ["runs", f"run-{second.id}"]
        place = '<tr id="run-{}"></tr>'
        assert came["runs"].index(place.format(second.id)) < came["runs"].index(place.format(first.id))
        redis_client.client_kill_filter(_type="normal", skipme=True)  # it reads on from where it was
        first.cancel("<b>for the test</b>")
        (row,) = next(parts).items()
        assert row[0] == f"run-{first.id}"
        assert "cancelled" in row[1]
        assert "&lt;b&gt;for the test" in row[1]
        first.rerun("one")
        (row,) = next(parts).items()
        assert "running" in row[1]
        assert list(next(older)) == ["runs"]


@pytest.mark.leaves("keys", reason="API keys without an expiry stay until they are revoked")
def test_an_open_list_of_a_tenant_is_sent_its_own_runs(served: GatewayProcess) -> None:
    blue = keys_of(app).add("blue", tenant="blue", scopes=["read"])
    everybody = keys_of(app).add("everybody", scopes=["read", "operate"])
    with changes(served, key=blue) as seen, changes(served, key=everybody) as all_seen:
        assert (list(next(seen)), list(next(all_seen))) == (["runs"], ["runs"])
        foreign = submit(FLOW, tenant="green")
        assert f"run-{foreign.id}" in next(all_seen)
        own = submit(FLOW, tenant="blue")
        came = next(seen)
        assert list(came) == ["runs", f"run-{own.id}"]
        assert "green" not in str(came)


def test_a_browser_at_a_wrong_address_is_shown_a_page(served: GatewayProcess) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    with served.client() as client:
        answer = client.get("/nothing/here", headers=browser)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "To the runs" in answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        for accept in ("*/*", "application/json"):
            answer = client.get("/nothing/here", headers={"Accept": accept})
            assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
        answer = client.get("/v1/runs/none", headers=browser)
        assert answer.headers["content-type"] == "application/problem+json"
