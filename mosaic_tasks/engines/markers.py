"""Where a streamed text has come to: its sentences and headings, each told as soon as it is complete.

What a sentence is, `sentences` decides; here is only when that can be known. Whether a mark ends a
sentence depends on the next character, and on the next word where that begins with a small letter (`e.g. this`,
but `End. setup.py is next`); so a sentence is told when these have come, or at the end of its paragraph. Lists,
headings and fences are told by the beginnings of lines; fenced code holds neither sentences nor headings.
After a backtick that is not closed, no mark ends a sentence before the paragraph ends.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from mosaic_tasks.engines.sentences import split_sentences

_LOOKED_AT = 80
"""Characters before the end of a sentence that tell whether it is one."""
_NEXT = re.compile(r"[^\S\n]*+([^\s。！？]{0,200}+[。！？]*+[」』”）]*+)")
"""A word, with the marks behind it; a longer one counts as several, so that none is read again and again."""
_MAY_END = re.compile(r"(?:[^\w\s,;:]|_)\Z")
_HEADING = re.compile(r"[^\S\n]*#{1,6}[^\S\n]+(?=\S)")
_BULLET = re.compile(r"[^\S\n]*(?:[-*•+]|\d{1,3}[.)])[^\S\n]+")
_FENCE = re.compile(r"[^\S\n]*(?:```|~~~)")
_BLANK = re.compile(r"[^\S\n]*(?:\n|\Z)")
_UNKNOWN = re.compile(r"[^\S\n]*+(?:#{1,6}[^\S\n]*|`{1,2}|~{1,2}|[-*•+]|\d{1,3}[.)]?)?\Z")
"""The beginning of a line that more characters may make a heading, a fence, a list item or text."""

_Line = Literal["text", "heading", "code"]


class Marker(NamedTuple):
    """A part of a text that is complete: `text` stands at `start:end` of all text so far."""

    kind: Literal["sentence", "heading"]
    text: str
    start: int
    end: int


class MarkerReader:
    """Reads a text piece by piece; what it tells does not depend on how the text is cut."""

    def __init__(self) -> None:
        self._tail = ""  # what was not read yet, since more must be known
        self._base = 0  # its place in the whole text
        self._line: _Line | None = None  # None: a line is about to begin
        self._fenced = False
        self._part = _Part()
        self._markers: list[Marker] = []

    def feed(self, text: str) -> list[Marker]:
        """Reads on; returns what is complete now."""
        self._read(self._tail + text, last=False)
        return self._taken()

    def close(self) -> list[Marker]:
        """The text is over: returns the rest."""
        self._read(self._tail, last=True)
        self._flush()
        return self._taken()

    def _taken(self) -> list[Marker]:
        markers, self._markers = self._markers, []
        return markers

    def _read(self, text: str, *, last: bool) -> None:
        place = 0
        while place < len(text):
            step = self._begin_line if self._line is None else self._go_on
            end = step(text, place, last)
            if end is None:
                break
            place = end
        self._tail = text[place:]
        self._base += place

    def _begin_line(self, text: str, place: int, last: bool) -> int | None:
        """Where the words of the line begin; None when more must be known."""
        if not last and _UNKNOWN.match(text, place):
            return None
        fence, bullet = _FENCE.match(text, place), _BULLET.match(text, place)
        if fence or self._fenced:
            self._flush()
            self._fenced ^= bool(fence)
            self._line = "code"
            return place
        heading = _HEADING.match(text, place)
        if heading or bullet or _BLANK.match(text, place):
            self._flush()
        self._line = "heading" if heading else "text"
        return bullet.end() if bullet else place

    def _go_on(self, text: str, place: int, last: bool) -> int | None:
        """Reads to the end of a word, a line or the text; None when more must be known."""
        if self._line == "code":
            return self._skip(text, place)
        match = _NEXT.match(text, place)
        assert match is not None  # it matches nothing as well
        begin, end = match.span(1)
        if begin == end:
            return self._end_line(text, place, end)
        gap, word, whole = text[place:begin], text[begin:end], last or end < len(text)
        known = whole or not word[0].islower()
        if known and self._line == "text" and self._part.ends(gap, word):
            self._flush()
        if not whole:
            return None
        self._part.add(gap, word, self._base + begin)
        return end

    def _skip(self, text: str, place: int) -> int:
        newline = text.find("\n", place)
        if newline < 0:
            return len(text)
        self._line = None
        return newline + 1

    def _end_line(self, text: str, place: int, end: int) -> int:
        """Reads white space, and the newline behind it if there is one."""
        self._part.gap += text[place : end + 1]
        if end < len(text):
            if self._line == "heading":
                self._flush()
            self._line = None
        return min(end + 1, len(text))

    def _flush(self) -> None:
        """The sentence or heading is complete."""
        part, self._part = self._part, _Part()
        text = "".join(part.pieces)
        if text:
            kind: Literal["sentence", "heading"] = "heading" if self._line == "heading" else "sentence"
            self._markers.append(Marker(kind, text, part.start, part.start + len(text)))


class _Part:
    """A sentence or heading that is being read.

    Attributes:
        pieces: its words and the white space between them.
        start: its place in the whole text.
        gap: white space behind it.
    """

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.start = 0
        self.gap = ""
        self._before = ""
        self._ticks = 0

    def add(self, gap: str, word: str, place: int) -> None:
        """Adds a word at `place` of the whole text."""
        gap = self.gap + gap if self.pieces else ""
        self.start = self.start if self.pieces else place
        self.pieces += (gap, word)
        self.gap = ""
        self._before = (self._before + gap + word)[-_LOOKED_AT:]
        self._ticks += word.count("`")

    def ends(self, gap: str, after: str) -> bool:
        """Whether it is a whole sentence, given the word that comes after it."""
        if self._ticks % 2 or not _MAY_END.search(self._before):
            return False
        # All its pairs are closed; none of its backticks may make a pair with one of the word after it.
        before = self._before.replace("`", "|")
        alone = split_sentences(before)
        return split_sentences(before + self.gap + gap + after)[: len(alone)] == alone


__all__ = ["Marker", "MarkerReader"]
