"""Loaded into the workers of the benchmark of mixtures: engines that note when they write, and a vote made by hand."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
from redis import Redis

from mosaic_tasks.app import app
from mosaic_tasks.engines.protocol import EngineRequest, Events, TextDelta, asked
from mosaic_tasks.engines.replay import ReplayEngine
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.mixtures.answers import normalise
from mosaic_tasks.mixtures.values import AnswerForm

NOTES, STREAMS = "bench:notes", "bench:streams"
"""A list of what engines wrote, and how many streams there were."""
_MARK = re.compile(r"\[bench ([a-z]+-\d+)\]")
_stream = ReplayEngine.stream


class Note(msgspec.Struct, frozen=True):
    """An engine's stream that is closed.

    Attributes:
        mark: of the run.
        name: of the model.
        begun_s, ended_s: Unix time.
        chars: that it wrote.
    """

    mark: str
    name: str
    begun_s: float
    ended_s: float
    chars: int


async def _noted(self: ReplayEngine, request: EngineRequest) -> AsyncIterator[object]:
    mark = _MARK.search(asked(request.messages))
    client, begun_s, chars = process_for(app).client, time.time(), 0
    if mark is not None:
        client.incr(STREAMS)
    try:
        async with aclosing(_stream(self, request)) as events:
            async for event in events:
                chars += len(event.text) if isinstance(event, TextDelta) else 0
                yield event
    finally:
        ended_s = time.time()
        if mark is not None:
            note = Note(mark[1], Path(request.model).stem, begun_s, ended_s, chars)
            client.rpush(NOTES, msgspec.json.encode(note))


ReplayEngine.stream = _noted  # type: ignore[assignment,method-assign]


def notes(client: Redis) -> list[Note]:
    """All of them, once no stream is open."""
    found: Sequence[bytes] = client.lrange(NOTES, 0, -1)  # type: ignore[assignment]
    return [msgspec.json.decode(raw, type=Note) for raw in found]


def majority(answers: list[str]) -> str:
    """What most said."""
    read = [normalise(answer, AnswerForm(form="number")) for answer in answers]
    return Counter(answer.shown for answer in read if answer is not None).most_common(1)[0][0]


__all__ = ["Events", "Note", "majority", "notes"]
