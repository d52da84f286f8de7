"""What a provider says of its limits in one process is known in all, while its answer still comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_queues.settings import settings
from mosaic_routing.guards import (
    BucketLimit,
    GuardedCall,
    Guards,
    Limits,
    Need,
    Query,
    ServerBackend,
    Telling,
    Told,
)
from mosaic_tasks import Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.engines.openai import OpenAIEngine, RetryPolicy
from mosaic_tasks.engines.protocol import EngineRequest, Message, complete
from mosaic_tasks.execution.driver import drive
from mosaic_tasks.execution.placing.told_limits import telling_limits
from mosaic_tasks.execution.process import process_for
from tests.integration.openai_server import DONE, Connection, Reply, delta, refused, said, serving

pytestmark = pytest.mark.integration
NAME = "deployment:api.openai/sage:requests"
RATE = BucketLimit(600)
USED_UP = {"x_ratelimit_remaining_requests": "0", "x_ratelimit_reset_requests": "100s"}
LONG_MS = 10_000
"""No limit of the tests makes anybody wait for so long by itself."""
QUESTION = EngineRequest((Message("user", "What?"),), model="sage")


@pytest.fixture
def ours(redis_client: Redis) -> Iterator[Guards]:
    with Guards(ServerBackend(redis_client, Keys("mosaic"))) as guards:
        yield guards


@pytest.fixture
def theirs(redis_client: Redis) -> Iterator[Guards]:
    with Guards(ServerBackend(redis_client, Keys("mosaic"))) as guards:
        yield guards


def wait_ms(guards: Guards) -> int:
    return guards.read(Query(buckets=((NAME, RATE),))).buckets[0]


def need() -> Need:
    limits = Limits.model_validate({"deployments": {"*": {"requests_per_minute": 600}}})
    return limits.need(GuardedCall(deployment="api.openai/sage"))


async def ask(guards: Guards, url: str) -> str:
    engine = OpenAIEngine(base_url=url, retry=RetryPolicy(base_s=0.01))
    try:
        async with guards.admit(need()) as permit, telling_limits(guards, permit):
            return (await complete(engine, QUESTION)).text
    finally:
        await engine.aclose()


def test_others_know_while_the_answer_still_comes(ours: Guards, theirs: Guards) -> None:
    async def scenario() -> None:
        goes_on = asyncio.Event()

        async def slow(connection: Connection) -> None:
            await connection.head(200, content_type="text/event-stream", **USED_UP)
            await goes_on.wait()
            await connection.send(delta("Well."), delta(finish="stop"), DONE)

        async with serving(slow) as server:
            asking = asyncio.create_task(ask(ours, server.url))
            while not await asyncio.to_thread(wait_ms, theirs):
                await asyncio.sleep(0)
            goes_on.set()
            assert await asking == "Well."
        assert LONG_MS < wait_ms(theirs) <= 100_000

    asyncio.run(scenario())


def test_a_refusal_that_the_engine_waits_out_holds_others_too(
    ours: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Told] = []
    tell = ours.backend.tell

    def telling(what: Telling, expiry_ms: int) -> None:
        told.append(what.requests_told)
        tell(what, expiry_ms)

    async def scenario() -> None:
        async with serving(refused(429, retry_after_ms="300"), said("Now.")) as server:
            assert await ask(ours, server.url) == "Now."

    monkeypatch.setattr(ours.backend, "tell", telling)
    asyncio.run(scenario())
    assert told == [Told(0, 300)]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x_ratelimit_remaining_requests": "-3", "x_ratelimit_reset_requests": "never"},
        {"x_ratelimit_remaining_requests": "inf", "retry_after": "soon"},
        {"x_ratelimit_remaining_requests": "1e300"},
    ],
)
def test_absent_and_absurd_headers_change_nothing(
    ours: Guards, theirs: Guards, headers: dict[str, str]
) -> None:
    async def scenario() -> None:
        async with serving(said("Well.", **headers)) as server:
            await ask(ours, server.url)

    asyncio.run(scenario())
    assert wait_ms(theirs) == 0


def test_one_of_several_endpoints_says_nothing_of_the_whole_deployment(
    ours: Guards, theirs: Guards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(said("Well.", **USED_UP)) as server:
            listed = tmp_path / "endpoints.json"
            listed.write_text(json.dumps({"sage": [{"url": server.url}, {"url": server.url}]}))
            monkeypatch.setenv("MOSAIC_ENDPOINTS", str(listed))
            await ask(ours, server.url)

    asyncio.run(scenario())
    assert wait_ms(theirs) == 0


@pytest.mark.leaves("threads", reason="one watches the drives of a process, one publishes for them")
@pytest.mark.usefixtures("mosaic_process")
def test_a_call_of_a_run_tells_what_its_provider_said(
    theirs: Guards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models.yaml"
    models.write_text(
        "limits: {deployments: {'*': {requests_per_minute: 600}}}\n"
        "models:\n  sage:\n    context_tokens: 4096\n    providers: [{engine: openai, model: sage, provider: openai}]\n"
    )
    monkeypatch.setenv("MOSAIC_MODELS", str(models))
    settings.cache_clear()
    process = process_for(app)
    process.start_liveness(queues=["mosaic.api.openai"], slots=4)
    asks = Workflow.from_yaml(
        "name: w\nnodes:\n  a: {agent: {prompt: What?, model: 'pool:sage'}}\noutput: a\n"
    )

    async def scenario(reply: Reply) -> None:
        async with serving(reply) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            run = await asyncio.to_thread(submit, asks, {})
            await asyncio.to_thread(drive, process, run.id, ["0"])
            assert await asyncio.to_thread(run.result, 5) == "Well."

    asyncio.run(scenario(said("Well.", **USED_UP)))
    assert wait_ms(theirs) > LONG_MS
