"""A reader of streams takes no more at once than its page, whether it is behind or at the tail; and misses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from mosaic_queues.following import FROM_NOW_ON, NOTHING, Following, Found
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
    assert not [thread for thread in threading.enumerate() if thread.name == "mosaic-hub"]
    assert other.part() is None
