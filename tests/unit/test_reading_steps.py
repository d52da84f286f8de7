"""Readers hold few events, however many are there already."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from mosaic_queues.following import Found
from mosaic_queues.keys import Keys
from mosaic_queues.ledger import Ledger
from mosaic_tasks.inspection import reading
from mosaic_tasks.inspection.loop_bell import LoopBell
from mosaic_tasks.inspection.parts import Pieces, Source
from mosaic_tasks.inspection.reading import _AT_ONCE, AsyncReading, Reading


class Nothing:
    """Follows no stream."""

    def __init__(self, *_arguments: object, **_options: object) -> None: ...

    def at_hand(self) -> None: ...

    def take(self, **_options: object) -> Found:
        return Found()

    def leave(self) -> None: ...

    def abandon(self) -> None: ...

    def part(self) -> None: ...


class RingsOnce(Nothing):
    """Rings once when it is first asked, as the hub does for what came between; and that is all."""

    def __init__(self, *_arguments: object, ring: Callable[[], None], **_options: object) -> None:
        self._ring, self._is_new = ring, True

    def take(self, **_options: object) -> Found:
        if self._is_new:
            self._is_new = False
            self._ring()
        return Found()


LEDGER = cast("Any", SimpleNamespace(client=None, keys=None))


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Following", Nothing)


class Done:
    """A fan-out whose items are done; counts those that were made."""

    must_ask = False

    def __init__(self, count: int, *, fails: bool = False) -> None:
        self._count, self._fails, self.made, self.is_over = count, fails, 0, False

    def cursors(self) -> Mapping[str, str]:
        return {}

    def ask(self, _: object) -> None: ...

    def is_local(self, _: Found) -> bool:
        return True

    def take_in(self, _: Found) -> Iterator[int]:
        for number in range(1, self._count + 1):
            self.made = number
            yield number
        if self._fails:
            raise ValueError("no more")
        self.is_over = True


COUNTS = [0, 1, _AT_ONCE - 1, _AT_ONCE, _AT_ONCE + 1, 5 * _AT_ONCE]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("follow", [True, False])
def test_all_come_and_few_are_held(count: int, follow: bool) -> None:
    part = Done(count)
    with Reading[int](LEDGER, lambda: part, follow=follow, stands=pytest.fail) as found:
        for number in range(1, count + 1):
            assert next(found) == number
            assert part.made < number + _AT_ONCE
        assert next(found, None) is None
    assert part.is_over


@pytest.mark.parametrize("count", COUNTS)
def test_so_do_they_for_coroutines(count: int) -> None:
    async def main() -> list[int]:
        part, told = Done(count), list[int]()
        async with AsyncReading[int](LEDGER, lambda: part, follow=True, stands=pytest.fail) as found:
            while several := await found.several():
                assert len(several) <= _AT_ONCE
                assert part.made <= len(told) + _AT_ONCE
                told += several
        return told

    assert asyncio.run(main()) == list(range(1, count + 1))


def test_what_fails_later_is_told_behind_what_came_before() -> None:
    found = Reading[int](LEDGER, lambda: Done(2 * _AT_ONCE, fails=True), follow=True, stands=pytest.fail)
    assert [next(found) for _ in range(2 * _AT_ONCE)][-1] == 2 * _AT_ONCE
    with pytest.raises(ValueError, match="no more"):
        next(found)


class OneMore(Done):
    """Its last item is done while the others are handed out."""

    def take_in(self, found: Found) -> Iterator[int]:
        if self.made:
            self.is_over = True
            yield self.made + 1
        else:
            yield from super().take_in(found)
            self.is_over = False


@pytest.mark.parametrize("count", COUNTS)
def test_what_comes_while_others_are_handed_out_is_found(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Following", RingsOnce)
    monkeypatch.setattr(reading, "LOOK_S", 0.0)
    part = OneMore(max(count, 1))
    with Reading[int](LEDGER, lambda: part, follow=True, stands=lambda: pytest.fail("waits")) as found:
        assert list(found) == list(range(1, max(count, 1) + 2))


def test_one_that_is_collected_only_notes_that_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(Nothing, "leave", lambda _: called.append("leave"))
    monkeypatch.setattr(Nothing, "abandon", lambda _: called.append("abandon"))
    found = Reading[int](LEDGER, lambda: Done(1), follow=True, stands=pytest.fail)
    del found
    gc.collect()
    assert called == ["abandon"]


# -- coroutines wait ------------------------------------------------------------------------------------------------


class Rung(Nothing):
    """Has something at hand each time that it rings, and is asked for nothing in between."""

    made: Rung

    def __init__(self, *_arguments: object, ring: Callable[[], None], **_options: object) -> None:
        Rung.made, self.ring, self.looks, self.has_news = self, ring, 0, False

    def at_hand(self) -> Found:  # type: ignore[override]
        self.looks += 1
        found = Found({"stream": []} if self.has_news else {})
        self.has_news = False
        return found

    def advance(self, _: Found) -> None: ...

    def come(self) -> None:
        self.has_news = True
        self.ring()


class Counts(Done):
    """An event for each time that something was found."""

    def __init__(self) -> None:
        super().__init__(0)

    def take_in(self, found: Found) -> Iterator[int]:
        for _ in found:
            self.made += 1
            yield self.made


def counting(**options: Any) -> AsyncReading[int]:
    return AsyncReading[int](LEDGER, Counts, follow=True, **{"stands": pytest.fail, **options})


def test_a_reader_looks_once_for_each_time_that_it_is_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Following", Rung)

    async def main() -> None:
        async with counting() as found:
            waiting = asyncio.ensure_future(anext(found))
            for number in range(1, 20):
                await asyncio.sleep(0) if number > 1 else await until(lambda: found._following is not None)
                Rung.made.come()
                assert await waiting == number
                waiting = asyncio.ensure_future(anext(found))
            await asyncio.sleep(0)
            assert Rung.made.looks == 19
            waiting.cancel()

    asyncio.run(main())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0)


class Slow(Nothing):
    """Its second trip lasts until the gate opens."""

    gate: threading.Event
    ring: Callable[[], None]
    trips: int

    def __init__(self, *_arguments: object, ring: Callable[[], None], **_options: object) -> None:
        Slow.gate, Slow.ring, Slow.trips = threading.Event(), staticmethod(ring), 0

    def take(self, **_options: object) -> Found:
        Slow.trips += 1
        if Slow.trips == 1:
            return Found()
        assert Slow.gate.wait(30)
        return Found({"stream": []})


def test_what_a_trip_brings_is_had_by_who_was_cancelled_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Following", Slow)

    async def main() -> int:
        async with counting() as found:
            waiting = asyncio.ensure_future(anext(found))
            await until(lambda: found._following is not None)
            Slow.ring()
            await until(lambda: Slow.trips == 2)
            waiting.cancel()
            await asyncio.wait([waiting])
            Slow.gate.set()
            return await anext(found)

    assert asyncio.run(main()) == 1


def test_who_hears_nothing_looks_again_and_again_though_it_waits_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "Following", Rung)
    monkeypatch.setattr(reading, "LOOK_S", 0.02)
    looked = 0

    def stands() -> None:
        nonlocal looked
        looked += 1
        if looked >= 3:  # of those who are cancelled while they look, nobody hears what they found
            raise LookupError("is gone")

    async def main() -> None:
        async with counting(stands=stands) as found:
            while True:
                try:
                    async with asyncio.timeout(0.01):
                        await anext(found)
                except TimeoutError:
                    continue

    with pytest.raises(LookupError, match="is gone"):
        asyncio.run(main())


def test_who_has_looked_waits_as_long_before_it_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Following", Rung)
    monkeypatch.setattr(reading, "LOOK_S", 0.02)
    looks: list[float] = []

    def stands() -> None:
        looks.append(time.monotonic())
        if len(looks) == 3:
            raise LookupError("is gone")

    async def main() -> None:
        async with counting(stands=stands) as found:
            await anext(found)

    with pytest.raises(LookupError, match="is gone"):
        asyncio.run(main())
    assert all(later - earlier >= 0.02 for earlier, later in pairwise(looks))


def test_a_bell_sets_no_alarm_for_each_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop, alarms = asyncio.get_running_loop(), list[float]()
        call_at = loop.call_at

        def noted(when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
            alarms.append(when)
            return call_at(when, *arguments, **options)

        monkeypatch.setattr(loop, "call_at", noted)
        bell, begun = LoopBell(loop), loop.time()
        for number in range(100):
            loop.call_soon(bell.ring)
            await bell.wait(begun + 1000 + number)
            assert bell.is_rung
            bell.hush()
        assert alarms == [begun + 1000]
        await bell.wait(begun)
        assert not bell.is_rung, "an earlier alarm goes first"
        bell.end()

    asyncio.run(main())


def test_a_bell_goes_on_where_a_later_wait_lasts_longer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        bell, now = LoopBell(loop), loop.time()
        loop.call_soon(bell.ring)
        await bell.wait(now + 0.01)
        bell.hush()
        await bell.wait(now + 0.03)
        assert loop.time() >= now + 0.03
        assert not bell.is_rung

    asyncio.run(main())


# -- a node's stream ------------------------------------------------------------------------------------------------


def entry(number: int, kind: str, offset: int, data: bytes = b"") -> tuple[bytes, dict[bytes, bytes]]:
    head = msgspec.msgpack.encode((kind, "3", 1, number, offset, len(data)))
    return f"{number}-0".encode(), {b"c": head, b"d": data}


def text(number: int, offset: int, value: str) -> tuple[bytes, dict[bytes, bytes]]:
    return entry(number, "text", offset, b"\x00" + msgspec.msgpack.encode(value))


def page(*entries: tuple[bytes, dict[bytes, bytes]], is_full: bool = False) -> Found:
    found = Found({"s:3": list(entries)} if entries else {})
    found.may_be_more = is_full
    return found


def pieces(after: str | None = None) -> Pieces:
    keys = SimpleNamespace(stream=lambda _run, number: f"s:{number}", run=Keys("mosaic").run)
    client = SimpleNamespace(xrevrange=lambda *_, **__: [text(1, 0, "old")], xrange=lambda *_: [])
    ledger: Any = SimpleNamespace(keys=keys, client=client, is_running=Ledger.is_running)
    payloads: Any = SimpleNamespace(
        unpack_many=lambda _, found: [msgspec.msgpack.decode(each[1:]) for each in found],
        unpack=lambda _, envelope: msgspec.msgpack.decode(envelope[1:]),
        is_skipped=lambda _: None,
    )
    return Pieces(Source(ledger, payloads, "run", 3, "x"), after)


AGAIN = [entry(3, "retract", 0), text(4, 0, "new"), entry(5, "end", 3)]


def test_an_end_is_told_once_nothing_is_behind_it() -> None:
    part = pieces()
    assert [each.kind for each in part.take_in(page(text(1, 0, "old"), entry(2, "end", 3)))] == [
        "text",
        "end",
    ]
    assert part.is_over


def test_an_end_that_a_full_page_ends_with_waits_for_what_is_behind_it() -> None:
    for rest, told in ((page(*AGAIN), ["retract", "text", "end"]), (page(), ["end"])):
        part = pieces()
        first = part.take_in(page(text(1, 0, "old"), entry(2, "end", 3), is_full=True))
        assert [each.kind for each in first] == ["text"]
        assert not part.is_over
        assert [each.kind for each in part.take_in(rest)] == told
        assert part.is_over


@pytest.mark.parametrize(
    ("again", "told"),
    [([], ["1-0/3"]), ([entry(2, "retract", 0), text(3, 0, "x")], ["3-0/1", "3-0/2", "3-0/3"])],
)
def test_who_goes_on_inside_of_an_end_gets_the_rest_of_it_and_all_of_the_next(
    again: list[tuple[bytes, dict[bytes, bytes]]], told: list[str]
) -> None:
    part, found = pieces("1-0/2"), page()
    list(part.take_in(page(*again)))
    found.answers = (b"running", b"\x00" + msgspec.msgpack.encode("default"))
    assert [each.id for each in part.take_in(found)] == told
    assert part.is_over


def test_only_for_values_that_lie_elsewhere_a_trip_is_needed() -> None:
    here, there = [text(1, 0, "a"), *AGAIN], (entry(6, "item", 0), entry(6, "text", 0, b"\x02blob"))
    assert pieces().is_local(page(*here))
    assert pieces().is_local(page())
    for elsewhere in there:
        assert not pieces().is_local(page(*here, elsewhere))


def test_a_run_that_is_over_ends_its_readers_once_they_have_all() -> None:
    part, over = pieces(), (b"failed", None)
    assert part.must_ask
    for offset in range(3):
        found = page(text(offset + 1, offset, "a"), is_full=offset < 2)
        found.answers = over
        assert [each.offset for each in part.take_in(found)] == [offset]
        assert (part.must_ask, part.is_over) == (True, False)
    found = page()
    found.answers = over
    assert list(part.take_in(found)) == []
    assert (part.must_ask, part.is_over) == (False, True)


@pytest.mark.parametrize("said_before", [[], [text(1, 0, "old")]])
def test_a_node_that_runs_again_between_what_is_asked_and_its_stream_is_not_told_as_it_was(
    said_before: list[tuple[bytes, dict[bytes, bytes]]],
) -> None:
    part, old = pieces(), b"\x00" + msgspec.msgpack.encode("old")
    if said_before:
        list(part.take_in(page(*said_before)))
    begun = [entry(2, "end", 3), *AGAIN[:2]] if said_before else [text(4, 0, "new")]
    found = page(*begun)
    found.answers = (b"succeeded", old)
    told = [each.kind for each in part.take_in(found)]
    assert told == (["retract", "text"] if said_before else ["text"])
    assert (part.must_ask, part.is_over) == (True, False)
    found = page()
    found.answers = (b"running", None)
    assert list(part.take_in(found)) == []
    assert not part.must_ask
    assert [each.kind for each in part.take_in(page(AGAIN[2]))] == ["end"]
    assert part.is_over


def test_that_the_run_has_ended_has_a_reader_ask_whether_there_is_more() -> None:
    part = pieces()
    found = page(text(1, 0, "a"))
    found.answers = (b"running", None)
    assert len(list(part.take_in(found))) == 1
    assert not part.must_ask
    assert list(part.take_in(Found({Keys("mosaic").run("run")[5]: []}))) == []
    assert (part.must_ask, part.is_over) == (True, False)
