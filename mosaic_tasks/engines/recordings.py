"""Recorded answers: what one holds, how files of them are read, and which of them answers a request.

A file holds one `Recording` a line, as JSON; a directory stands for its files `*.jsonl` together. What was read is
kept per process until the file changes: as lines, since a decoded recording with deltas takes ten times the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
from rapidfuzz import process

from mosaic_queues.errors import EngineRefused
from mosaic_tasks.engines.protocol import EngineRequest, FinishReason, asked

KEY_LABEL = "replay"
"""The label in a request's metadata that names the recording."""

_SHOWN = 80
_NEAREST = 3
_TAIL_CHARS = 16

Seconds = Annotated[float, msgspec.Meta(ge=0)]
PerSecond = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server counted."""

    input_tokens: Count
    output_tokens: Count


class Recording(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A recorded answer.

    Attributes:
        text: the whole answer.
        key: answers requests whose metadata say `replay: <key>`.
        match: answers requests whose last user message holds all of these.
        first_token_s: from the request to the first token.
        tokens_per_s: from then on; None: all at once.
        prefill_tokens_per_s: delays the first token by the time that reading the input takes; None: not at all.
        deltas: seconds since the request, and the text that came then; stand instead of the two figures above.
        finish_reason: why the answer ended.
        usage: tokens as they were counted; None: counted by approximation.
        model: which one answered; for people.
    """

    text: str
    key: str = ""
    match: tuple[str, ...] = ()
    first_token_s: Seconds = 0.0
    tokens_per_s: PerSecond | None = None
    prefill_tokens_per_s: PerSecond | None = None
    deltas: tuple[tuple[Seconds, str], ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Tokens | None = None
    model: str = ""

    def __post_init__(self) -> None:
        if not self.key and not self.match:
            raise ValueError("neither `key` nor `match` says what it answers")
        if not self.deltas:
            return
        if "".join(text for _, text in self.deltas) != self.text:
            raise ValueError("`deltas` do not make up `text`")
        if any(later < earlier for (earlier, _), (later, _) in pairwise(self.deltas)):
            raise ValueError("the times of `deltas` go back")


class _Line(msgspec.Struct, frozen=True):
    """A recording as it stands in its file, with what it is found by."""

    number: int
    key: str
    match: tuple[str, ...]
    json: bytes

    @property
    def length(self) -> int:
        """How specific its match is, in characters."""
        return sum(map(len, self.match))

    @property
    def tail(self) -> str:
        """The end of its longest substring; empty where that is short."""
        longest = max(self.match, key=len)
        return longest[-_TAIL_CHARS:] if len(longest) >= _TAIL_CHARS else ""


class _Shelf:
    """The recordings of one version of a file.

    A match is tried on the prompts alone that hold its tail, so that ten thousand of them cost no more than ten.
    """

    def __init__(self, version: tuple[int, int], lines: Sequence[_Line]) -> None:
        self.version = version
        self.lines = lines
        self._by_key: dict[str, list[_Line]] = {}
        self._by_tail: dict[str, list[_Line]] = {}
        for line in lines:
            if line.key:
                self._by_key.setdefault(line.key, []).append(line)
            if line.match:
                self._by_tail.setdefault(line.tail, []).append(line)

    def named(self, key: str) -> Sequence[_Line]:
        return self._by_key.get(key, ())

    def fitting(self, prompt: str) -> list[_Line]:
        tails = {"", *(prompt[place : place + _TAIL_CHARS] for place in range(len(prompt)))}
        tried = (line for tail in self._by_tail.keys() & tails for line in self._by_tail[tail])
        fitting = [line for line in tried if all(part in prompt for part in line.match)]
        return sorted(fitting, key=lambda line: line.number)


_decoder = msgspec.json.Decoder(Recording)
_shelves: dict[Path, _Shelf] = {}
_lock = threading.Lock()


def find(name: str, request: EngineRequest) -> Recording:
    """The recording in the file or directory `name` that answers `request`; `request.seed` chooses among equals.

    Raises:
        EngineRefused: there is none, or the files cannot be read.
    """
    path = Path(name).expanduser().absolute()
    shelves = _opened(path)
    key, prompt = request.metadata.get(KEY_LABEL), asked(request.messages)
    if key is None:
        samples = _fitting(shelves, prompt)
    else:
        samples = [line for shelf in shelves for line in shelf.named(key)]
    if not samples:
        raise EngineRefused(_no_recording(path, shelves, key, prompt))
    return _decoder.decode(samples[(request.seed or 0) % len(samples)].json)


def count_recordings(name: str) -> int:
    """How many recordings the file or directory `name` holds.

    Raises:
        EngineRefused: it cannot be read.
    """
    return sum(len(shelf.lines) for shelf in _opened(Path(name).expanduser().absolute()))


def _fitting(shelves: Sequence[_Shelf], prompt: str) -> list[_Line]:
    """The recordings whose `match` fits, those alone that are the most specific."""
    lines = [line for shelf in shelves for line in shelf.fitting(prompt)]
    longest = max((line.length for line in lines), default=0)
    return [line for line in lines if line.length == longest]


def _opened(path: Path) -> list[_Shelf]:
    """The shelves of all files of `path`; the lock has each of them read once."""
    try:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        with _lock:
            return [_shelf(file) for file in files]
    except OSError as error:
        raise EngineRefused(
            f"the recordings {str(path)!r} cannot be read: {error.strerror or error}; "
            "name a file or a directory of *.jsonl files after 'replay:'"
        ) from error


def _shelf(file: Path) -> _Shelf:
    stat = file.stat()
    version = (stat.st_mtime_ns, stat.st_size)
    shelf = _shelves.get(file)
    if shelf is None or shelf.version != version:
        lines = enumerate(file.read_bytes().split(b"\n"), 1)
        shelf = _Shelf(version, [_line(file, number, line) for number, line in lines if line.strip()])
        _shelves[file] = shelf
    return shelf


def _line(file: Path, number: int, json: bytes) -> _Line:
    try:
        recording = _decoder.decode(json)
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: no UTF-8, in older msgspec
        raise EngineRefused(f"{file}:{number}: no recording: {error}; correct or delete the line") from None
    return _Line(number, recording.key, recording.match, json)


def _no_recording(path: Path, shelves: Sequence[_Shelf], key: str | None, prompt: str) -> str:
    begin = prompt if len(prompt) <= _SHOWN else f"{prompt[:_SHOWN]}..."
    lines = [line for shelf in shelves for line in shelf.lines]
    if not lines:
        return f"{str(path)!r} holds no recording that could answer the prompt {begin!r}; record one"
    wanted = "matches" if key is None else f"has the key {key!r}, asked for by"
    near = _nearest(lines, key, prompt)
    hint = f"; nearest: {', '.join(map(repr, near))}" if near else ""
    return (
        f"no recording in {str(path)!r} {wanted} the prompt {begin!r}{hint}; record one, or correct the other"
    )


def _nearest(lines: Sequence[_Line], key: str | None, prompt: str) -> list[str]:
    """What the recordings are called, by key or else by match, that would almost have answered."""
    names = {line.key: line.key for line in lines if line.key}
    if key is None:
        names = {line.key or " + ".join(line.match): " ".join(line.match) for line in lines if line.match}
    wanted = prompt[:_SHOWN] if key is None else key
    return [name for _, _, name in process.extract(wanted, names, limit=_NEAREST)]
