"""Beats whose clock a test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from tests.integration.schedule_beats import Beats, Clock, moving_clock
from tests.services import ServerForTests


@pytest.fixture
def beats(redis_server: ServerForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beats]:
    """Those whose lock lapses after three seconds."""
    monkeypatch.setenv("MOSAIC_LIVENESS_S", "3")
    with Beats(redis_server.urls, tmp_path) as started:
        yield started


@pytest.fixture
def clock(redis_client: Redis) -> Iterator[Clock]:
    """The time that beats and server take for now."""
    with moving_clock(redis_client) as moving:
        yield moving
