"""The parts of the async pool, without a worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, current_task
from celery.app.task import Context

from mosaic_tasks.pool import TaskPool
from mosaic_tasks.pool.bridge import Bridge
from mosaic_tasks.pool.slots import Slots
from mosaic_tasks.pool.steps import Steps
from mosaic_tasks.pool.tracing import runs_on_loop


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("pool", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    bridge = Bridge()
    yield bridge
    bridge.close()


# -- slots -------------------------------------------------------------------------------------------------------------


def test_slots_count() -> None:
    slots = Slots(2)
    slots.take()
    assert (slots.limit, slots.used, slots.free) == (2, 1, 1)
    assert slots.take_free()
    assert not slots.take_free()
    slots.take(5)
    assert (slots.used, slots.free) == (7, 0)
    slots.give(6)
    assert (slots.used, slots.free) == (1, 1)


def test_what_is_fetched_ahead_takes_no_slot_that_is_free() -> None:
    slots = Slots(2)
    slots.ahead = 3
    assert (slots.free, slots.room) == (2, 5)
    slots.take(4)
    assert (slots.free, slots.room) == (0, 1)
    slots.take(4)
    assert (slots.free, slots.room) == (0, 0)
    slots.ahead = 0
    slots.give(7)
    assert (slots.free, slots.room) == (1, 1)


def test_more_slots_are_told() -> None:
    told: list[int] = []
    slots = Slots(2, on_free=lambda: told.append(slots.free))
    slots.take(2)
    slots.limit = 1
    assert (slots.free, told) == (0, [])
    slots.limit = 3
    slots.give(1)
    assert told == [1, 2]


def test_slots_that_nobody_took_cannot_be_given() -> None:
    slots = Slots(3)
    slots.take()
    with pytest.raises(ValueError, match="cannot give back 2 slots, only 1 are taken"):
        slots.give(2)


# -- bridge ------------------------------------------------------------------------------------------------------------


def test_calls_of_another_thread_are_made_here_in_their_order(bridge: Bridge) -> None:
    made: list[tuple[int, bool]] = []
    here = threading.current_thread()

    def leave() -> None:
        for number in range(100):
            bridge.call(lambda number=number: made.append((number, threading.current_thread() is here)))

    thread = threading.Thread(target=leave)
    thread.start()
    while len(made) < 100:
        bridge.wait(5)
        bridge.run()
    thread.join()
    assert made == [(number, True) for number in range(100)]


def test_a_call_that_raises_keeps_no_other_from_being_made(bridge: Bridge) -> None:
    made: list[str] = []
    bridge.call(lambda: 1 / 0)
    bridge.call(lambda: made.append("next"))
    with pytest.raises(ZeroDivisionError):
        bridge.run()
    bridge.wait(5)
    bridge.run()
    assert made == ["next"]


# -- steps -------------------------------------------------------------------------------------------------------------


def nothing() -> None: ...


def steps_of(app: Celery, coroutine: Any, task_id: str) -> Steps:
    task = app.task(nothing, shared=False, name=f"task-{task_id}")
    return Steps(coroutine, task=task, request=Context({"id": task_id}))


async def own_ids(steps: int) -> set[str]:
    found = set()
    for _ in range(steps):
        found.add(current_task.request.id)
        await asyncio.sleep(0)
    return found


def test_each_step_has_its_own_task(app: Celery) -> None:
    async def both() -> list[set[str]]:
        return await asyncio.gather(*(await_(steps_of(app, own_ids(5), name)) for name in "ab"))

    assert asyncio.run(both()) == [{"a"}, {"b"}]
    assert not current_task


async def await_(steps: Steps) -> Any:
    return await steps


def test_a_coroutine_that_swallows_cancellations_can_be_forgotten(app: Celery) -> None:
    seen: list[str] = []

    async def resist() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")

    async def scenario() -> None:
        steps = steps_of(app, resist(), "a")
        running = asyncio.create_task(await_(steps))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        steps.forget()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    assert seen == ["cancelled"]


# -- what runs where ---------------------------------------------------------------------------------------------------


def test_coroutine_functions_run_on_the_loop(app: Celery) -> None:
    async def coroutine() -> None: ...

    async def bound(self: Any) -> None: ...

    async def generator() -> Any:
        yield 1

    def plain() -> None: ...

    options = {"shared": False}
    retried = app.task(coroutine, name="retried", autoretry_for=(ValueError,), **options)
    tasks = [
        app.task(coroutine, name="c", **options),
        app.task(bound, name="b", bind=True, **options),
        retried,
    ]
    assert all(map(runs_on_loop, tasks))
    assert runs_on_loop(app.task(generator, name="g", **options))
    assert not runs_on_loop(app.task(plain, name="p", **options))


def test_a_pool_has_as_many_slots_as_its_concurrency(app: Celery) -> None:
    pool = TaskPool(5, app=app)
    pool.start()
    pool.grow(3)
    assert (pool.limit, pool.num_processes, pool.info["max-concurrency"]) == (8, 8, 8)
    pool.shrink(20)
    assert pool.slots.limit == 1
    pool.stop()


def test_what_is_hosted_is_drained_by_a_warm_shutdown(app: Celery) -> None:
    pool, told = TaskPool(1, app=app), []

    class Hosted:
        def drain(self, timeout_s: float | None = None) -> None:
            pool.call_in_hub(lambda: told.append(("called", timeout_s)))

        def abandon(self) -> None:
            told.append(("abandoned", None))

    pool.hosted = Hosted()
    pool.start()
    pool.stop()
    assert told == [("called", None)]


def test_what_is_hosted_is_abandoned_by_a_cold_shutdown(app: Celery) -> None:
    pool, told = TaskPool(1, app=app), []

    class Hosted:
        def drain(self, timeout_s: float | None = None) -> None:
            told.append("drained")

        def abandon(self) -> None:
            told.append("abandoned")

    pool.hosted = Hosted()
    pool.start()
    pool.terminate()
    pool.stop()
    assert told == ["abandoned"]
