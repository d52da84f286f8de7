"""What changes the list of runs is told once, with the transition; and open lists hear of what is theirs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from mosaic_queues.changes import RunChange, changes_of
from mosaic_queues.following import Found, close_hub
from mosaic_queues.ledger import Ledger
from mosaic_queues.streams import ENTRIES_READ
from mosaic_queues.transitions import Done, JoinStep
from mosaic_tasks import Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.gateway.pages.bells import Bell
from mosaic_tasks.gateway.pages.changes import Changes, Listening
from mosaic_tasks.gateway.pages.live import Fragments, Studio
from tests.services import READY_S

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

FLOW = Workflow.from_data(
    {
        "name": "held",
        "nodes": {"one": {"tool": "string:capwords", "with": {"s": "a"}, "queue": "nobody"}},
        "output": "one",
    }
)
STREAM = "mosaic:changes"
NIL = b"\x00\xc0"


@pytest.fixture
def ledger() -> Ledger:
    return process_for(app).ledger


def told(ledger: Ledger) -> list[RunChange]:
    return changes_of(ledger.client.xrange(STREAM))  # type: ignore[arg-type]


def open_run(ledger: Ledger, run_id: str) -> bool:
    return ledger.open_run(
        run_id, plan="p", name="n", inputs=NIL, roots=[("q", ["0"])], retention_s=30.0, max_run_s=60.0
    )


# -- what is told -------------------------------------------------------------------------------------------


def test_a_run_tells_that_it_is_opened_ends_and_runs_again(ledger: Ledger) -> None:
    run = submit(FLOW, tenant="blue")
    run.cancel()
    run.cancel()
    run.rerun("one")
    ledger.end_run(run.id, "failed", "for the test")
    assert told(ledger) == [
        RunChange(run.id, "blue", "held", "", "running"),
        RunChange(run.id, "blue", "held", "running", "cancelled"),
        RunChange(run.id, "blue", "held", "cancelled", "running"),
        RunChange(run.id, "blue", "held", "running", "failed"),
    ]


def test_what_happens_twice_is_told_once_and_calls_tell_nothing(ledger: Ledger) -> None:
    assert open_run(ledger, "r1")
    assert not open_run(ledger, "r1")
    (claim,) = ledger.advance("r1", holder="me", claim=["0"]).claimed
    done = Done(claim.call, claim.fence, NIL, "done", ["end"])
    for _ in range(2):
        ledger.advance("r1", holder="me", done=[done], joins=[JoinStep("end", 1, None)])
    assert [(each.was, each.status) for each in told(ledger)] == [("", "running"), ("running", "done")]


def test_what_was_told_is_bounded_and_expires(ledger: Ledger, redis_client: Redis) -> None:
    open_run(ledger, "r1")
    assert 0 < redis_client.pttl(STREAM) <= 90_000
    (entry,) = redis_client.xrange(STREAM)
    with redis_client.pipeline() as pipe:
        for _ in range(3_000):
            pipe.xadd(STREAM, entry[1])
        pipe.execute()
    ledger.end_run("r1", "cancelled", "")
    assert 1_000 <= redis_client.xlen(STREAM) < 1_200
    assert told(ledger)[-1].status == "cancelled"
    assert 0 < redis_client.pttl(STREAM) <= 30_000


def test_a_server_that_refuses_to_tell_undoes_nothing(ledger: Ledger, redis_client: Redis) -> None:
    redis_client.set(STREAM, "no stream", ex=60)
    assert open_run(ledger, "r1")
    assert ledger.end_run("r1", "cancelled", "")
    assert ledger.run("r1").status == "cancelled"
    assert redis_client.xlen(ledger.keys.run("r1")[5]) == 1


# -- who hears of it ----------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(changes: Changes, *tenants: str | None) -> AsyncIterator[list[Listening]]:
    """Lists of the runs of a tenant, or of all."""
    async with AsyncExitStack() as stack:

        def list_of(tenant: str | None) -> Listening:
            return changes.listen(lambda change: tenant in (None, change.tenant))

        yield [await stack.enter_async_context(list_of(tenant)) for tenant in tenants]


async def heard(*lists: Listening) -> None:
    """Returns when each has news."""
    async with asyncio.timeout(READY_S):
        for each in lists:
            await each.news()


def has_heard(each: Listening) -> bool:
    return each._rung.is_set()


def running(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def entries_of(tenant: str, number: int) -> Sequence[dict[Any, Any]]:
    """Fields of entries, as a server writes them."""
    return [{"c": msgspec.msgpack.encode((f"r{each}", tenant, "n", "", "running"))} for each in range(number)]


def write(client: Redis, entries: Sequence[dict[Any, Any]]) -> None:
    """All at once: whoever reads finds all of them."""
    with client.pipeline(transaction=True) as pipe:
        for each in entries:
            pipe.xadd(STREAM, each)
        pipe.expire(STREAM, 60)
        pipe.execute()


def test_a_list_hears_of_its_own_runs_alone(ledger: Ledger) -> None:
    async def main() -> None:
        async with listening(Changes(ledger), "blue", "green", None) as (blue, green, everybody):
            await asyncio.to_thread(submit, FLOW, tenant="blue")
            await heard(blue, everybody)
            assert not has_heard(green)
            run = await asyncio.to_thread(submit, FLOW, tenant="green")
            await heard(green, everybody)
            await asyncio.to_thread(run.cancel)
            await heard(green, everybody)
            assert not has_heard(blue)

    running(main)


def test_a_list_that_may_have_missed_something_is_renewed(ledger: Ledger, redis_client: Redis) -> None:
    async def main() -> None:
        async with listening(Changes(ledger), "blue", None) as (blue, everybody):
            await asyncio.to_thread(write, redis_client, entries_of("green", ENTRIES_READ - 1))
            await heard(everybody)
            assert not has_heard(blue)
            await asyncio.to_thread(write, redis_client, entries_of("green", ENTRIES_READ))
            await heard(blue)

    running(main)


def test_a_thousand_lists_are_looked_at_once_and_cost_the_server_nothing_in_silence(
    ledger: Ledger, redis_client: Redis
) -> None:
    looks = 0

    def look() -> Fragments:
        nonlocal looks
        looks += 1
        return {"runs": str(len(told(ledger)))}

    def executed() -> int:
        """Commands, without those that ask for their number."""
        return sum(
            each["calls"]
            for name, each in redis_client.info("commandstats").items()
            if not name.startswith(("cmdstat_info", "cmdstat_client", "cmdstat_hello", "cmdstat_select"))
        )

    async def main() -> None:
        changes, studio = Changes(ledger), Studio()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(changes.listen(lambda _: False))
            await asyncio.to_thread(redis_client.ping)
            before = executed()
            pages = []
            for _ in range(1_000):
                news = changes.listen(lambda change: change.tenant == "blue")
                page = studio.renewed("blue", look, news, silence_s=60.0)
                stack.push_async_callback(page.aclose)
                pages.append(page)
                await anext(page)  # how to come again
            first = await asyncio.gather(*map(anext, pages))
            assert {b'{"runs":"0"}' in each for each in first} == {True}
            assert executed() - before < 50
            seen = looks
            waiting = [asyncio.create_task(anext(page)) for page in pages]
            await asyncio.to_thread(submit, FLOW, tenant="green")
            await asyncio.to_thread(submit, FLOW, tenant="blue")
            async with asyncio.timeout(READY_S):
                assert {b'{"runs":"2"}' in each for each in await asyncio.gather(*waiting)} == {True}
            assert looks - seen <= 2

    running(main)


def test_news_that_are_taken_as_somebody_stops_waiting_come_the_next_time(ledger: Ledger) -> None:
    async def main() -> None:
        taken, goes_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def hear(_: Found) -> None:
            loop.call_soon_threadsafe(taken.set)
            assert goes_on.wait(READY_S)

        async with Bell(ledger, [STREAM], hear=hear) as bell:
            waiting = asyncio.create_task(bell.news())
            await asyncio.to_thread(submit, FLOW)
            await asyncio.wait_for(taken.wait(), READY_S)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            goes_on.set()
            await asyncio.wait_for(bell.news(), READY_S)

    running(main)


def test_what_comes_right_behind_where_a_bell_begins_is_heard(
    ledger: Ledger, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, begins = Redis.parse_response, threading.Event()

    def answered(self: Redis, connection: Any, command: str, **options: Any) -> Any:
        found = answers(self, connection, command, **options)
        if command == "XREVRANGE" and not begins.is_set():
            begins.set()
            redis_client.xadd(STREAM, {"c": "news"})
            redis_client.expire(STREAM, 60)
        return found

    async def main() -> None:
        monkeypatch.setattr(Redis, "parse_response", answered)
        async with Bell(ledger, [STREAM]) as bell:
            assert begins.is_set()
            await asyncio.wait_for(bell.news(), READY_S)

    running(main)


def test_a_server_that_is_away_is_told_and_the_next_list_hears_again(ledger: Ledger) -> None:
    async def main() -> None:
        changes = Changes(ledger)
        async with listening(changes, None) as (lost,):
            await asyncio.to_thread(close_hub, ledger.client, ledger.keys)
            with pytest.raises(RedisConnectionError, match="closed its connection"):
                await heard(lost)
            async with listening(changes, None) as (next_one,):
                await asyncio.to_thread(submit, FLOW)
                await heard(next_one)

    running(main)


def test_a_server_that_is_away_as_a_list_is_opened_is_told(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise RedisConnectionError("away")

    async def main() -> None:
        monkeypatch.setattr(ledger.client, "pipeline", away)
        async with listening(Changes(ledger), None) as (lost,):
            with pytest.raises(RedisConnectionError, match="away"):
                await heard(lost)

    running(main)


def test_one_that_fails_as_it_ends_tells_no_list_of_the_next(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Bell.__aexit__

    async def main() -> None:
        is_next_there = asyncio.Event()

        async def fails(bell: Bell, *error: object) -> None:
            await real(bell, *error)
            await is_next_there.wait()
            raise RedisConnectionError("for the test")

        changes = Changes(ledger)
        monkeypatch.setattr(Bell, "__aexit__", fails)
        first = await changes.listen(lambda _: True).__aenter__()
        monkeypatch.setattr(Bell, "__aexit__", real)
        leaving = asyncio.create_task(first.__aexit__())
        await asyncio.sleep(0)
        async with listening(changes, None) as (second,):
            is_next_there.set()
            await leaving
            await asyncio.to_thread(submit, FLOW)
            await heard(second)
        assert (changes._open, changes._follows) == (set(), None)

    running(main)


def test_who_leaves_while_it_enters_leaves_nothing_behind(ledger: Ledger) -> None:
    async def main() -> None:
        changes = Changes(ledger)

        async def enter() -> None:
            async with changes.listen(lambda _: True):
                raise AssertionError

        entering = asyncio.create_task(enter())
        await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert (changes._open, changes._follows) == (set(), None)

    running(main)
