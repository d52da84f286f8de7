"""A reader of streams takes no more at once than its page, whether it is behind or at the tail; and misses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from mosaic_queues import following as hubs
from mosaic_queues.following import FROM_NOW_ON, NOTHING, Following, Found, _Hub, _Tail
from mosaic_queues.keys import Keys
from tests.services import READY_S

pytestmark = pytest.mark.integration


def test_pages_bound_what_is_taken_at_once(redis_client: Redis) -> None:
    rung, seen = threading.Event(), list[bytes]()
    following = Following(redis_client, Keys("mosaic"), {"mosaic:s": "0-0"}, ring=rung.set, page=2)
    try:
        for batch in (range(5), range(5, 12)):
            for number in batch:
                redis_client.xadd("mosaic:s", {"n": number})
            redis_client.expire("mosaic:s", 60)
            while len(seen) <= batch[-1]:
                rung.clear()
                taken = [fields[b"n"] for _, fields in following.take().get("mosaic:s", ())]
                assert len(taken) <= 2
                seen += taken
                assert taken or rung.wait(READY_S)
    finally:
        following.leave()
    assert seen == [b"%d" % number for number in range(12)]


@pytest.fixture
def follow(redis_client: Redis) -> Iterator[Callable[..., Following]]:
    """Begins to read streams, each with an expiry."""
    begun: list[Following] = []

    def follow(*, ring: Callable[[], object] = lambda: None, **cursors: str) -> Following:
        keys = {f"mosaic:{name}": cursor for name, cursor in cursors.items()}
        begun.append(Following(redis_client, Keys("mosaic"), keys, ring=ring, page=4))
        return begun[-1]

    yield follow
    for following in begun:
        following.leave()


def add(client: Redis, name: str, *numbers: int) -> None:
    for number in numbers:
        client.xadd(f"mosaic:{name}", {"n": number})
    client.expire(f"mosaic:{name}", 60)


def numbers(found: Found, name: str) -> list[int]:
    return [int(fields[b"n"]) for _, fields in found.get(f"mosaic:{name}", ())]


def test_what_is_there_and_what_is_asked_comes_in_one_trip(
    redis_client: Redis, follow: Callable[..., Following], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(redis_client, "a", 1, 2)
    add(redis_client, "b", 3)
    pipelines = iter([redis_client.pipeline(transaction=False)])
    monkeypatch.setattr(redis_client, "pipeline", lambda **_: next(pipelines))
    monkeypatch.setattr(redis_client, "execute_command", pytest.fail)
    found = follow(a=NOTHING, b=FROM_NOW_ON).take(follow=False, ask=lambda pipe: pipe.exists("mosaic:b"))
    assert (numbers(found, "a"), numbers(found, "b")) == ([1, 2], [])
    assert (found.answers, found.may_be_more) == ((1,), False)


@pytest.mark.parametrize("is_empty", [True, False])
def test_who_begins_now_hears_what_comes_from_now_on(
    redis_client: Redis, follow: Callable[..., Following], is_empty: bool
) -> None:
    rung = threading.Event()
    if not is_empty:
        add(redis_client, "a", 1, 2)
    following = follow(a=FROM_NOW_ON, ring=rung.set)
    assert following.take() == {}
    add(redis_client, "a", 3)
    assert rung.wait(READY_S)
    assert numbers(following.take(), "a") == [3]


def test_a_full_page_is_known_from_one_that_is_all(
    redis_client: Redis, follow: Callable[..., Following]
) -> None:
    add(redis_client, "a", *range(7))
    following = follow(a=NOTHING)
    first, second = following.take(), following.take()
    assert (numbers(first, "a"), first.may_be_more) == ([0, 1, 2, 3], True)
    assert (numbers(second, "a"), second.may_be_more) == ([4, 5, 6], False)
    assert following.at_hand() == {}, "it is followed now"


def test_what_comes_between_the_first_page_and_the_hub_is_rung_for(
    redis_client: Redis, follow: Callable[..., Following], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, rung = threading.Event(), threading.Event()
    other = follow(a=NOTHING, ring=heard.set)
    assert other.take() == {}
    following, join = follow(a=NOTHING, ring=rung.set), Following._join

    def late(self: Following) -> None:
        add(redis_client, "a", 1)
        assert heard.wait(READY_S)
        join(self)

    monkeypatch.setattr(Following, "_join", late)
    assert following.take() == {}
    assert rung.wait(READY_S)
    assert numbers(following.take(), "a") == [1]


def test_the_last_one_to_part_is_given_the_hub_to_end(follow: Callable[..., Following]) -> None:
    one, other = follow(a=NOTHING), follow(b=NOTHING)
    for each in (one, other):
        each.take()
    assert one.part() is None
    end = other.part()
    assert end is not None
    end()
    await_no_hub()
    assert other.part() is None


def await_no_hub() -> None:
    """Whoever ends it waits for a moment only."""
    for thread in threading.enumerate():
        if thread.name == "mosaic-hub":
            thread.join(READY_S)
            assert not thread.is_alive()


def test_who_joins_as_the_last_other_one_leaves_from_inside_is_rung(
    redis_client: Redis, follow: Callable[..., Following], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, rung, begin = follow(b=NOTHING), threading.Event(), _Tail.__init__
    other.take()

    def meanwhile(tail: _Tail, start: tuple[int, int]) -> None:
        begin(tail, start)
        other.leave()

    monkeypatch.setattr(_Tail, "__init__", meanwhile)
    monkeypatch.setattr(hubs, "END_S", 0.0)
    following = follow(a=NOTHING, ring=rung.set)
    assert following.take() == {}
    add(redis_client, "a", 1)
    assert rung.wait(READY_S)
    assert numbers(following.take(), "a") == [1]


def test_who_is_collected_inside_of_the_hub_keeps_nobody_from_joining(
    redis_client: Redis, follow: Callable[..., Following], monkeypatch: pytest.MonkeyPatch
) -> None:
    collected, inside = follow(a=NOTHING), threading.Event()
    joins, joined = threading.Event(), threading.Event()
    collected.take()
    add_to_tail, join = _Tail.add, _Hub.join

    def collecting(tail: _Tail, entries: list[hubs.Entry]) -> None:
        inside.set()
        assert joins.wait(READY_S)
        collected.abandon()
        add_to_tail(tail, entries)

    def joining(hub: _Hub, *arguments: Any) -> tuple[bool, bool]:
        joins.set()
        return join(hub, *arguments)

    monkeypatch.setattr(_Tail, "add", collecting)
    monkeypatch.setattr(_Hub, "join", joining)
    add(redis_client, "a", 1)
    assert inside.wait(READY_S)
    following = follow(b=NOTHING)
    thread = threading.Thread(target=lambda: (following.take(), joined.set()), daemon=True)
    thread.start()
    assert joined.wait(READY_S)
    thread.join()
    end = following.part()
    assert end is not None, "the other one is gone"
    end()
    await_no_hub()


def test_the_hub_of_a_last_reader_that_was_collected_ends_when_it_looks_again(
    redis_client: Redis, follow: Callable[..., Following], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "BLOCK_S", 0.05)
    following, rung = follow(a=NOTHING), threading.Event()
    following.take()
    following.abandon()
    await_no_hub()
    after = follow(a=NOTHING, ring=rung.set)
    assert after.take() == {}
    add(redis_client, "a", 1)
    assert rung.wait(READY_S), "the next one has another hub"


def test_a_hub_goes_on_for_who_is_left_when_another_was_collected(
    redis_client: Redis, follow: Callable[..., Following]
) -> None:
    rung, gone = threading.Event(), threading.Event()
    following, collected = follow(a=NOTHING, ring=rung.set), follow(a=NOTHING, b=NOTHING, ring=gone.set)
    for each in (following, collected):
        each.take()
    collected.abandon()
    for number in range(3):  # it may be rung for the first; the hub looks before the second
        rung.clear()
        gone.clear()
        add(redis_client, "a", number)
        assert rung.wait(READY_S)
    assert not gone.is_set()
    assert numbers(following.take(), "a") == [0, 1, 2]
