"""Server-sent events: their form, and that one event is neither cut nor held back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext

import pytest
from starlette.types import Message

from mosaic_tasks.gateway.readers import _ELSEWHERE, _SENT_BYTES, EventStream, Readers, _gathered, frame


def test_a_frame_is_one_event_whatever_its_data_hold() -> None:
    made = frame("text", {"value": "a\nb\r\n\ndata: c"}, event_id="1-0")
    assert made == b'id: 1-0\nevent: text\ndata: {"value":"a\\nb\\r\\n\\ndata: c"}\n\n'
    assert frame("over", {}).startswith(b"event: over\n")


def test_short_frames_go_together_and_long_ones_alone() -> None:
    short, long = b"x" * 100, b"y" * (_SENT_BYTES + 1)
    assert list(_gathered([short] * 3)) == [short * 3]
    assert list(_gathered([short, long, short])) == [short, long, short]
    many = list(_gathered([short] * 2_000))
    assert b"".join(many) == short * 2_000
    assert max(map(len, many)) <= _SENT_BYTES


@pytest.mark.parametrize("is_late", [True, False])
def test_a_gateway_that_ends_sends_elsewhere_also_who_comes_just_then(is_late: bool) -> None:
    async def silence() -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""

    async def main() -> list[Message]:
        sent, readers = list[Message](), Readers()

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        stream = EventStream(silence(), readers, held=nullcontext(), patience_s=60.0)
        if is_late:
            readers.stop()
        reading = asyncio.create_task(stream({"type": "http"}, receive, send))
        while not sent:
            await asyncio.sleep(0)
        readers.stop()
        await asyncio.wait_for(reading, 10)
        return sent

    start, end = asyncio.run(main())
    assert (start["status"], end["body"], end["more_body"]) == (200, _ELSEWHERE, False)
