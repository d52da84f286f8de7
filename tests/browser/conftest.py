"""A real browser for tests of pages: Chromium, and what must never happen in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Dialog, Page, Request, sync_playwright

from tests.integration.gateway_tools import GatewayProcess, gateway
from tests.services import READY_S, missing

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Chromium; one for each test, since its library takes the thread's event loop."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        missing("Chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=_ARGUMENTS)
        yield started
        started.close()


class Watched:
    """What went wrong in a page, so that each test fails of it.

    Attributes:
        problems: errors of scripts and of the console, dialogs, and requests to elsewhere.
        urls: all that were asked for.
    """

    def __init__(self, page: Page) -> None:
        self.problems: list[str] = []
        self.urls: list[str] = []
        self._homes: set[str] = set()
        page.on(
            "console", lambda said: self._note(f"console: {said.text}", said.type in ("error", "warning"))
        )
        page.on("pageerror", lambda error: self._note(f"script: {error}", True))
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    def allow(self, url: str) -> None:
        """Requests to this origin are right."""
        self._homes.add(urlsplit(url).netloc)

    def _note(self, what: str, is_problem: bool) -> None:
        if is_problem:
            self.problems.append(what)

    def _dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        self.urls.append(request.url)
        self._note(f"request to {request.url}", urlsplit(request.url).netloc not in self._homes)


Opener = Callable[..., tuple[Page, Watched]]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opener]:
    """Opens pages, each in a context of its own; after the test nothing may have gone wrong in any of them."""
    found: list[Watched] = []

    def open_page(url: str, **options: object) -> tuple[Page, Watched]:
        page = browser.new_context(**options).new_page()  # type: ignore[arg-type]
        page.set_default_timeout(READY_S * 1000)
        watched = Watched(page)
        found.append(watched)
        watched.allow(url)
        page.goto(url)
        return page, watched

    yield open_page
    for context in browser.contexts:
        context.close()
    assert [problem for watched in found for problem in watched.problems] == []


Served = Callable[..., GatewayProcess]


@pytest.fixture
def served(redis_url: str, tmp_path: Path) -> Iterator[Served]:
    """Starts gateways that serve one workflow."""
    folder = tmp_path / "workflows"
    folder.mkdir()
    text = "{name: hello, nodes: {greet: {tool: 'string:capwords', with: {s: hello}}}, output: greet}"
    (folder / "hello.yaml").write_text(text, "utf-8")
    with ExitStack() as stack:

        def start(*, port: int = 0, args: tuple[str, ...] = ()) -> GatewayProcess:
            return stack.enter_context(
                gateway(folder, redis_url=redis_url, home=tmp_path, port=port, args=args)
            )

        yield start
