"""Runs in the real Flower, in a real Chromium: as people look at them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from mosaic_queues.settings import Settings
from mosaic_tasks import Run, submit
from tests.browser.conftest import Opener
from tests.integration.flowers import Flower
from tests.integration.mixture_runs import ask, experts, number, says
from tests.integration.test_flower import workflow
from tests.services import READY_S, ServerForTests, Workers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
SHOWN = "name,uuid,state,args,kwargs,result,received,runtime,worker"
HOSTILE = "<img src=x onerror=alert(1)>"
expect.set_options(timeout=READY_S * 1000)


@pytest.fixture
def flower(redis_server: ServerForTests, tmp_path: Path, mosaic_process: Settings) -> Iterator[Flower]:
    with Flower(redis_server.urls, tmp_path, f"--tasks_columns={SHOWN}") as started:
        yield started


@pytest.fixture
def runs(flower: Flower, workers: Workers, tmp_path: Path) -> list[Run]:
    """Two runs that are over, as Flower has seen them."""
    queues = ["mosaic.cpu", "mosaic.api.replay"]
    workers.start("mosaic_tasks.app", queues, pool="async", concurrency=8, args=["-E"]).wait_ready()
    asked = [*experts(tmp_path, number(4), number(4, prose=HOSTILE))]
    asked += [{"name": "slow", "model": says(tmp_path, "slow", number(4), tokens_per_s=0.2)}]
    started = [submit(workflow(tmp_path)), ask(asked, waves=[3], gate={"kind": "quorum", "quorum": 2})]
    for run in started:
        run.wait(timeout_s=30)
        flower.await_state(run.id, "SUCCESS")
    return started


def test_a_run_is_searched_for_and_followed_to_its_calls(
    flower: Flower, runs: list[Run], opened: Opener, tmp_path: Path
) -> None:
    page, _ = opened(f"{flower.url}/tasks", viewport={"width": 1700, "height": 1000})
    first, second = runs
    expect(page.locator("#tasks-table tbody")).to_contain_text("mixes.answer.slow")
    page.screenshot(path=tmp_path / "tasks.png")
    page.get_by_role("searchbox").fill(first.id)
    expect(page.locator("#tasks-table_info")).to_contain_text("of 11 tasks")  # ten calls, and the run itself
    expect(page.locator("#tasks-table tbody")).not_to_contain_text("mixes")
    page.screenshot(path=tmp_path / "searched.png")
    page.get_by_role("searchbox").fill(f"kwargs:run={second.id} state:REVOKED")
    expect(page.locator("#tasks-table tbody tr")).to_have_count(1)
    expect(page.locator("#tasks-table tbody")).to_contain_text("mixes.answer.slow")
    page.goto(f"{flower.url}/task/{first.id}")
    expect(page.locator("#task-page")).to_contain_text("shop-report")
    links = page.locator("#task-page a[href*='/task/']")
    expect(links).to_have_count(10)
    page.screenshot(path=tmp_path / "run.png", full_page=True)
    links.first.click()
    expect(page.locator("#task-page")).to_contain_text("shop-report.")
    expect(page.locator("#task-page")).to_contain_text(f"'run': '{first.id}'")
    page.screenshot(path=tmp_path / "call.png", full_page=True)
    page.locator(f"#task-page a[href$='/task/{first.id}']").first.click()
    expect(page.locator("#taskid")).to_have_text(first.id)


def test_workers_and_queues_are_there(
    flower: Flower, runs: list[Run], opened: Opener, tmp_path: Path
) -> None:
    (name,) = flower.await_workers([]) or [""]
    page, _ = opened(f"{flower.url}/worker/{name}", viewport={"width": 1400, "height": 1000})
    expect(page.locator("body")).to_contain_text(name)
    page.screenshot(path=tmp_path / "worker.png", full_page=True)
    page.goto(f"{flower.url}/broker")
    for queue in ("mosaic.cpu", "mosaic.api.replay"):
        expect(page.get_by_role("row", name=queue)).to_be_visible()
    page.screenshot(path=tmp_path / "broker.png", full_page=True)
    page.goto(f"{flower.url}/workers")
    expect(page.locator("#workers-table tbody")).to_contain_text(name)
    page.screenshot(path=tmp_path / "workers.png", full_page=True)
