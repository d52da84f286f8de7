"""Experts that are cut off, on real workers: their engines stop at once, their slots are free, what they used is noted.

The workers do not look by themselves here whether what they run still counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from mosaic_queues.events import Event
from mosaic_queues.settings import settings
from mosaic_tasks import Run
from tests.integration.mixture_runs import ask, number, says
from tests.integration.stream_runs import run as run_nodes
from tests.integration.stream_tools import await_told, happened, open_engines
from tests.services import Workers, key_events

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

WAIT_S = 30.0
ENGINES = "tests.integration.hedge_gates,tests.integration.host_limits"
"""Engines that tell when they are asked and left, and write on once their gate is open."""
NEVER_LOOKS = {"CLAIMS_EVERY_S": "3600"}
MARGIN = {"kind": "margin", "margin": 2, "confidence": None}
FEW = "few"
"""The queue of the worker of one slot."""
POOLS = pytest.mark.parametrize("pool", ["async", "prefork", "threads", "solo"])
Open = Callable[..., None]


@pytest.fixture
def start(workers: Workers) -> Callable[..., None]:
    """Starts a worker and waits until it is ready."""

    def started(*queues: str, pool: Any = "async", concurrency: int = 32) -> None:
        args = ("--include", ENGINES)
        workers.start(
            "mosaic_tasks.app", queues, pool=pool, concurrency=concurrency, env=NEVER_LOOKS, args=args
        ).wait_ready()

    return started


@pytest.fixture
def open_(redis_client: Redis) -> Open:
    """Has engines write on."""
    return partial(open_engines, redis_client)


def two_and(folder: Path, slow: dict[str, Any], *, named: str) -> Run:
    """Two experts that are going to agree, and a third one that never ends."""
    agreeing = [f"{named}{place}" for place in range(2)]
    asked = [{"name": name, "model": says(folder, name, number(18))} for name in agreeing]
    return ask([slow, *asked], gate=MARGIN, waves=3)


def in_few(folder: Path, name: str) -> dict[str, Any]:
    return {"name": name, "model": says(folder, name, number(5, prose="long " * 50)), "queue": FEW}


@POOLS
def test_its_engine_stops_and_its_slot_is_free_while_a_call_that_waits_never_reaches_one(
    start: Callable[..., None], open_: Open, redis_client: Redis, tmp_path: Path, pool: str
) -> None:
    start("mosaic.cpu", "mosaic.api.replay")
    start(FEW, pool=pool, concurrency=1)
    writes = two_and(tmp_path, in_few(tmp_path, "writes"), named="a")
    await_told(redis_client, "asked writes", 1)
    waits = two_and(tmp_path, in_few(tmp_path, "waits"), named="b")
    open_("b0", "b1")
    assert waits.result(WAIT_S)["cut"] == 1
    assert happened(redis_client, "left writes") == []
    open_("a0", "a1")
    assert writes.result(WAIT_S)["cut"] == 1
    await_told(redis_client, "left writes", 1)
    open_("next")
    model = says(tmp_path, "next", "Here.")
    after = run_nodes({"next": {"agent": {"prompt": "Go.", "model": model}, "queue": FEW}}, "next")
    assert after.result(WAIT_S) == "Here."
    assert happened(redis_client, "left writes") == ["1"]
    assert happened(redis_client, "asked waits") == []


@pytest.fixture
def priced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An expert of the model pool, at a price."""
    answers = says(tmp_path, "priced", number(5, prose="long " * 50)).removeprefix("replay:")
    offer = {
        "engine": "replay",
        "model": answers,
        "provider": "dear",
        "price": {"input": 100, "output": 1000},
    }
    pool = {"models": {"sage": {"context_tokens": 4096, "providers": [offer]}}}
    path = tmp_path / "models.yaml"
    path.write_text(json.dumps(pool), encoding="utf-8")
    monkeypatch.setenv("MOSAIC_MODELS", str(path))
    settings.cache_clear()
    return {"name": "priced", "model": "pool:sage"}


def await_used(client: Redis, run: Run) -> Event:
    """What the call that was cut off had used."""
    ((call,),) = [event.calls for event in run.events() if event.kind == "cut"]
    with key_events(client, "t") as happenings:
        while not (used := [e for e in run.events() if e.kind == "usage" and e.calls == (call,)]):
            next(happenings)
    (event,) = used
    assert all(event.tokens)
    return event


@pytest.mark.parametrize("pool", ["async", "prefork"])
def test_what_it_used_until_then_is_noted(
    start: Callable[..., None], open_: Open, redis_client: Redis, tmp_path: Path, pool: str
) -> None:
    start("mosaic.cpu", "mosaic.api.replay")
    start(FEW, pool=pool, concurrency=1)
    run = two_and(tmp_path, in_few(tmp_path, "writes"), named="a")
    await_told(redis_client, "asked writes", 1)
    open_("a0", "a1")
    assert run.result(WAIT_S)["cut"] == 1
    assert await_used(redis_client, run).cost_usd is None


@pytest.mark.parametrize("pool", ["async", "prefork"])
def test_what_it_used_until_then_is_paid_at_its_price(
    start: Callable[..., None],
    open_: Open,
    redis_client: Redis,
    tmp_path: Path,
    priced: dict[str, Any],
    pool: str,
) -> None:
    start("mosaic.cpu", "mosaic.api.replay")
    start("mosaic.api.dear", pool=pool, concurrency=1)
    run = two_and(tmp_path, priced, named="a")
    await_told(redis_client, "asked priced", 1)
    open_("a0", "a1")
    assert run.result(WAIT_S)["cut"] == 1
    used = await_used(redis_client, run)
    read, written = used.tokens
    assert used.cost_usd == pytest.approx((100 * read + 1000 * written) / 1e6)
