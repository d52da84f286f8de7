"""The hub's own steps, without a server: whom it rings, whom it need not be woken for, and what it does not mix up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from mosaic_queues.following import Following, Found, _Hub, _ring
from mosaic_queues.keys import Keys

KEYS = Keys("mosaic")
STREAM = "s"


def entry(number: int) -> tuple[bytes, dict[bytes, bytes]]:
    return f"{number}-0".encode(), {}


def reader(*, cursor: str = "0-0", **options: Any) -> Following:
    """One that no test has ask a server."""
    client: Any = None
    return Following(client, KEYS, {STREAM: cursor}, **{"ring": lambda: None, **options})


@pytest.fixture
def hub() -> _Hub:
    """One whose thread never starts: the test takes its steps."""
    client: Any = None
    hub = _Hub(client, KEYS)
    hub._thread = threading.current_thread()
    return hub


def join(hub: _Hub, *, cursor: int = 0, key: str = STREAM, who: Following | None = None) -> tuple[bool, bool]:
    return hub.join(who or reader(), {key: (cursor, 0)})


def test_it_is_woken_only_where_it_sleeps_and_a_stream_is_new(hub: _Hub) -> None:
    assert join(hub, key="a") == (False, False), "it has not gone to sleep yet"
    hub._wanted()
    assert join(hub, key="b") == (True, False)
    assert join(hub, key="b") == (False, False)
    hub._hand_out([])
    assert join(hub, key="c") == (False, False), "it looks anyway"
    assert {"a", "b", "c"} < set(hub._wanted())


def test_who_joins_is_told_what_others_were_rung_for_already(hub: _Hub) -> None:
    join(hub)
    hub._wanted()
    hub._hand_out([(STREAM.encode(), [entry(5)])])
    assert join(hub, cursor=5) == (False, False)
    assert join(hub, cursor=4) == (False, True)


def test_what_comes_for_a_stream_that_another_reader_begins_before_is_read_again(hub: _Hub) -> None:
    first = reader()
    join(hub, cursor=5, who=first)
    hub._wanted()
    hub.leave(first, [STREAM])
    join(hub, cursor=3)
    hub._hand_out([(STREAM.encode(), [entry(6)])])
    assert hub.behind(STREAM, (3, 0)) == [], "4 and 5 may be missing"
    assert hub._wanted()[STREAM] == "3-0"
    hub._hand_out([(STREAM.encode(), [entry(4), entry(6)])])
    assert hub.behind(STREAM, (3, 0)) == [entry(4), entry(6)]


def test_who_leaves_is_forgotten_with_its_streams(hub: _Hub) -> None:
    one, other = reader(), reader()
    for each in (one, other):
        join(hub, who=each)
    hub.leave(one, [STREAM, "unknown"])
    assert not hub.is_idle
    hub.leave(other, [STREAM])
    assert hub.is_idle


class Loop:
    """Notes how often it is called from another thread."""

    def __init__(self, *, is_closed: bool = False) -> None:
        self.calls, self._is_closed = 0, is_closed

    def call_soon_threadsafe(self, call: Callable[..., object], *arguments: Any) -> None:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        self.calls += 1
        call(*arguments)


def test_readers_of_one_loop_are_rung_by_one_call() -> None:
    rung, loops = list[int](), [Loop(), Loop(), Loop(is_closed=True)]
    readers = [
        reader(ring=lambda number=number: rung.append(number), loop=loops[number % 3]) for number in range(9)
    ]
    _ring([*readers, reader(ring=lambda: rung.append(9))])
    assert sorted(rung) == [0, 1, 3, 4, 6, 7, 9]
    assert [loop.calls for loop in loops] == [1, 1, 0]


@pytest.mark.parametrize(("count", "is_cut"), [(0, False), (2, False), (3, True), (4, True)])
def test_behind_a_full_page_there_may_be_more(hub: _Hub, count: int, is_cut: bool) -> None:
    follower = reader(page=3)
    join(hub, who=follower)
    follower._hub = hub
    hub._wanted()
    hub._hand_out([(STREAM.encode(), [entry(number) for number in range(1, count + 1)])] if count else [])
    found = follower.at_hand()
    assert found is not None
    assert len(found.get(STREAM, ())) == min(count, 3)
    assert found.may_be_more is is_cut


def test_what_is_found_holds_all_unless_it_says_otherwise() -> None:
    assert (Found().may_be_more, Found().answers) == (False, ())
