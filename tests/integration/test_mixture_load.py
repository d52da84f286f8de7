"""Mixtures that begin while targets have too much to do ask fewer experts, on a real worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from mosaic_queues.settings import settings
from mosaic_tasks import Run
from tests.integration.mixture_runs import ask, experts, number, says
from tests.integration.stream_runs import run as run_nodes
from tests.integration.stream_tools import await_told, open_engines
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

WAIT_S = 30.0
INCLUDED = "tests.integration.hedge_gates,tests.integration.loaded"
SAGES = [{"name": f"e{place}", "model": "pool:sage"} for place in range(5)]
"""Experts that the router places."""


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pool that gives experts up as soon as one call in a thousand is under way."""
    answers = {"sage": says(tmp_path, "sage", number(18)), "busy": says(tmp_path, "busy", "At last.")}
    offers = {
        name: {"engine": "replay", "provider": "replay", "model": model.removeprefix("replay:")}
        for name, model in answers.items()
    }
    pool = {
        "models": {name: {"context_tokens": 4096, "providers": [offer]} for name, offer in offers.items()},
        "degrading": [{"kind": "fewer_experts", "load": 0.001, "share": 0.5}],
    }
    path = tmp_path / "models.yaml"
    path.write_text(json.dumps(pool), encoding="utf-8")
    monkeypatch.setenv("MOSAIC_MODELS", str(path))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def busy(workers: Workers, redis_client: Redis) -> Run:
    """A worker, and a run whose call does not end."""
    queues, args = ("mosaic.cpu", "mosaic.api.replay"), ("--include", INCLUDED)
    workers.start("mosaic_tasks.app", queues, pool="async", concurrency=32, args=args).wait_ready()
    run = run_nodes({"busy": {"agent": {"prompt": "Go.", "model": "pool:busy"}}}, "busy")
    await_told(redis_client, "asked busy", 1)
    return run


def asks(asked: list[dict[str, Any]], **fields: Any) -> Run:
    return ask(asked, gate="none", **fields)


def test_a_mixture_that_begins_under_load_asks_fewer_experts_and_says_so(
    busy: Run, redis_client: Redis
) -> None:
    open_engines(redis_client, "sage")
    run = asks(SAGES)
    told = run.result(WAIT_S)
    record = run.mixture("answer")
    assert record is not None
    assert (record.asked, record.unasked, told["relief"]) == (2, 3, record.relief)
    assert record.relief.startswith("under load (")
    assert record.relief.endswith(" of what the targets can take): asked 2 instead of 5 experts")
    assert record.relief in next(each.text for each in run.explain() if each.node == "answer")
    assert asks(SAGES, min_experts=4).result(WAIT_S)["asked"] == 4
    open_engines(redis_client, "busy")
    assert busy.result(WAIT_S) == "At last."


def test_one_whose_experts_nobody_places_asks_all(busy: Run, redis_client: Redis, tmp_path: Path) -> None:
    open_engines(redis_client, "e0", "e1", "e2")
    told = asks(experts(tmp_path, number(18), number(18), number(5))).result(WAIT_S)
    assert told["asked"] == 3
    assert "relief" not in told
    open_engines(redis_client, "busy")
    assert busy.result(WAIT_S) == "At last."
