"""Readers hold few events, however many are there already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mosaic_queues.following import Found
from mosaic_tasks.inspection import reading
from mosaic_tasks.inspection.reading import _AT_ONCE, AsyncReading, Reading


class Nothing:
    """Follows no stream."""

    def __init__(self, *_arguments: object, **_options: object) -> None: ...

    def at_hand(self) -> None: ...

    def take(self, **_options: object) -> Found:
        return {}

    def leave(self) -> None: ...


class RingsOnce(Nothing):
    """Rings once when it is first asked, as the hub does for what came between; and that is all."""

    def __init__(self, *_arguments: object, ring: Callable[[], None], **_options: object) -> None:
        self._ring, self._is_new = ring, True

    def take(self, **_options: object) -> Found:
        if self._is_new:
            self._is_new = False
            self._ring()
        return {}


LEDGER = cast("Any", SimpleNamespace(client=None, keys=None))


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Following", Nothing)


class Done:
    """A fan-out whose items are done; counts those that were made."""

    def __init__(self, count: int, *, fails: bool = False) -> None:
        self._count, self._fails, self.made, self.is_over = count, fails, 0, False

    def cursors(self) -> Mapping[str, str]:
        return {}

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
