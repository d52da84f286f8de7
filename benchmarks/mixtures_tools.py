"""Loaded into the workers of the benchmark of mixtures: engines that note when they write, and a vote made by hand."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import aclosing
from pathlib import Path

from mixtures_notes import Note, begin, end

from mosaic_tasks.app import app
from mosaic_tasks.engines.protocol import EngineRequest, Events, TextDelta, asked
from mosaic_tasks.engines.replay import ReplayEngine
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.mixtures.answers import normalise
from mosaic_tasks.mixtures.values import AnswerForm

_MARK = re.compile(r"\[bench ([a-z]+-\d+)\]")
"""Of a run whose engines are to note what they write."""
_replayed = ReplayEngine.stream


def _stream(self: ReplayEngine, request: EngineRequest) -> Events:
    mark, events = _MARK.search(asked(request.messages)), _replayed(self, request)
    return events if mark is None else _noted(mark[1], Path(request.model).stem, events)


async def _noted(mark: str, name: str, stream: Events) -> Events:
    client, begun_s, chars = process_for(app).client, time.time(), 0
    begin(client)
    try:
        async with aclosing(stream) as events:
            async for event in events:
                chars += len(event.text) if isinstance(event, TextDelta) else 0
                yield event
    finally:
        end(client, Note(mark, name, begun_s, time.time(), chars))


ReplayEngine.stream = _stream  # type: ignore[method-assign]


def majority(answers: list[str]) -> str:
    """What most said."""
    read = [normalise(answer, AnswerForm(form="number")) for answer in answers]
    return Counter(answer.shown for answer in read if answer is not None).most_common(1)[0][0]
