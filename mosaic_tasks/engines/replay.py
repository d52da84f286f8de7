"""The engine that repeats recorded answers of real models, at the pace at which they came.

For tests, benchmarks and simulation: `replay:<file>` needs no key and no GPU, and answers the same each time. Its name
says what it is; nothing is generated. `docs/replay.md` tells how to write and to make recordings.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from mosaic_queues.errors import CallTimeout, ConfigurationError
from mosaic_tasks.engines.protocol import (
    CHARS_PER_TOKEN,
    Completion,
    Engine,
    EngineRequest,
    Events,
    Finished,
    FinishReason,
    TextDelta,
    Usage,
    approx_tokens,
    approx_usage,
    before_stop,
    complete,
    rest_of,
)
from mosaic_tasks.engines.recordings import Recording, Tokens, find

_PIECE = re.compile(r"\s*\S{1,7}(?!\S)|\s*\S{1,4}|\s+")
"""About a token: a short word with the white space before it, or four characters of a long one."""

Timed = list[tuple[float, str]]
"""Seconds since the request, and the text that comes then."""


class ReplayEngine:
    """The engine `replay:<file or directory of recordings>`.

    Args:
        speed: 10 replays ten times as fast, `math.inf` without waiting. Default: `MOSAIC_REPLAY_SPEED`, else 1.

    Raises:
        ConfigurationError: `MOSAIC_REPLAY_SPEED` is no speed.
    """

    name = "replay"
    continues = True

    def __init__(self, *, speed: float | None = None) -> None:
        self._speed = _configured_speed() if speed is None else speed

    async def aclose(self) -> None:
        """Holds nothing."""

    def cost_usd(self, _model: str, _usage: Usage) -> float:
        """Nothing."""
        return 0.0

    async def stream(self, request: EngineRequest) -> Events:
        """The recorded answer, piece by piece, each when it is due.

        Due times count from the start, so that neither a slow consumer nor a late timer shifts what follows.

        Raises:
            EngineRefused: no recording answers, or it does not begin with `request.prefix`.
            CallTimeout: the answer takes longer than `request.timeout_s`.
        """
        start = asyncio.get_running_loop().time()
        pieces, finished = performance(find(request.model, request), request)
        for at_s, text in pieces:
            await _wait(start, at_s / self._speed, request)
            if text:
                yield TextDelta(text)
        yield finished


def performance(recording: Recording, request: EngineRequest) -> tuple[Timed, Finished]:
    """What comes when, at speed 1, and the last event.

    Raises:
        EngineRefused: the recording does not begin with `request.prefix`.
    """
    text, reason = _limited(recording, request)
    rest = rest_of(text, request, engine=ReplayEngine.name)
    usage = _usage(recording, request, rest)
    rate = recording.prefill_tokens_per_s
    prefill_s = usage.input_tokens / rate if rate else 0.0
    pieces = _from(len(request.prefix), text, _timed(recording))
    return [(prefill_s + at_s, piece) for at_s, piece in pieces], Finished(reason, usage)


def recording(
    request: EngineRequest,
    deltas: Sequence[tuple[float, str]],
    finished: Finished,
    *,
    key: str = "",
    match: Sequence[str] = (),
) -> dict[str, Any]:
    """A line of a file of recordings, to be written as JSON.

    Args:
        request: what was asked.
        deltas: seconds since the request, and the text that came then.
        finished: the last event.
        key: see `Recording`, as for `match`; one of them is needed.
    """
    used = finished.usage
    made = Recording(
        text="".join(text for _, text in deltas),
        key=key,
        match=tuple(match),
        deltas=tuple(deltas),
        finish_reason=finished.reason,
        usage=None if used.estimated else Tokens(used.input_tokens, used.output_tokens),
        model=request.model,
    )
    return dict(msgspec.to_builtins(made))


async def record(
    path: Path, engine: Engine, request: EngineRequest, *, key: str = "", match: Sequence[str] = ()
) -> Completion:
    """Asks `engine`, and adds what it answered, and when, to the file `path`.

    Raises:
        EngineError: or one of its kinds, when there is no answer; nothing is written then.
    """
    clock = asyncio.get_running_loop().time
    start, deltas = clock(), []
    answer = await complete(engine, request, on_delta=lambda text: deltas.append((clock() - start, text)))
    line = recording(request, deltas, Finished(answer.finish_reason, answer.usage), key=key, match=match)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
    return answer


def _configured_speed() -> float:
    told = os.environ.get("MOSAIC_REPLAY_SPEED") or "1"
    try:
        speed = float("inf" if told == "max" else told)
    except ValueError:
        speed = math.nan
    if not speed >= 0:
        raise ConfigurationError(
            f"MOSAIC_REPLAY_SPEED={told!r} is no speed; write 1 for the recorded one, 10 for ten times it, "
            "0 or 'max' for no waiting"
        )
    return speed or math.inf


async def _wait(start: float, due_s: float, request: EngineRequest) -> None:
    """Until the piece is due, or time is up; others get their turn in any case."""
    timeout_s = math.inf if request.timeout_s is None else request.timeout_s
    until = start + min(due_s, timeout_s)
    await asyncio.sleep(max(0.0, until - asyncio.get_running_loop().time()))
    if due_s > timeout_s:
        raise CallTimeout(f"model {request.model!r} did not answer within {timeout_s:g} s")


def _chars_per_token(recording: Recording) -> float:
    """As long as tokens were when somebody counted them."""
    counted = recording.usage.output_tokens if recording.usage else 0
    return len(recording.text) / counted if counted > 0 and recording.text else CHARS_PER_TOKEN


def _limited(recording: Recording, request: EngineRequest) -> tuple[str, FinishReason]:
    """The text up to the first stop string and to `max_tokens`."""
    text = before_stop(recording.text, request.stop)
    if request.max_tokens is not None:
        most = int(request.max_tokens * _chars_per_token(recording))
        if len(text) > most:
            return text[:most], "length"
    return text, recording.finish_reason if len(text) == len(recording.text) else "stop"


def _usage(recording: Recording, request: EngineRequest, rest: str) -> Usage:
    """What this attempt read and wrote: as recorded, where the whole was replayed, else its share."""
    if recording.usage is None:
        return approx_usage(request, rest, cost_usd=0.0)
    if rest == recording.text:
        return Usage(recording.usage.input_tokens, recording.usage.output_tokens, 0.0)
    read = recording.usage.input_tokens + approx_tokens(request.prefix)
    return Usage(read, round(len(rest) / _chars_per_token(recording)), 0.0, estimated=True)


def _timed(recording: Recording) -> Timed:
    """The pieces of the whole answer: as recorded, or made from the two figures of its pace."""
    if timed := [(at_s, text) for at_s, text in recording.deltas if text]:
        return timed
    per_char_s = 1 / (_chars_per_token(recording) * (recording.tokens_per_s or math.inf))
    first_s = recording.first_token_s
    found = _PIECE.finditer(recording.text)
    return [(first_s + piece.start() * per_char_s, piece.group()) for piece in found] or [(first_s, "")]


def _from(start: int, text: str, pieces: Timed) -> Timed:
    """The pieces of `text[start:]`; the first of them comes when the first of all did, for it is prefilled again."""
    kept, end = [], 0
    for at_s, piece in pieces:
        place = max(start, end)
        end += len(piece)
        if more := text[place:end]:
            kept.append((at_s, more))
    first_s = pieces[0][0]
    late_s = kept[0][0] - first_s if kept else 0.0
    return [(at_s - late_s, piece) for at_s, piece in kept] or [(first_s, "")]
