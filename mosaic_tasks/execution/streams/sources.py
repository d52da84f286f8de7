"""What a mailbox knows of a stream that it reads: in order, from where it was, without what was taken back."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from mosaic_queues.content import ContentKind, joined
from mosaic_queues.streams import Chunk, position_of
from mosaic_tasks.engines.markers import Marker, MarkerReader

Stretch = tuple[int, int]
"""Places from the first up to before the second."""
SourceKind = Literal["text", "item", "sentence", "answers"]
"""How a stream is read: as text, as items, or as the sentences of a text, perhaps of one that whole answers make."""


class Places:
    """A set of places, kept as stretches in order; numbers that come in nearly any order make few of them."""

    def __init__(self, stretches: Iterable[Stretch] = ()) -> None:
        self.stretches = [(first, last) for first, last in stretches]

    def add(self, place: int) -> None:
        """Adds one; joins the stretches that it lies between."""
        first, last = place, place + 1
        at = bisect_right(self.stretches, (place, math.inf))
        if at and self.stretches[at - 1][1] >= place:
            at -= 1
            first, last = self.stretches[at][0], max(last, self.stretches.pop(at)[1])
        if at < len(self.stretches) and self.stretches[at][0] == last:
            last = self.stretches.pop(at)[1]
        self.stretches.insert(at, (first, last))

    def drop(self, first: float, last: float = math.inf) -> None:
        """Drops those from `first` up to before `last`."""
        self.stretches = [*self._within(0, first), *self._within(last, math.inf)]

    def _within(self, first: float, last: float) -> list[Stretch]:
        cut = [(max(a, first), min(b, last)) for a, b in self.stretches]
        return [(int(a), int(b)) for a, b in cut if a < b]

    def following(self, place: int) -> range:
        """From `place` on those that follow on each other."""
        found = [last for first, last in self.stretches if first <= place < last]
        return range(place, found[0] if found else place)


class Source:
    """What a mailbox knows of one of the streams that it reads.

    Attributes:
        cursor: the last entry whose content is taken in.
        position: how much of the content was consumed: characters or items.
        ahead: results of calls that came before their turn, or are not consumed yet. Their entries are not read again.
        end: the entry that says that the producer closed; None: it did not.
        cut_to: the producer took back what was consumed, down to this place; None: it did not.
        seen: the last entry of each reading since the last commit.
    """

    def __init__(self, stream: str, *, kind: ContentKind, cursor: str = "0-0", position: int = 0) -> None:
        self.stream, self.kind, self.cursor, self.position = stream, kind, cursor, position
        self.ahead = Places()
        self.end: str | None = None
        self.cut_to: int | None = None
        self.seen: list[str] = []
        self._content: list[tuple[str, int, Any]] = []
        """Entry, offset and content, not consumed yet; of results of calls the entry is ""."""

    def take_in(self, chunks: Sequence[Chunk], values: Mapping[str, Any]) -> None:
        """Adds what came; `values` holds the content of each chunk by its entry, but for results of calls."""
        for chunk in chunks:
            if chunk.kind == "retract":
                self._cut(chunk.offset)
                self.end = None
            elif chunk.kind == "end":
                self.end = chunk.id
            elif chunk.id in values:
                self._content.append((chunk.id, chunk.offset, values[chunk.id]))
            elif chunk.offset >= self.position:
                self.ahead.add(chunk.offset)
            self.cursor = chunk.id
        self.seen += [chunk.id for chunk in chunks[-1:]]

    def wanted(self) -> range:
        """The results of calls whose turn it is, and that are not there yet."""
        return self.ahead.following(self.position + sum(len(part) for _, part in self._contiguous()))

    def load(self, wanted: Sequence[int], results: Mapping[int, Any]) -> None:
        """Takes in results of calls by their places, but for those that are gone, for they were taken back since."""
        self._content += [("", place, [value]) for place, value in results.items()]
        for place in wanted:
            if place not in results:
                self.ahead.drop(place, place + 1)

    def _cut(self, most: int) -> None:
        """The producer takes back what lies beyond `most`."""
        self._content = [(entry, at, part[: most - at]) for entry, at, part in self._content if at < most]
        self.ahead.drop(most)
        if most < self.position:
            self.cut_to = most if self.cut_to is None else min(most, self.cut_to)

    def available(self) -> int:
        """How much can be consumed now."""
        return sum(len(part) for _, part in self._contiguous())

    def _contiguous(self) -> list[tuple[int, Any]]:
        """Offset and content that follow on the position, in order; a fan-out's items come in any."""
        place, parts = self.position, []
        for _, at, part in sorted(self._content, key=lambda each: each[1]):
            if at > place:
                break
            if at + len(part) > place:
                parts.append((place, part[place - at :]))
                place = at + len(part)
        return parts

    def consume(self, most: int) -> Any:
        """The next content, at most so much of it (0: all): a text, or a list of items."""
        pieces: list[Any] = []
        for _, part in self._contiguous():
            taken = part[: most - sum(map(len, pieces))] if most else part
            pieces.append(taken)
            if most and sum(map(len, pieces)) >= most:
                break
        consumed = sum(map(len, pieces))
        self.position += consumed
        return joined(pieces, self.kind)

    def mark(self) -> str:
        """The cursor to commit: what is behind it and not consumed is read again; so is the end, which the next session
        must know of."""
        self._content = [each for each in self._content if each[1] + len(each[2]) > self.position]
        self.ahead.drop(0, self.position)
        left = [entry for entry, _, _ in self._content if entry] + ([self.end] if self.end else [])
        return _before(min(left, key=position_of)) if left else self.cursor


class SentenceSource(Source):
    """A text that is read sentence by sentence (headings count as such): what is not complete yet stays."""

    def available(self) -> int:
        """How many sentences can be consumed now."""
        return len(self._sentences())

    def consume(self, most: int) -> Any:
        """The next sentences, at most so many (0: all)."""
        found = self._sentences()
        taken = found[:most] if most else found
        is_all = self.end is not None and len(taken) == len(found)
        self.position += len(self._text()) if is_all else taken[-1].end if taken else 0
        return [marker.text for marker in taken]

    def _text(self) -> str:
        return "".join(part for _, part in self._contiguous())

    def _sentences(self) -> list[Marker]:
        """Those that are complete; their places count from the position."""
        reader = MarkerReader()
        return reader.feed(self._text()) + (reader.close() if self.end is not None else [])


class AnswerSource(SentenceSource):
    """The same of a text whose chunks are whole answers: each ends its last sentence."""

    def _sentences(self) -> list[Marker]:
        found: list[Marker] = []
        for place, part in self._contiguous():
            reader, offset = MarkerReader(), place - self.position
            told = [*reader.feed(part), *reader.close()]
            found += [each._replace(start=each.start + offset, end=each.end + offset) for each in told]
        return found


def source_of(stream: str, kind: SourceKind) -> Source:
    """What reads a stream so."""
    match kind:
        case "sentence":
            return SentenceSource(stream, kind="text")
        case "answers":
            return AnswerSource(stream, kind="text")
        case _:
            return Source(stream, kind=kind)


def _before(entry: str) -> str:
    """The largest entry id before this one."""
    ms, number = position_of(entry)
    return f"{ms}-{number - 1}" if number else f"{ms - 1}-{2**64 - 1}"
