"""Fixtures for all tests: a real server, real workers, and this process as a client of them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from mosaic_queues.settings import Settings, settings
from tests.own_server import OwnServer
from tests.services import GIVEN_SERVER, ServerForTests, Workers, server_for_tests

if TYPE_CHECKING:
    from tests.integration.schedule_beats import Beats, Clock

pytest_plugins = ("tests.leaks",)
MOST_PROCESSES = 8

# Tests start a thousand processes: without bytecode on the disk each would compile all of our modules anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
gc.disable()  # until the tests are collected: nearly all that is made by then stays


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those that may take longest begin first, so that no process works on alone in the end; else as it was."""
    usual_s = float(config.getini("timeout"))
    items.sort(key=lambda item: -max(usual_s, _timeout_s(item)))


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is here now stays: the leak check's collections after each test need not walk over it."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """How many processes `-n auto` means: two a processor, since tests wait a lot; one for a server that is given."""
    return 0 if GIVEN_SERVER in os.environ else min(2 * (os.cpu_count() or 1), MOST_PROCESSES)


@pytest.fixture(autouse=True)
def own_settings() -> Iterator[None]:
    """What a test sets in its environment is not read in the next one: this ends after all that it set is undone."""
    yield
    settings.cache_clear()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[ServerForTests]:
    """The server of the session, one for each process of it. Its database is emptied after each test that uses it."""
    with server_for_tests() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: ServerForTests) -> str:
    """The empty server, as redis-py spells it."""
    return redis_server.urls.redis_url


@pytest.fixture
def broker_url(redis_server: ServerForTests) -> str:
    """The empty server, as Celery spells it."""
    return redis_server.urls.broker_url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[Redis]:
    """A client of the empty server; answers bytes."""
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def workers(redis_server: ServerForTests, tmp_path: Path) -> Iterator[Workers]:
    """Starts Celery workers on the server; all are stopped after the test."""
    with Workers(redis_server.urls, tmp_path) as started:
        yield started


@pytest.fixture
def mosaic_process(
    redis_url: str, broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    """This process as a client of the server; what it opens in the test is closed after it."""
    from mosaic_tasks.execution.process import close_all

    monkeypatch.setenv("MOSAIC_REDIS_URL", redis_url)
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    _connect_app(broker_url)
    yield settings()
    close_all()
    settings.cache_clear()


def _connect_app(broker_url: str) -> None:
    """Has the app read its configuration anew where it has that of another server: a test before had one of its own."""
    from mosaic_tasks.app import app

    if not app.configured or app.conf.broker_url == broker_url:
        return
    sys.modules.pop("mosaic_tasks.celeryconfig", None)
    app.config_from_object("mosaic_tasks.celeryconfig", force=True)
    app._after_fork()  # forgets its connections


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[OwnServer]:
    """A server for one test, which may die."""
    started = OwnServer(tmp_path / "server")
    yield started
    started.kill()


@pytest.fixture
def beats(redis_server: ServerForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beats]:
    """Beats whose lock lapses after three seconds."""
    from tests.integration.schedule_beats import Beats

    monkeypatch.setenv("MOSAIC_LIVENESS_S", "3")
    with Beats(redis_server.urls, tmp_path) as started:
        yield started


@pytest.fixture
def clock(redis_client: Redis) -> Iterator[Clock]:
    """The time that beats and server take for now, which a test moves."""
    from tests.integration.schedule_beats import moving_clock

    with moving_clock(redis_client) as moving:
        yield moving
