"""Bodies of requests: how slow they may come, and what they may take together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message

from mosaic_tasks.gateway.entrance import _Answer, _Body, _Room

ROOM = 1_000


async def never(_: Message) -> None:
    raise AssertionError


def body(pieces: Sequence[bytes], room: _Room, *, pause_s: float = 0.0, patience_s: float = 30.0) -> _Body:
    """A body that comes in pieces, of which the last is followed by another one for ever."""
    left = list(pieces)

    async def receive() -> Message:
        await asyncio.sleep(pause_s)
        return {"type": "http.request", "body": left.pop(0) if left else b"x", "more_body": True}

    answer = _Answer(never, "id", is_head=False)
    return _Body(receive, answer, room, most_bytes=ROOM, patience_s=patience_s)


async def refused(found: _Body) -> int:
    """The status with which it is refused, whenever that is."""
    for _ in range(ROOM + 1):
        try:
            await found.receive()
        except HTTPException as error:
            return error.status_code
    raise AssertionError("it may go on for ever")


def test_a_byte_now_and_then_keeps_no_body_here() -> None:
    trickle = body([], _Room(ROOM), pause_s=0.001, patience_s=0.05)
    assert asyncio.run(refused(trickle)) == 408


def test_a_body_that_says_nothing_is_refused() -> None:
    assert asyncio.run(refused(body([], _Room(ROOM), pause_s=60.0, patience_s=0.01))) == 408


def test_a_body_that_is_too_long_is_refused_and_takes_no_room() -> None:
    room = _Room(ROOM)
    long = body([b"x" * (ROOM + 1)], room)
    assert asyncio.run(refused(long)) == 413
    assert room.take(ROOM)


@pytest.mark.parametrize("held", [0, 400])
def test_room_is_given_back_once(held: int) -> None:
    async def main() -> None:
        room = _Room(ROOM)
        assert room.take(held)
        first, second = body([b"x" * 600], room), body([b"y" * 600], room)
        await first.receive()
        assert await refused(second) == 503
        for each in (first, second, first):
            each.drop()
        assert room.take(ROOM - held)
        assert not room.take(1)

    asyncio.run(main())
