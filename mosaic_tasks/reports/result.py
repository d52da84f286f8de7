"""What a line of a batch came to, as it stands in the file of the results; and what all of them came to together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mosaic_queues.errors import InputError

_PIECE_BYTES = 1 << 20


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run took.

    Attributes:
        began_ms: since the epoch, as `ended_ms`.
        tokens: in and out, that engines counted; `cost_usd` is what they cost, as far as known.
    """

    began_ms: int
    ended_ms: int
    tokens: tuple[int, int]
    cost_usd: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a line came to.

    Attributes:
        line: number of the line.
        run: None where none was started.
        status: `done`, `failed` or `cancelled` as of runs; `bad`: no run could be made of it.
        output: of a run that is done.
        error: of one that is not, and of a bad line.
        key: of its item; the same key, the same work.
        usage: None where there was no run.
    """

    line: int
    run: str | None
    status: str
    key: str
    output: Any = None
    error: str = ""
    usage: Usage | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has its output."""
        return self.status == "done"


class Entry(NamedTuple):
    """A result with the words by which people know its line."""

    label: str
    result: Result


def read_results(path: Path) -> Iterator[Result]:
    """The results in a file, one at a time.

    Raises:
        InputError: it cannot be read, or holds something else.
    """
    decoder = msgspec.json.Decoder(Result)
    try:
        with path.open("rb") as lines:
            yield from map(decoder.decode, lines)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read the results {str(path)!r}: {error}") from error


def pieces_of(path: Path) -> Iterator[bytes]:
    """What is in a file, a piece at a time.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from error


@dataclass
class Totals:
    """All results together; times in milliseconds since the epoch, 0 where nothing ran."""

    lines: int = 0
    done: int = 0
    began_ms: int = 0
    ended_ms: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0

    @property
    def failed(self) -> int:
        """How many lines have no output."""
        return self.lines - self.done

    def add(self, result: Result) -> None:
        """Counts one."""
        self.lines += 1
        self.done += result.is_done
        if (usage := result.usage) is None:
            return
        self.began_ms = min(self.began_ms or usage.began_ms, usage.began_ms)
        self.ended_ms = max(self.ended_ms, usage.ended_ms)
        self.tokens_in += usage.tokens[0]
        self.tokens_out += usage.tokens[1]
        self.cost_usd += usage.cost_usd


def totals_of(results: Iterable[Result]) -> Totals:
    """Counts all."""
    totals = Totals()
    for result in results:
        totals.add(result)
    return totals
