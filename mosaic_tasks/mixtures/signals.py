"""What an answer tells while it is written, and by its tokens' probabilities.

A streamed answer is complete when what stands behind it proves it, so that `12` is never read of `125`:

- in JSON, the value of the form's `field` (or `answer`), once it is closed and a bracket or another key follows;
- without JSON, a line that states a number or a choice and nothing else (`#### 18`, `The answer is 18.`), or a
  `\\boxed{}`, once the line is over. In JSON such lines are reasoning.

A model may go on and take it back; who cuts it off does not hear that. Texts, code and whole documents are never
complete before their end, unless they stand in a field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from mosaic_queues.errors import EngineRefused
from mosaic_tasks.engines.schema import mismatch
from mosaic_tasks.mixtures.answers import FIELD, read
from mosaic_tasks.mixtures.fields import ABSENT, field_pattern, read_value
from mosaic_tasks.mixtures.numerals import NUMBER, plain
from mosaic_tasks.mixtures.statements import last_boxed, statements
from mosaic_tasks.mixtures.values import Answer, AnswerForm

_LEAST_LOGPROB = -20.0
"""What is less likely counts as this: engines write -inf, or numbers that stand for it."""
_TAIL = 0.1
_MIN_TAIL = 5
_MAX_SPACE = 64
"""Characters of white space between a key and its colon."""
_MAX_LINE = 4_000

_IS_JSON = re.compile(r"""\{\s*+(?:["']|\Z)|```""")
_STOPS = re.compile(r"""["'\\{}\[\]]""")
_BARE_END = re.compile(r'["\n\]}]')
_BEHIND = re.compile(r"[\s,]*+(?P<next>[^\s,])")
_PROVES = frozenset("}]\"'`")


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
        in_line = not form.field and form.form in ("number", "choice", "span")
        self._lines = _Lines(form) if in_line else None
        self._fields = _Fields(form, schema) if in_line or form.field else None

    def feed(self, piece: str) -> Answer | None:
        """Reads on; the answer, once it is complete."""
        if self.answer is None and self._fields is not None:
            self.answer = next(self._fields.feed(piece), None)
        if self.answer is None and self._lines is not None:
            self.answer = next(self._lines.feed(piece), None)
        return self.answer


class _Fields:
    """Finds the values of a field that are closed, with the answers in them."""

    def __init__(self, form: AnswerForm, schema: dict[str, Any] | None) -> None:
        name = form.field.rpartition(".")[2] or FIELD
        self._form = form
        self._schema = _part_schema(schema, form.field or FIELD)
        self._key = field_pattern(name)
        self._reserve = len(name) + _MAX_SPACE
        self._text = ""  # where the key may have begun, or what stands behind a value
        self._value: _Value | None = None

    def feed(self, piece: str) -> Iterator[Answer]:
        """Reads on; each answer that is complete."""
        self._text += piece
        while self._text:
            if self._value is None and not self._seek():
                return
            assert self._value is not None  # `_seek` found where it begins
            if not self._value.is_closed and not self._read(self._value):
                return
            behind = _BEHIND.match(self._text)
            if behind is None and not self._value.is_bare:
                self._text = ""  # white space alone, which proves nothing
                return
            answer = self._answer(self._value, behind["next"] if behind else "")
            self._value = None
            if answer is not None:
                yield answer

    def _seek(self) -> bool:
        """Goes to what stands behind the next key; whether there is one."""
        found = self._key.search(self._text)
        if found is None:
            self._text = self._text[-self._reserve :]
            return False
        self._text = self._text[found.end() :]
        self._value = _Value()
        return True

    def _read(self, value: _Value) -> bool:
        """Reads on in the value; whether it is closed."""
        self._text = value.feed(self._text)
        return value.is_closed

    def _answer(self, value: _Value, following: str) -> Answer | None:
        """What the value says, where what follows proves that it is over."""
        if not value.is_bare and following not in _PROVES:
            return None
        said = read_value(value.text, 0)
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
        if self._is_json or len(line) > _MAX_LINE:
            return
        boxed = last_boxed(line)
        for stated in statements(line) if boxed is None else (boxed,):
            answer = read(stated, self._form)
            if answer is not None and (boxed is not None or _is_all(stated, answer, self._form)):
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
