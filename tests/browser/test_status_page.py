"""The status page in a real Chromium: live without a reload, nothing from elsewhere, and text stays text."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, expect
from redis import Redis

from mosaic_tasks import Run, Workflow, submit
from mosaic_tasks.access.gates import keys_of
from mosaic_tasks.app import app
from mosaic_tasks.definition.plan import NodePlan, link
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.submission import open_run
from tests.browser.conftest import Opener, Served
from tests.browser.page_tools import HOSTILE
from tests.integration.mixture_runs import ask, experts, number
from tests.integration.stream_tools import open_gate
from tests.services import READY_S, Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

TOOLS = "tests.browser.page_tools"
PHONE = {"viewport": {"width": 360, "height": 740}}
expect.set_options(timeout=READY_S * 1000)


@pytest.fixture(autouse=True)
def worker(workers: Workers, redis_client: Redis) -> Iterator[None]:
    workers.start(
        "mosaic_tasks.app", ["mosaic.cpu", "mosaic.api.replay"], pool="async", concurrency=8
    ).wait_ready()
    yield
    open_gate(redis_client, "go", times=8)  # a worker ends once its calls have


def run_of(nodes: dict[str, Any], output: str, **options: Any) -> Run:
    return submit(Workflow.from_data({"name": "looked-at", "nodes": nodes, "output": output}), **options)


def tool(name: str, **options: Any) -> dict[str, Any]:
    arguments = options.pop("with_", {})
    return {"tool": f"{TOOLS}:{name}", "with": arguments, **options}


def gated(**options: Any) -> Run:
    """A run of two nodes; the first waits at the gate `go`."""
    nodes = {
        "first": tool("waits", with_={"name": "go", "value": 7}),
        "second": tool("same", with_={"x": "${first}"}),
    }
    return run_of(nodes, "second", **options)


def mark(page: Page) -> None:
    """What a reload would take away."""
    page.evaluate("window.isTheSame = true")


def is_same(page: Page) -> bool:
    return bool(page.evaluate("window.isTheSame === true"))


def status(page: Page) -> Any:
    return page.locator("#head [data-announced]")


def box(page: Page, name: str) -> Any:
    return page.locator("#graph").get_by_role("link", name=re.compile(f"^{re.escape(name)}: "))


def test_a_run_is_followed_from_the_list_to_its_end_without_a_reload(
    served: Served, opened: Opener, redis_client: Redis
) -> None:
    page, _ = opened(served().url)
    expect(page.get_by_text("No runs yet")).to_be_visible()
    run = gated()
    page.get_by_role("link", name="looked-at").click()  # it came by itself
    expect(status(page)).to_have_text(re.compile("running"))
    expect(box(page, "first")).to_have_accessible_name("first: running, tool")
    expect(box(page, "second")).to_have_accessible_name("second: waiting, tool")
    expect(page.locator("#waits")).to_contain_text("second: waits for 'first' (running)")
    expect(page.locator("#link")).to_have_text("live")
    mark(page)
    open_gate(redis_client, "go")
    expect(status(page)).to_have_text(re.compile("done"))
    expect(box(page, "second")).to_have_accessible_name("second: done, tool")
    expect(page.locator("#output pre")).to_have_text("7")
    expect(page.locator("#waits")).to_be_hidden()
    expect(page.locator("#timeline tbody tr.done")).to_have_count(2)
    expect(page.get_by_role("button", name="Cancel run")).to_have_count(0)
    expect(page.locator("#news")).to_have_text("done")  # which a screen reader says
    assert is_same(page)
    page.get_by_role("link", name="Runs").click()
    expect(page.get_by_role("row", name=re.compile("looked-at"))).to_contain_text("2/2")
    assert run.record().status == "done"


def looks(client: Redis) -> int:
    """How often the server was asked which runs there are."""
    return int(client.info("commandstats").get("cmdstat_zrevrangebylex", {"calls": 0})["calls"])


def await_looks(client: Redis, number: int) -> None:
    """Waits until it was asked so often."""
    deadline = time.monotonic() + READY_S
    while (found := looks(client)) < number:
        assert time.monotonic() < deadline, f"asked {found} times, not {number}"
        time.sleep(0.02)


def test_the_list_hears_of_a_run_that_comes_and_ends_and_asks_for_nothing_between(
    served: Served, opened: Opener, redis_client: Redis
) -> None:
    before = looks(redis_client)
    here = served()
    page, _ = opened(here.url)
    await_looks(redis_client, before + 2)  # for the page, and as its stream begins
    mark(page)
    first = gated()
    row = page.get_by_role("row", name=re.compile("looked-at"))
    expect(row).to_contain_text("running")
    row.locator("a").first.focus()
    row.evaluate("row => { row.isTheSame = true; }")
    expect(row.locator(".ticking")).to_have_text(re.compile(r"^([3-9]|\d\d) s$"))  # counted on in the browser
    assert looks(redis_client) == before + 3
    second = gated()
    rows = page.locator("#runs tbody tr")
    expect(rows).to_have_count(2)
    assert rows.evaluate_all("rows => rows.map(row => row.isTheSame === true)") == [False, True]
    expect(rows.nth(1).locator("a").first).to_be_focused()
    open_gate(redis_client, "go", times=2)
    expect(rows.filter(has_text="done")).to_have_count(2)
    assert rows.evaluate_all("rows => rows.map(row => row.isTheSame === true)") == [False, True]
    assert looks(redis_client) in (before + 5, before + 6)  # both may end within one look
    assert is_same(page)
    assert {first.record().status, second.record().status} == {"done"}
    page.goto(f"{here.url}/?status=running")
    _, newer = gated(), gated()
    expect(rows).to_have_count(2)
    rows.nth(1).locator("a").first.focus()
    newer.cancel()
    expect(rows).to_have_count(1)
    expect(rows.locator("a").first).to_be_focused()
    open_gate(redis_client, "go", times=2)  # the one that was cancelled may still wait there
    expect(page.get_by_text("No run is like this")).to_be_visible()


def test_output_is_shown_while_it_is_said(served: Served, opened: Opener, redis_client: Redis) -> None:
    run = run_of({"speak": tool("lines")}, "speak")
    page, _ = opened(f"{served().url}/runs/{run.id}")
    said = page.locator("#output pre")
    expect(said).to_have_text("the first line")
    mark(page)
    open_gate(redis_client, "more")
    expect(said).to_have_text("the first line\nthe second line")
    expect(status(page)).to_have_text(re.compile("running"))
    open_gate(redis_client, "end")
    expect(status(page)).to_have_text(re.compile("done"))
    assert is_same(page)


def test_a_run_is_cancelled_and_a_node_runs_again(
    served: Served, opened: Opener, redis_client: Redis
) -> None:
    run = gated()
    page, _ = opened(f"{served().url}/runs/{run.id}")
    page.get_by_role("button", name="Cancel run").click()
    expect(status(page)).to_have_text(re.compile("cancelled"))
    expect(page.locator("#head")).to_contain_text("cancelled on the status page")
    box(page, "first").click()
    page.get_by_role("button", name="Run again").click()
    expect(status(page)).to_have_text(re.compile("running"))
    open_gate(redis_client, "go", times=2)  # the one that was cancelled may still wait there
    expect(status(page)).to_have_text(re.compile("done"))
    expect(box(page, "first")).to_contain_text("epoch 1")
    assert run.output() == 7


def test_who_clicks_twice_means_it_once(served: Served, opened: Opener, redis_client: Redis) -> None:
    run = gated()
    page, _ = opened(f"{served().url}/runs/{run.id}?node=first")
    page.get_by_role("button", name="Run again").dblclick()
    expect(box(page, "first")).to_contain_text("epoch 1")
    open_gate(redis_client, "go", times=2)
    expect(status(page)).to_have_text(re.compile("done"))
    expect(box(page, "first")).to_contain_text("epoch 1")
    page.get_by_role("button", name="Run again").click()  # and on the page that came it may be clicked again
    expect(box(page, "first")).to_contain_text("epoch 2")
    open_gate(redis_client, "go")
    expect(status(page)).to_have_text(re.compile("done"))


def test_a_run_that_is_past_its_retention_stays_as_it_was_seen(
    served: Served, opened: Opener, redis_client: Redis
) -> None:
    first = served()
    run = gated()
    page, watched = opened(f"{first.url}/runs/{run.id}")
    expect(page.locator("#link")).to_have_text("live")
    first.kill()
    run.cancel("over")
    redis_client.delete(*redis_client.scan_iter(f"mosaic:{{{run.id}}}:*"))
    served(port=first.port)
    expect(page.locator("#link")).to_have_text("not kept any more")
    expect(box(page, "first")).to_be_visible()
    watched.problems = [
        each
        for each in watched.problems
        if not any(word in each for word in ("net::ERR", "EventSource", "404"))
    ]  # the browser tells of those


def test_a_text_that_is_selected_stays_until_it_is_selected_no_more(
    served: Served, opened: Opener, redis_client: Redis
) -> None:
    run = run_of({"speak": tool("lines")}, "speak")
    page, _ = opened(f"{served().url}/runs/{run.id}")
    said = page.locator("#output pre")
    expect(said).to_have_text("the first line")
    said.evaluate("text => document.getSelection().selectAllChildren(text)")
    open_gate(redis_client, "more")
    open_gate(redis_client, "end")
    expect(status(page)).to_have_text(re.compile("done"))  # the rest of the page goes on
    assert page.evaluate("document.getSelection().toString()") == "the first line"
    page.evaluate("document.getSelection().removeAllRanges()")
    expect(said).to_have_text("the first line\nthe second line")


def test_times_count_on_by_themselves_whatever_the_clock_here_says(served: Served, opened: Opener) -> None:
    run = gated()
    page, _ = opened(f"{served().url}/runs/{run.id}")
    page.add_init_script("const now = Date.now; Date.now = () => now() + 86_400_000;")
    page.reload()
    expect(page.locator("#link")).to_have_text("live")
    took = page.locator("#head .ticking")
    shown = took.inner_text()
    expect(took).not_to_have_text(shown)
    expect(took).to_have_text(re.compile(r"^\d+ s$|^\d min \d\d s$"))
    run.cancel()


def test_a_mixture_tells_its_votes_and_takes_a_score(served: Served, opened: Opener, tmp_path: Path) -> None:
    run = ask(experts(tmp_path, number(4), number(4), number(5)), gate={"kind": "none"})
    run.result(READY_S)
    page, _ = opened(f"{served().url}/runs/{run.id}")
    expect(box(page, "answer.e2")).to_have_accessible_name("answer.e2: done")
    box(page, "answer").click(position={"x": 60, "y": 15})  # experts are below
    detail = page.locator("#detail")
    expect(detail.get_by_role("row", name=re.compile("^4 2"))).to_be_visible()
    expect(detail.get_by_role("row", name=re.compile("^e2"))).to_contain_text("5")
    page.get_by_role("button", name="Answer is right").click()
    expect(detail.get_by_role("heading", name="answer")).to_be_visible()
    assert re.search(r"\?node=answer#detail$", page.url)


def test_a_page_outlives_its_gateway(served: Served, opened: Opener, redis_client: Redis) -> None:
    first = served()
    run = gated()
    page, watched = opened(f"{first.url}/runs/{run.id}")
    expect(page.locator("#link")).to_have_text("live")
    mark(page)
    first.kill()
    expect(page.locator("#link")).to_have_text("connecting …")
    open_gate(redis_client, "go")
    run.result(READY_S)
    served(port=first.port)
    expect(status(page)).to_have_text(re.compile("done"))
    expect(page.locator("#link")).to_have_text("live")
    assert is_same(page)
    watched.problems = [
        each for each in watched.problems if "net::ERR" not in each
    ]  # the browser tells of those


@pytest.mark.leaves("keys", reason="API keys last until they are revoked, and what was revoked is remembered")
def test_one_signs_in_with_a_key_and_out_again(served: Served, opened: Opener) -> None:
    here = served()
    key = keys_of(app).add("page", tenant="blue", scopes=["read", "cancel"])
    own, foreign = gated(tenant="blue"), gated(tenant="green")
    page, watched = opened(f"{here.url}/runs/{own.id}")
    assert page.url == f"{here.url}/login"
    page.get_by_label("API key").fill("mosaic_0000_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    watched.problems = [each for each in watched.problems if "401" not in each]  # the browser tells of that
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("row", name=re.compile("looked-at"))).to_have_count(1)
    expect(page.get_by_role("link", name="Workers")).to_have_count(0)
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert key not in "".join([*watched.urls, page.content(), cookie["value"]])
    assert page.request.get(f"{here.url}/runs/{own.id}").status == 200
    for path in ("", "/changes", "?node=first"):
        assert page.request.get(f"{here.url}/runs/{foreign.id}{path}").status == 404
    assert page.request.post(f"{here.url}/runs/{foreign.id}/cancel", headers=ours(here.url)).status == 404
    assert (
        page.request.post(f"{here.url}/runs/{own.id}/cancel", headers=ours("http://127.0.0.1:9")).status
        == 403
    )
    assert (own.record().status, foreign.record().status) == ("running", "running")
    assert page.request.get(f"{here.url}/workers").status == 403
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    page.goto(f"{here.url}/runs/{own.id}")
    assert page.url == f"{here.url}/login"


def ours(url: str) -> dict[str, str]:
    """What a browser says of a form in a page of this origin."""
    return {"Origin": url}


@pytest.mark.leaves("keys", reason="API keys last until they are revoked, and what was revoked is remembered")
def test_an_open_page_whose_session_ended_leads_to_where_one_signs_in(
    served: Served, opened: Opener, redis_client: Redis
) -> None:
    first = served()
    key = keys_of(app).add("page", scopes=["read"])
    page, watched = opened(f"{first.url}/login")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#link")).to_have_text("live")
    keys_of(app).revoke("page")
    first.kill()
    served(port=first.port)
    expect(page.get_by_label("API key")).to_be_visible()
    watched.problems = [
        each for each in watched.problems if "net::ERR" not in each and "EventSource" not in each
    ]


def hostile_run() -> str:
    """A run that is hostile in all that it has a name for, more than a workflow file could be."""
    nodes = [
        NodePlan(HOSTILE, "tool", "mosaic.cpu", f"{TOOLS}:hostile_lines", publishes="item", tags=(HOSTILE,)),
        NodePlan(f"{HOSTILE} fails", "tool", "mosaic.cpu", f"{TOOLS}:hostile_failure", deps=(0,)),
        NodePlan(f"{HOSTILE} waits", "tool", f"mosaic.{HOSTILE}", f"{TOOLS}:same"),
        NodePlan(f"{HOSTILE} last", "tool", f"mosaic.{HOSTILE}", f"{TOOLS}:same", deps=(2,)),
    ]
    plan = link(HOSTILE, nodes, output=0)
    return open_run(process_for(app), msgspec.structs.replace(plan, tenant=HOSTILE), {}).run_id


def test_what_is_hostile_is_shown_as_text(served: Served, opened: Opener) -> None:
    here = served()
    run = Run(hostile_run(), process_for(app))
    run.wait(READY_S, no_worker_s=None)
    page, watched = opened(here.url)
    expect(page.locator("#runs tbody")).to_contain_text("<img src=x onerror=alert(1)>")
    for place in range(4):
        page.goto(f"{here.url}/runs/{run.id}")
        page.locator("#graph a").nth(place).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#detail h2")).to_contain_text("<img src=x onerror=alert(1)>")
        expect(page.locator("#link")).to_have_text("live")  # and what came over the stream is in the page
    expect(page.locator("#output pre")).to_contain_text(HOSTILE)
    expect(page.locator("#head [role=alert]")).to_contain_text("<script>alert(2)</script>")
    made = "img, iframe, base, [onload], [onerror], a[href^=javascript]"
    made += ", script:not([src^='/assets/']), link:not([href^='/assets/'])"
    assert page.locator(made).count() == 0
    page.goto(f"{here.url}/?workflow={HOSTILE.replace('&', '%26').replace('#', '%23')}")
    expect(page.get_by_label("Workflow")).to_have_value(HOSTILE)
    assert page.locator(made).count() == 0
    assert watched.problems == []


def test_without_scripts_the_page_is_whole_and_its_forms_work(served: Served, opened: Opener) -> None:
    run = gated()
    page, _ = opened(f"{served().url}/runs/{run.id}", java_script_enabled=False)
    expect(status(page)).to_have_text(re.compile("running"))
    assert page.locator("noscript meta[http-equiv=refresh]").count() == 1
    page.get_by_role("button", name="Cancel run").click()
    expect(status(page)).to_have_text(re.compile("cancelled"))


def test_a_phone_shows_all_pages_without_scrolling_sideways(
    served: Served, opened: Opener, tmp_path: Path
) -> None:
    run = ask(experts(tmp_path, number(4), number(5)))
    run.result(READY_S)
    here = served()
    page, _ = opened(here.url, **PHONE)
    for path in ("/", f"/runs/{run.id}?node=answer", "/workers"):
        page.goto(f"{here.url}{path}")
        expect(page.locator("#link")).to_have_text("live")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"], path


def test_the_keyboard_reaches_all_and_a_new_text_keeps_the_focus(
    served: Served, opened: Opener, redis_client: Redis
) -> None:
    run = gated()
    page, _ = opened(f"{served().url}/runs/{run.id}")
    expect(page.locator("#link")).to_have_text("live")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    box(page, "second").focus()
    open_gate(redis_client, "go")
    expect(box(page, "second")).to_have_accessible_name("second: done, tool")
    expect(box(page, "second")).to_be_focused()


def test_a_graph_of_five_thousand_nodes_is_a_small_page(served: Served, opened: Opener) -> None:
    reads = [tuple(sorted({place - 1, place // 2})) if place else () for place in range(5_000)]
    nodes = [
        NodePlan(f"n{place}", "tool", "mosaic.nowhere", "nobody:home", deps=deps)
        for place, deps in enumerate(reads)
    ]
    run_id = open_run(process_for(app), link("large", nodes, output=4_999), {}).run_id
    page, _ = opened(f"{served().url}/runs/{run_id}")
    expect(page.locator("#graph")).to_contain_text("5,000 nodes in 20 boxes")
    expect(page.locator("#nodes")).to_contain_text("100 of 5,000 nodes")
    expect(page.locator("#timeline")).to_contain_text("4,900 lanes left out")
    assert len(page.content()) < 200_000
    assert page.locator("*").count() < 4_000


def test_a_fan_out_of_ten_thousand_is_a_small_page(served: Served, opened: Opener) -> None:
    nodes = {
        "list": tool("numbers", with_={"n": 10_000}),
        "each": {"for_each": "${list}", **tool("same", with_={"x": "${item}"})},
    }
    run = run_of(nodes, "each")
    page, _ = opened(f"{served().url}/runs/{run.id}")
    run.wait(2 * READY_S)
    expect(box(page, "each")).to_have_accessible_name("each: done, 10,000/10,000 items")
    expect(page.locator("#output")).to_contain_text("the last 200 of 10,000 items")
    assert len(page.content()) < 100_000


def test_workers_are_shown(served: Served, opened: Opener) -> None:
    page, _ = opened(f"{served().url}/workers")
    expect(
        page.get_by_role("region", name="Queues").get_by_role("row", name=re.compile("mosaic.cpu"))
    ).to_contain_text("8")
    expect(page.get_by_role("region", name="Processes").get_by_role("row")).to_have_count(2)
