"""Which fields of a streamed JSON answer are complete, told while the answer is still being written.

A field is complete when the syntax behind it proves it: the closing quote of a string, the closing bracket of
a container, and for numbers and words a comma, a bracket or white space (`12` at the end may become `123`).

Which document is read: an answer may hold prose, fences and several pieces of JSON. Reading begins at the
first `{` or `[`. What proves to be no JSON, and a document that ends without an announced field, is passed
over, and the next opening bracket is tried. The first announcement settles on its document: nothing is ever
announced from another one. Where a settled document breaks off or proves to be no JSON further on, what was
announced stays announced and nothing more comes. `parse_answer` judges whole answers and takes the longest
document that fits; it agrees wherever an answer holds one document that could be meant.

What costs: every character is read once. Behind a start that proves wrong, text is read again from the next
character on, as long as all that was read twice is not more than what was read so far (and `_SLACK`); beyond
that, from where it broke. So the whole is linear, whatever comes and however it is cut, and the cuts change
nothing about what is announced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from mosaic_tasks.definition.references import Path
from mosaic_tasks.definition.schemas import ANY, NoSuchPath, Schema, misfit, schema_at

_MAX_DEPTH = 200
_SLACK = 4096

_OPENS = re.compile(r"[{\[]")
_SPACE = re.compile(r"[ \t\n\r]*+")
_TEXT = re.compile(r'(?:[^"\\\x00-\x1f]++|\\.)*+(\\\Z)?', re.DOTALL)
_WORD = re.compile(r"[-+.0-9a-zE]*+")
_BEHIND_WORD = frozenset(" \t\n\r,]}")
_REFERENCE = re.compile(rb'"\$ref":"([^"]*)"')

_STRING, _BARE = '"', "w"
_KINDS = {mark: mark for mark in '{}[],:"'} | dict.fromkeys("-0123456789tfn", _BARE)
"""Kinds of token by their first character; numbers and words are one kind."""
_VALUE = "{[" + _STRING + _BARE

_decoder = json.JSONDecoder()


class Ready(NamedTuple):
    """A field that is complete. Values may share parts with each other: read them, do not change them."""

    path: Path
    value: Any


class FieldReader:
    """Reads an answer piece by piece and announces the fields that somebody waits for.

    Attributes:
        chars_read: characters read so far, those that were read twice counted twice.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        schema: dict[str, Any] | None = None,
        *,
        elements: Sequence[Path] = (),
    ) -> None:
        """Watches `paths`.

        Args:
            paths: the fields to announce; `()` is the whole document.
            schema: of the answer. A field is announced only when it fits the schema at its path; where the
                schema does not tell what stands there, anything fits.
            elements: arrays whose elements are announced one by one.

        Raises:
            ValueError: a path counts from the end of an array, which nobody knows before it is over.
        """
        self.chars_read = 0
        self._root = _watches(paths, elements, schema or ANY)
        self._ready: list[Ready] = []
        self._document: _Document | None = None
        self._over = False
        self._base = 0  # the place of the piece being read in the whole text
        self._start = 0  # the place of the document
        self._held: list[str] = []  # the document so far, kept while it may have to be read again
        self._read_twice = 0

    def feed(self, text: str) -> list[Ready]:
        """Reads on; returns what is complete now, each field once, in the order of completion."""
        place = 0
        while place < len(text) and not self._over:
            if self._document is None:
                place = self._seek(text, place)
            else:
                text, place = self._read(self._document, text, place)
        self._hold(text)
        ready = self._ready.copy()
        self._ready.clear()
        return ready

    def _seek(self, text: str, place: int) -> int:
        """Goes to the next place where a document may begin."""
        opening = _OPENS.search(text, place)
        end = len(text) if opening is None else opening.start()
        self.chars_read += end - place
        if opening is not None:
            self._document = _Document(self._root, self._ready)
            self._start = self._base + end
        return end

    def _read(self, document: _Document, text: str, place: int) -> tuple[str, int]:
        """Reads on in the document; returns the text to go on in, and where."""
        try:
            end = document.read(text, place)
        except _NotJson as broken:
            self.chars_read += broken.place - place
            return self._restart(document, text, broken.place)
        self.chars_read += end - place
        if document.closed:
            self._leave(document)
        return text, end

    def _leave(self, document: _Document) -> None:
        self._over = document.settled
        self._document = None
        self._held.clear()

    def _restart(self, document: _Document, text: str, broken: int) -> tuple[str, int]:
        """Where to look for a document after this one broke at `broken`."""
        far = self._base + broken
        again = far - self._start - 1
        if document.settled or self._read_twice + again > far + _SLACK:
            self._leave(document)
            return text, broken
        self._read_twice += again
        if self._held:
            text, self._base = "".join((*self._held, text)), self._start
        self._leave(document)
        return text, self._start + 1 - self._base

    def _hold(self, text: str) -> None:
        """Keeps what may have to be read again."""
        if self._document is None or self._document.settled:
            self._held.clear()
        else:
            self._held.append(text[max(0, self._start - self._base) :])
        self._base += len(text)


class _NotJson(Exception):
    """At `place` of the text stands what no JSON document has there."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class _Watch(msgspec.Struct):
    """What is awaited at one place of a document, and below it.

    Attributes:
        path: the place.
        schema: of the value there, with its `$defs`.
        announced: somebody waits for the value.
        elements: somebody waits for each element of the array.
        parts: what is awaited below, by key or index.
    """

    path: Path
    schema: Schema
    announced: bool = False
    elements: bool = False
    parts: dict[str | int, _Watch] = {}

    def reach(self, path: Path) -> _Watch:
        """The watch at `path` below this one; made where there is none."""
        watch = self
        for step in path:
            if isinstance(step, int) and step < 0:
                raise ValueError(
                    f"{path!r} counts from the end; fields are read from the front: use 0 and up"
                )
            watch = watch.parts.setdefault(step, watch.part(step))
        return watch

    def part(self, step: str | int) -> _Watch:
        """A new watch one step below."""
        return _Watch((*self.path, step), _part(self.schema, step))

    def at(self, step: str | int) -> _Watch | None:
        """What is awaited one step below."""
        watch = self.parts.get(step)
        if not self.elements or isinstance(step, str):
            return watch
        return msgspec.structs.replace(watch or self.part(step), announced=True)


def _watches(paths: Sequence[Path], elements: Sequence[Path], schema: Schema) -> _Watch:
    root = _Watch((), schema)
    for path in paths:
        root.reach(path).announced = True
    for path in elements:
        root.reach(path).elements = True
    return root


class _Frame(msgspec.Struct):
    """A container that is open.

    Attributes:
        value: the container; filled only when it is kept.
        watch: what is awaited in it.
        kept: it is part of a value that somebody waits for.
        step: the key or index being read; None where a key must come.
        part: what is awaited at `step`.
        came: the awaited keys that have come.
    """

    value: Any
    watch: _Watch | None
    kept: bool
    step: str | int | None = None
    part: _Watch | None = None
    came: set[str] = set()

    @property
    def array(self) -> bool:
        return type(self.value) is list

    def go_to(self, step: str | int) -> None:
        self.step = step
        self.part = None if self.watch is None else self.watch.at(step)

    def add(self, value: Any) -> None:
        if self.array:
            self.value.append(value)
        else:
            self.value[self.step] = value


class _Document:
    """One JSON object or array, read as it comes.

    Attributes:
        settled: a field of it was announced.
        closed: it is complete.
    """

    def __init__(self, root: _Watch, ready: list[Ready]) -> None:
        self.settled = False
        self.closed = False
        self._root = root
        self._ready = ready
        self._frames: list[_Frame] = []
        self._expected = _VALUE
        self._kind = ""  # of the token that is being read; empty between tokens
        self._parts: list[str] = []
        self._escaping = False

    def read(self, text: str, place: int) -> int:
        """Reads on from `place`; returns where the text or the document ends.

        Raises:
            _NotJson: the document is none.
        """
        while place < len(text) and not self.closed:
            if self._kind == _STRING:
                place = self._go_on_string(text, place)
            elif self._kind == _BARE:
                place = self._go_on_bare(text, place)
            else:
                place = self._begin_token(text, place)
        return place

    def _begin_token(self, text: str, place: int) -> int:
        place = _end(_SPACE, text, place)
        if place == len(text):
            return place
        kind = _KINDS.get(text[place])
        if kind is None or kind not in self._expected or len(self._frames) > _MAX_DEPTH:
            raise _NotJson(place)
        if kind in (_STRING, _BARE):
            self._kind = kind
            return place + (kind == _STRING)
        self._mark(kind)
        return place + 1

    def _go_on_string(self, text: str, place: int) -> int:
        # A backslash may be the last character of one piece, and what it escapes the first of the next.
        match = _TEXT.match(text, place + self._escaping)
        assert match is not None  # it matches nothing as well
        end = match.end()
        self._escaping = match.lastindex is not None
        self._parts.append(text[place:end])
        if end == len(text):
            return end
        if text[end] != '"':
            raise _NotJson(end)
        self._end_token(f'"{"".join(self._parts)}"', end)
        return end + 1

    def _go_on_bare(self, text: str, place: int) -> int:
        end = _end(_WORD, text, place)
        self._parts.append(text[place:end])
        if end == len(text):
            return end
        if text[end] not in _BEHIND_WORD:
            raise _NotJson(end)
        self._end_token("".join(self._parts), end)
        return end

    def _end_token(self, token: str, place: int) -> None:
        try:
            value, length = _decoder.raw_decode(token)
        except ValueError:
            raise _NotJson(place) from None
        if length != len(token):
            raise _NotJson(place)
        self._kind = ""
        self._parts.clear()
        if self._frames[-1].step is None:
            self._name(value)
        else:
            self._complete(value, self._frames[-1].part)

    def _mark(self, mark: str) -> None:
        if mark == ":":
            self._expected = _VALUE
        elif mark == ",":
            self._separate(self._frames[-1])
        elif mark in "{[":
            self._open([] if mark == "[" else {})
        else:
            frame = self._frames.pop()
            self._complete(frame.value, frame.watch)

    def _open(self, value: Any) -> None:
        outer = self._frames[-1] if self._frames else None
        watch = self._root if outer is None else outer.part
        kept = (watch is not None and watch.announced) or (outer is not None and outer.kept)
        frame = _Frame(value, watch, kept)
        self._frames.append(frame)
        self._expected = _STRING + "}"
        if frame.array:
            frame.go_to(0)
            self._expected = _VALUE + "]"

    def _separate(self, frame: _Frame) -> None:
        if isinstance(frame.step, int):
            frame.go_to(frame.step + 1)
            self._expected = _VALUE
        else:
            frame.step = None
            self._expected = _STRING

    def _name(self, key: str) -> None:
        """A key has come. Of two equal ones the last counts, so what was announced of the first is doubtful."""
        frame = self._frames[-1]
        frame.go_to(key)
        self._expected = ":"
        if frame.part is None:
            return
        if key in frame.came:
            frame.part = None
        frame.came.add(key)

    def _complete(self, value: Any, watch: _Watch | None) -> None:
        if watch is not None and watch.announced:
            self._announce(watch, value)
        if not self._frames:
            self.closed = True
            return
        frame = self._frames[-1]
        if frame.kept:
            frame.add(value)
        self._expected = ",]" if frame.array else ",}"

    def _announce(self, watch: _Watch, value: Any) -> None:
        if misfit(value, _checkable(watch.schema)) is not None:
            return
        self.settled = True
        self._ready.append(Ready(watch.path, value))


def _end(pattern: re.Pattern[str], text: str, place: int) -> int:
    match = pattern.match(text, place)
    return place if match is None else match.end()


def _part(schema: Schema, step: str | int) -> Schema:
    """The schema one step below, of all alternatives that have the step; `ANY` where the schema does not tell."""
    schema = schema_at(schema, ())
    definitions = schema.get("$defs", {})
    options = schema.get("anyOf") or schema.get("oneOf") or [schema]
    found = [part for option in options if (part := _part_of_one(option, step, definitions)) is not None]
    if not found:
        return ANY
    return {**(found[0] if len(found) == 1 else {"anyOf": found}), "$defs": definitions}


def _part_of_one(schema: Any, step: str | int, definitions: Schema) -> Schema | None:
    """The schema one step below, without its `$defs`; None where there is no such step."""
    if not isinstance(schema, dict):
        return ANY
    try:
        part = schema_at({**schema, "$defs": definitions}, (step,))
    except NoSuchPath:
        return None
    return {key: value for key, value in part.items() if key != "$defs"}


def _checkable(schema: Schema) -> Schema:
    """The schema cut out of its document: `ANY` when it refers to more of that than its `$defs`."""
    definitions = schema.get("$defs", {})
    plain = {key: value for key, value in schema.items() if key != "$defs"}
    if b'"$ref"' not in msgspec.json.encode(plain):
        return plain
    references = _REFERENCE.findall(msgspec.json.encode(schema))
    known = all(name.decode().removeprefix("#/$defs/") in definitions for name in references)
    return schema if known else ANY


__all__ = ["FieldReader", "Ready"]
