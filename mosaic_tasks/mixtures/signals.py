"""What an answer tells while it is written, and by its tokens' probabilities.

A streamed answer is complete when what stands behind it proves it, so that `12` is never read of `125`:

- in JSON with which the text begins, the value of the form's `field` (or `answer`) at its own place, once it is closed
  and a bracket or another key follows. The same key at another depth, in a string, or in JSON amid prose, is a step on
  the way, or quoted;
- without JSON, a line that states a number or a choice and nothing else (`#### 18`, `The answer is 18.`), or a
  `\\boxed{}`, once the line is over. What is supposed (`If the answer is 5, then`) is not stated. In JSON such lines
  are reasoning.

What a model thinks before it answers, in tags, is not read. It may go on and take its answer back; who cuts it off does
not hear that. Texts, code and whole documents are never complete before their end, unless they stand in a field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from mosaic_queues.errors import EngineRefused
from mosaic_tasks.engines.reasoning import ReasoningReader
from mosaic_tasks.engines.schema import mismatch
from mosaic_tasks.mixtures.answers import FIELD, read
from mosaic_tasks.mixtures.fields import ABSENT, bare_value, read_value
from mosaic_tasks.mixtures.numerals import NUMBER, plain
from mosaic_tasks.mixtures.statements import asserted, last_boxed
from mosaic_tasks.mixtures.values import Answer, AnswerForm

_LEAST_LOGPROB = -20.0
"""What is less likely counts as this: engines write -inf, or numbers that stand for it."""
_TAIL = 0.1
_MIN_TAIL = 5
_MAX_FENCE = 64
_MAX_LINE = 4_000

_IS_JSON = re.compile(r"""\{\s*+(?:["']|\Z)|```""")
_STOPS = re.compile(r"""["'\\{}\[\]]""")
_BARE_END = re.compile(r'["\n\]}]')
_FENCE = re.compile(r"```[\w ]*+\s*+")
_QUOTES = frozenset("\"'")


def signals(logprobs: Sequence[float]) -> dict[str, float]:
    """Features of an answer by its tokens' log-probabilities, for a calibration; nothing where there are none.

    - `logprob_mean`: of all tokens, the length-normalised likelihood (Malinin and Gales 2021, Uncertainty estimation in
      autoregressive structured prediction);
    - `logprob_tail`: of the least likely tenth: one token that was a guess spoils an answer (Fu et al. 2025, Deep think
      with confidence);
    - `entropy`: mean, in nats, of taking each token or any other: the least that it can be, since engines tell only
      the token that was taken.
    """
    known = sorted(max(min(value, 0.0), _LEAST_LOGPROB) for value in logprobs if not math.isnan(value))
    if not known:
        return {}
    tail = known[: max(round(len(known) * _TAIL), min(_MIN_TAIL, len(known)))]
    return {
        "logprob_mean": math.fsum(known) / len(known),
        "logprob_tail": math.fsum(tail) / len(tail),
        "entropy": math.fsum(map(_entropy, known)) / len(known),
    }


def _entropy(logprob: float) -> float:
    other = -math.expm1(logprob)
    return -math.exp(logprob) * logprob - (other * math.log(other) if other > 0 else 0.0)


class AnswerReader:
    """Reads an answer piece by piece until it is complete; each character is looked at a few times at most.

    Attributes:
        answer: once it is complete.
    """

    def __init__(self, form: AnswerForm, schema: dict[str, Any] | None = None) -> None:
        """Waits for an answer in this form.

        Args:
            schema: of the whole answer; a field that does not fit its part of it is passed over.
        """
        self.answer: Answer | None = None
        self._has_begun = False  # white space before, between thoughts, says nothing
        self._reasoning = ReasoningReader()
        in_line = not form.field and form.form in ("number", "choice", "span")
        self._lines = _Lines(form) if in_line else None
        self._fields = _Fields(form, schema) if in_line or form.field else None

    def feed(self, piece: str) -> Answer | None:
        """Reads on; the answer, once it is complete."""
        if self.answer is not None or not (self._has_begun or piece.strip()):
            return self.answer
        piece = self._reasoning.feed(piece).answer
        self._has_begun = self._has_begun or bool(piece)
        if self._fields is not None:
            self.answer = self._fields.feed(piece)
        if self.answer is None and self._lines is not None:
            self.answer = next(self._lines.feed(piece), None)
        return self.answer


_T = TypeVar("_T")
_Reading: TypeAlias = Generator[Answer | None, None, _T]
"""Gives each answer that is complete, and None where it needs more text."""


class _Broken(Exception):
    """What was read is no JSON, so that nothing in it is certain."""


class _Fields:
    """Goes down to a field through the objects with which the text begins; reads the values there that are closed."""

    def __init__(self, form: AnswerForm, schema: dict[str, Any] | None) -> None:
        path = form.field or FIELD
        self._form = form
        self._schema = _part_schema(schema, path)
        self._text = ""  # what is not read yet
        self._reading = self._documents(path.split("."))

    def feed(self, piece: str) -> Answer | None:
        """Reads on; the next answer that is complete."""
        self._text += piece
        return next(self._reading)

    def _documents(self, path: list[str]) -> _Reading[None]:
        try:
            while True:
                yield from self._fences()
                yield from self._take("{")
                yield from self._object(path)
        except _Broken:
            pass
        while True:
            self._text = ""
            yield None

    def _fences(self) -> _Reading[None]:
        while (yield from self._next()) == "`":
            line, end, rest = self._text.partition("\n")
            if len(line) > _MAX_FENCE or (end and not _FENCE.fullmatch(line)):
                raise _Broken
            if end:
                self._text = rest
            else:
                yield None

    def _object(self, path: list[str]) -> _Reading[None]:
        """All of an object that is open, with what stands at `path` in it."""
        while (yield from self._next()) != "}":
            if (yield from self._next()) not in _QUOTES:
                raise _Broken
            key = read_value((yield from self._value()).text, 0)
            yield from self._take(":")
            is_on_way = len(path) > 1 and key == path[0] and (yield from self._next()) == "{"
            if is_on_way:
                yield from self._take("{")
                yield from self._object(path[1:])
                yield from self._separator()
            else:
                yield from self._member(is_field=[key] == path)
        yield from self._take("}")

    def _member(self, *, is_field: bool) -> _Reading[None]:
        """A value that is read as a whole; where it is the field's, its answer."""
        value = yield from self._value()
        yield from self._separator(is_passed=value.is_bare and value.text.rstrip().endswith(","))
        answer = self._answer(value) if is_field else None
        if answer is not None:
            yield answer

    def _next(self) -> _Reading[str]:
        """The next character that is no white space, which is left where it is."""
        while not (text := self._text.lstrip()):
            self._text = ""
            yield None
        self._text = text
        return text[0]

    def _take(self, mark: str) -> _Reading[None]:
        if (yield from self._next()) != mark:
            raise _Broken
        self._text = self._text[1:]

    def _value(self) -> _Reading[_Value]:
        value = _Value()
        while True:
            self._text = value.feed(self._text)
            if value.is_closed:
                return value
            yield None

    def _separator(self, *, is_passed: bool = False) -> _Reading[None]:
        """Goes on to the next key, or the end of the object; either proves that the value before it is over."""
        if (yield from self._next()) == "," and not is_passed:
            yield from self._take(",")
            is_passed = True
        mark = yield from self._next()
        if mark != "}" and not (is_passed and mark in _QUOTES):
            raise _Broken

    def _answer(self, value: _Value) -> Answer | None:
        """What a value says."""
        said = bare_value(value.text) if value.is_bare else read_value(value.text, 0)
        if said is ABSENT or (self._schema is not None and mismatch(said, self._schema) is not None):
            return None
        return read(said, self._form)


class _Value:
    """A JSON value, read until it is closed.

    Attributes:
        is_closed: it is complete.
        is_bare: it is neither a string nor a container, and ends before what cannot belong to it.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self.is_bare = False
        self._parts: list[str] = []
        self._quote = ""  # of the string that is open
        self._depth = 0
        self._escaped = False

    @property
    def text(self) -> str:
        """All of it, as it was written."""
        return "".join(self._parts)

    def feed(self, text: str) -> str:
        """Reads on; returns what stands behind the value, nothing while it is open."""
        if not self._parts:
            text = text.lstrip()
            if not text:
                return ""
            self.is_bare = text[0] not in "\"'{["
        end = self._bare_end(text) if self.is_bare else self._end(text)
        self._parts.append(text[:end])
        return text[end:]

    def _bare_end(self, text: str) -> int:
        found = _BARE_END.search(text)
        self.is_closed = found is not None
        return len(text) if found is None else found.start()

    def _end(self, text: str) -> int:
        place = int(self._escaped)
        self._escaped = False
        while (found := _STOPS.search(text, place)) is not None:
            place = found.end()
            self._stop(found[0])
            if self._escaped:
                if place == len(text):
                    return place
                place, self._escaped = place + 1, False
            if self.is_closed:
                return place
        return len(text)

    def _stop(self, mark: str) -> None:
        """Takes a mark into account."""
        if self._quote:
            self._escaped = mark == "\\"
            self._quote = "" if mark == self._quote else self._quote
            self.is_closed = not self._quote and not self._depth
        elif mark == '"' or (mark == "'" and not self._depth):
            self._quote = mark
        elif mark in "{[":
            self._depth += 1
        elif mark in "}]":
            self._depth -= 1
            self.is_closed = not self._depth


class _Lines:
    """Finds the lines of prose that are over and state an answer."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._parts: list[str] = []
        self._is_json = False

    def feed(self, piece: str) -> Iterator[Answer]:
        """Reads on; each answer that is complete."""
        *lines, rest = piece.split("\n")
        for line in lines:
            yield from self._answers("".join((*self._parts, line)))
            self._parts.clear()
        if rest:
            self._parts.append(rest)

    def _answers(self, line: str) -> Iterator[Answer]:
        self._is_json = self._is_json or _IS_JSON.search(line) is not None
        stated = None if self._is_json or len(line) > _MAX_LINE else asserted(line)
        if stated is None:
            return
        answer = read(stated, self._form)
        if answer is not None and (last_boxed(line) is not None or _is_all(stated, answer, self._form)):
            yield answer


def _is_all(stated: str, answer: Answer, form: AnswerForm) -> bool:
    """Whether the line says nothing before the answer, and no second one behind it."""
    cleaned = plain(stated)
    if form.form == "number":
        numbers = list(NUMBER.finditer(cleaned))
        return len(numbers) == 1 and not re.search(r"\w", cleaned[: numbers[0].start()])
    words = re.findall(r"\w++", cleaned.casefold())
    return form.form == "choice" and words[:1] == re.findall(r"\w++", answer.key)[:1]


def _part_schema(schema: dict[str, Any] | None, path: str) -> dict[str, Any] | None:
    """The schema of the field, with its definitions; None where the schema does not tell it."""
    part: Any = schema
    for step in path.split("."):
        part = part.get("properties", {}).get(step) if isinstance(part, dict) else None
    if not isinstance(part, dict):
        return None
    found = {"$defs": (schema or {}).get("$defs", {}), **part}
    try:
        mismatch(None, found)
    except EngineRefused:
        return None  # it refers to other parts of the whole, by which the whole is checked in the end
    return found


__all__ = ["AnswerReader", "signals"]
