"""The window in which requests gather: the policy as a function, and the engine around it on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_clock import run

from mosaic_queues.errors import CallTimeout, EngineError, EngineOverloaded
from mosaic_tasks.engines.batching import BatchingEngine, GatherWindow, Pace, gathers_s
from mosaic_tasks.engines.protocol import Completion, EngineRequest, Message, Usage, complete

WINDOW = GatherWindow(max_size=4, max_wait_s=0.05)
TOOK_S = 1.0


def now() -> float:
    return round(asyncio.get_running_loop().time(), 6)


class Echo:
    """Answers each request with its own text, all after a second; keeps the batches and when they came."""

    name = "echo"

    def __init__(self) -> None:
        self.batches: list[tuple[float, list[str]]] = []
        self.closed = self.cancelled = False
        self.failure: Exception | None = None
        self.too_few = False

    async def complete_many(self, requests: Sequence[EngineRequest]) -> list[Completion]:
        texts = [request.messages[0].content for request in requests]
        self.batches.append((now(), texts))
        try:
            await asyncio.sleep(TOOK_S)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        answers = [Completion(text, Usage(1, 1), "stop", logprobs=(-0.5,)) for text in texts]
        return answers[:-1] if self.too_few else answers

    async def aclose(self) -> None:
        self.closed = True


def asking(text: str, **options: Any) -> EngineRequest:
    return EngineRequest((Message("user", text),), **options)


def windowed(echo: Echo, **options: Any) -> BatchingEngine:
    return BatchingEngine(echo, **{"max_size": 4, "max_wait_ms": 50, **options})


async def ask(engine: BatchingEngine, text: str, *, at_s: float = 0.0, **options: Any) -> str:
    await asyncio.sleep(at_s - asyncio.get_running_loop().time())
    return (await complete(engine, asking(text, **options))).text


def batches(*times: float, **options: Any) -> list[tuple[float, list[str]]]:
    """The batches that requests at these times are computed in; each gets its own answer."""

    async def main() -> list[tuple[float, list[str]]]:
        echo = Echo()
        engine = windowed(echo, **options)
        names = [str(place) for place in range(len(times))]
        calls = [ask(engine, name, at_s=time) for name, time in zip(names, times, strict=True)]
        assert await asyncio.gather(*calls) == names
        await engine.aclose()
        return echo.batches

    return run(main())


# The policy


def gathers(
    *, waiting: int, size: int = 0, took_s: float = 0.0, ended_at: float = 9.99, **more: Any
) -> float:
    given = {"oldest_at": 10.0, "busy": False, "now": 10.0, **more}
    return gathers_s(WINDOW, Pace(size, took_s, ended_at), waiting=waiting, **given)


def test_alone_and_with_nothing_under_way_it_goes_at_once() -> None:
    assert gathers_s(WINDOW, Pace(), waiting=1, oldest_at=10.0, busy=False, now=10.0) == 0
    assert gathers(waiting=1, size=1, took_s=3.0) == 0


def test_a_full_batch_goes_whatever_else_is() -> None:
    assert gathers(waiting=4, size=4, took_s=3.0, busy=True) == 0


def test_under_load_it_gathers_as_long_as_the_last_batch_took() -> None:
    assert gathers(waiting=1, busy=True, took_s=0.02) == pytest.approx(0.02)
    assert gathers(waiting=1, busy=True, took_s=0.02, now=10.015) == pytest.approx(0.005)


def test_the_window_bounds_it() -> None:
    assert gathers(waiting=1, busy=True, took_s=3.0) == pytest.approx(0.05)


def test_it_waits_for_as_many_as_the_last_batch_had() -> None:
    assert gathers(waiting=2, size=3, took_s=3.0) == pytest.approx(0.05)
    assert gathers(waiting=3, size=3, took_s=3.0) == 0


def test_a_load_that_is_past_is_not_waited_for() -> None:
    assert gathers(waiting=1, size=3, took_s=3.0, ended_at=9.9) == 0


@given(
    waiting=st.integers(1, 9),
    size=st.integers(0, 4),
    took_s=st.floats(0, 100),
    age_s=st.floats(0, 1),
    busy=st.booleans(),
)
def test_nothing_waits_beyond_the_window(
    waiting: int, size: int, took_s: float, age_s: float, busy: bool
) -> None:
    left_s = gathers(waiting=waiting, size=size, took_s=took_s, busy=busy, now=10.0 + age_s)
    assert 0 <= left_s <= max(0.0, min(took_s, WINDOW.max_wait_s) - age_s) + 1e-9


# The engine


def test_a_lone_request_does_not_wait() -> None:
    assert batches(0.0) == [(0.0, ["0"])]


def test_requests_of_one_moment_share_a_batch_in_their_order() -> None:
    assert batches(0.0, 0.0, 0.0) == [(0.0, ["0", "1", "2"])]


def test_a_batch_has_a_largest_size() -> None:
    assert [texts for _, texts in batches(*[0.0] * 6)] == [["0", "1", "2", "3"], ["4", "5"]]


def test_what_comes_while_a_batch_runs_gathers() -> None:
    assert batches(0.0, 0.2, 0.4, 0.9) == [(0.0, ["0"]), (1.0, ["1", "2", "3"])]


def test_with_room_for_two_batches_the_second_waits_for_the_window_alone() -> None:
    first, second, third = batches(0.0, 2.0, 2.1, 2.12, max_batches=2)
    assert (first, second) == ((0.0, ["0"]), (2.0, ["1"]))
    assert third == (pytest.approx(2.15), ["2", "3"])


def test_those_who_ask_again_at_once_stay_together() -> None:
    async def main() -> list[int]:
        echo = Echo()
        engine = windowed(echo)

        async def client(name: str) -> None:
            for _ in range(3):
                await complete(engine, asking(name))
                await asyncio.sleep(0.01 * int(name))

        await asyncio.gather(*(client(str(place)) for place in range(3)))
        await engine.aclose()
        return [len(texts) for _, texts in echo.batches]

    assert run(main()) == [3, 3, 3]


def test_the_whole_answer_is_told() -> None:
    async def main() -> Completion:
        engine = windowed(Echo())
        try:
            return await complete(engine, asking("a"))
        finally:
            await engine.aclose()

    assert run(main()) == Completion("a", Usage(1, 1), "stop", logprobs=(-0.5,))


def test_a_cancelled_request_leaves_its_batch() -> None:
    async def main() -> list[tuple[float, list[str]]]:
        echo = Echo()
        engine = windowed(echo)
        first = asyncio.create_task(ask(engine, "0"))
        second, third = (asyncio.create_task(ask(engine, name, at_s=0.1)) for name in "12")
        await asyncio.sleep(0.5)
        second.cancel()
        assert await asyncio.gather(first, third) == ["0", "2"]
        await engine.aclose()
        return echo.batches

    assert run(main()) == [(0.0, ["0"]), (1.0, ["2"])]


def test_a_cancelled_request_of_a_running_batch_leaves_the_others_alone() -> None:
    async def main() -> None:
        echo = Echo()
        engine = windowed(echo)
        first, second = (asyncio.create_task(ask(engine, name)) for name in "01")
        await asyncio.sleep(0.5)
        first.cancel()
        assert await second == "1"
        assert not echo.cancelled
        await engine.aclose()

    run(main())


def test_a_batch_that_all_have_left_is_stopped() -> None:
    async def main() -> None:
        echo = Echo()
        engine = windowed(echo)
        with pytest.raises(CallTimeout, match=r"'echo' did not answer within 0\.5 s"):
            await ask(engine, "0", timeout_s=0.5)
        assert await ask(engine, "1") == "1"
        assert echo.cancelled
        assert echo.batches == [(0.0, ["0"]), (0.5, ["1"])]
        await engine.aclose()

    run(main())


@pytest.mark.parametrize(
    ("failure", "kind"), [(EngineOverloaded("busy"), EngineOverloaded), (ValueError("no"), EngineError)]
)
def test_a_batch_that_fails_fails_its_members_alone(failure: Exception, kind: type[EngineError]) -> None:
    async def main() -> list[Any]:
        echo = Echo()
        echo.failure = failure
        engine = windowed(echo)
        calls = [ask(engine, "0"), ask(engine, "1"), ask(engine, "2", at_s=0.5)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await engine.aclose()
        return answers

    first, second, third = run(main())
    assert third == "2"
    assert type(first) is type(second) is kind
    assert first is not second
    assert str(failure) in str(first)


def test_a_wrong_number_of_answers_is_an_error() -> None:
    async def main() -> None:
        echo = Echo()
        echo.too_few = True
        engine = windowed(echo)
        with pytest.raises(EngineError, match="gave 0 answers to 1 requests"):
            await ask(engine, "0")
        await engine.aclose()

    run(main())


@pytest.mark.parametrize("turns", range(1, 6))
def test_closing_ends_a_batch_also_before_its_first_step(turns: int) -> None:
    """Whichever turn of the loop it comes in."""

    async def main() -> None:
        engine = windowed(Echo())
        call = asyncio.create_task(complete(engine, asking("0")))
        for _ in range(turns):
            await asyncio.sleep(0)
        await engine.aclose()
        with pytest.raises(EngineError, match="was closed"):
            async with asyncio.timeout(10):
                await call

    run(main())


def test_closing_ends_what_runs_and_what_waits() -> None:
    async def main() -> None:
        echo = Echo()
        engine = windowed(echo)
        calls = [asyncio.create_task(ask(engine, name, at_s=at_s)) for name, at_s in (("0", 0.0), ("1", 0.2))]
        await asyncio.sleep(0.5)
        await engine.aclose()
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            assert "was closed" in str(ended)
        assert echo.closed
        assert echo.cancelled
        assert [texts for _, texts in echo.batches] == [["0"]]

    run(main())
