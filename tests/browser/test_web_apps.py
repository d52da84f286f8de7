"""A web app of `examples/` in a real Chromium: text grows in the page, also over a restart of the app."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from redis import Redis

from tests.integration.stream_tools import open_engines
from tests.integration.web_apps import WebApps
from tests.services import READY_S, Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

ANSWER = " ".join(["The parcel is late.", "<b>It</b> is \U0001f69a on its way."] * 8)
expect.set_options(timeout=READY_S * 1000)


@pytest.fixture
def apps(redis_url: str, tmp_path: Path) -> Iterator[WebApps]:
    with WebApps.writing(ANSWER, redis_url=redis_url, directory=tmp_path) as started:
        yield started


def test_a_summary_grows_in_its_page_and_goes_on_after_the_app_was_killed(
    apps: WebApps, workers: Workers, redis_client: Redis, browser: Browser
) -> None:
    apps.start_worker(workers)
    app = apps.start("fastapi_app")
    page = browser.new_page()
    page.set_default_timeout(READY_S * 1000)
    page.goto(app.url)
    page.get_by_label("Text").fill("Where is my parcel?")
    page.get_by_role("button").click()
    page.wait_for_url("**/summaries/*")
    expect(page.locator("#summary")).not_to_be_empty()
    page.evaluate("window.isTheSame = true")
    begun = page.locator("#summary").inner_text()
    assert ANSWER.startswith(begun)
    assert begun != ANSWER
    app.process.kill()
    open_engines(redis_client, "writer")
    apps.start("fastapi_app", port=app.port)
    expect(page.get_by_role("status")).to_have_text("done")
    assert page.locator("#summary").inner_text() == ANSWER  # markup is text
    assert page.evaluate("window.isTheSame")
