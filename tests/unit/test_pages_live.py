"""An open page is renewed when there is news, and only where it changed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self

import msgspec
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from mosaic_tasks.gateway.pages import live
from mosaic_tasks.gateway.pages.live import Fragments, Sight, Studio


class Bells:
    """News as often as the test says."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.left, self.error, self.is_open = times, error, False

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def news(self) -> None:
        if self.left == 0 and self.error is not None:
            raise self.error
        if self.left == 0:
            await asyncio.Event().wait()
        self.left -= 1

    async def __aexit__(self, *_error: object) -> None:
        self.is_open = False


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PAUSE_S", 0.0)
    monkeypatch.setattr(live, "COST_SHARE", 1_000.0)


def told(
    render: Callable[[], Fragments], bells: Bells, *, silence_s: float = 60.0, longest_s: float = 60.0
) -> list[Any]:
    """What a browser hears until the news end."""

    async def read() -> list[bytes]:
        stream = Studio().renewed("page", render, bells, silence_s=silence_s, longest_s=longest_s)
        return [part async for part in stream]

    heard = asyncio.run(read())
    assert heard[0].startswith(b"retry: ")
    assert not bells.is_open
    data = [part.decode().partition("data: ")[2] for part in heard[1:]]
    return [msgspec.json.decode(each) if each else None for each in data]


def test_all_parts_come_first_and_then_those_that_changed() -> None:
    pages = iter([{"a": "1", "b": "1"}, {"a": "1", "b": "2"}, {"a": "1", "b": "2"}, {"a": "3", "b": "2"}])
    bells = Bells(3, RedisConnectionError("away"))
    assert told(lambda: next(pages), bells) == [{"a": "1", "b": "1"}, {"b": "2"}, {"a": "3"}]


def test_without_news_there_are_comments_until_the_browser_is_to_come_again() -> None:
    heard = told(lambda: {"a": "1"}, Bells(0), silence_s=0.01, longest_s=0.1)
    assert heard[0] == {"a": "1"}
    assert set(map(str, heard[1:])) == {"None"}


def test_a_server_that_is_away_ends_the_stream() -> None:
    def away() -> Fragments:
        raise RedisConnectionError("away")

    assert told(away, Bells(0)) == []


def test_who_looks_at_the_same_page_is_shown_what_was_made_once_for_all() -> None:
    made, gate = [0], threading.Event()

    def render() -> Fragments:
        gate.wait(10)
        made[0] += 1
        return {"a": str(made[0])}

    async def look(studio: Studio, key: str, times: int) -> list[Any]:
        bells = Bells(times, RedisConnectionError("away"))
        return [part async for part in studio.renewed(key, render, bells, silence_s=60.0)][1:]

    async def main() -> None:
        studio = Studio()
        seen = [asyncio.create_task(look(studio, "one", 0)) for _ in range(20)]
        for _ in range(3):
            await asyncio.sleep(0)
        late = asyncio.create_task(look(studio, "one", 0))  # it may have happened since that one began
        other = asyncio.create_task(look(studio, "other", 0))
        await asyncio.sleep(0)
        gate.set()
        assert len({part for (part,) in await asyncio.gather(*seen)}) <= 2
        await asyncio.gather(late, other)
        assert made[0] in (3, 4)

    asyncio.run(main())


def test_who_leaves_while_a_page_is_made_leaves_the_others_with_one() -> None:
    gate, begun = threading.Event(), threading.Event()

    def render() -> Fragments:
        begun.set()
        gate.wait(10)
        return {"a": "1"}

    async def main() -> None:
        sight = Sight(Studio(), render)
        leaving = asyncio.create_task(sight.renewed())
        await asyncio.to_thread(begun.wait, 10)
        staying = asyncio.create_task(sight.renewed())
        await asyncio.sleep(0)
        leaving.cancel()
        gate.set()
        assert await staying == {"a": "1"}

    asyncio.run(main())


def test_all_open_pages_together_cost_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PAUSE_S", 0.3)
    monkeypatch.setattr(live, "COST_SHARE", 0.2)
    studio = Studio()
    sights = [studio.sight(name, dict) for name in "abcd"]
    assert studio.pause_s(0.01) == pytest.approx(0.3)
    assert studio.pause_s(0.1) == pytest.approx(2.0)
    del sights[1:]
    assert studio.pause_s(0.1) == pytest.approx(0.5)


def test_pages_are_made_off_the_event_loop_and_few_at_a_time() -> None:
    running, most, lock = 0, 0, threading.Lock()
    threads = set[int]()
    gate = threading.Barrier(live.AT_ONCE)

    def make() -> None:
        nonlocal running, most
        with lock:
            running, most = running + 1, max(most, running + 1)
            threads.add(threading.get_ident())
        gate.wait(10)
        with lock:
            running -= 1

    async def all_of_them() -> None:
        studio = Studio()
        await asyncio.gather(*(studio.make(make) for _ in range(3 * live.AT_ONCE)))

    asyncio.run(all_of_them())
    assert most == live.AT_ONCE
    assert threading.get_ident() not in threads
