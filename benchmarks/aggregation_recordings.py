"""Recorded answers of many models to the same questions: read, compared with what is right, split into two parts."""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from processes import BenchmarkError

from mosaic_tasks.mixtures.agreement import groups
from mosaic_tasks.mixtures.answers import FIELD, normalise
from mosaic_tasks.mixtures.fields import field_pattern
from mosaic_tasks.mixtures.signals import AnswerReader
from mosaic_tasks.mixtures.values import Answer, AnswerForm, Form

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "answers" / "gsm8k-dev.jsonl.gz"
ANSWERS = Path(os.environ.get("ANSWERS", SHARED))
"""The recordings; the variable `ANSWERS` names another file of the same shape."""
CHARS = 4
"""Of a token, about."""
MOST = 0.95
"""So many of the right answers must be of a form for all of them to be of it."""
SPAN_WORDS = 8
NUMBER_CHARS = 40
_PROGRAM = re.compile(r"(?m)^\s*(?:def|class|import|from|return|for|while)\b.*\n")
_ENDS = re.compile(r"(?:\s*(?:</s>|<\|eot_id\|>|<\|im_end\|>|<\|end\|>|<end_of_turn>|<eos>))+\s*$")
"""What tells a model's end: some recordings have it, hundreds of times, and no engine gives it out."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a model answered to a question.

    Attributes:
        answer: of the whole text; None: it cannot be read.
        tokens: of the whole text.
        early: the answer as it is read from the stream, as soon as it is complete.
        early_tokens: that are written by then.
    """

    text: str
    answer: Answer | None
    right: bool
    tokens: float
    early: Answer | None
    early_right: bool
    early_tokens: float


@dataclass(frozen=True)
class Question:
    """One question, its right answer, and what every model said to it."""

    id: str
    question: str
    gold: Answer
    said: Mapping[str, Said]

    def is_right(self, answer: Answer | None) -> bool:
        """Whether an answer that a model gave is right."""
        return answer is not None and answer.key in self.right_keys

    @cached_property
    def right_keys(self) -> frozenset[str]:
        """Of the right ones among the models' answers."""
        read = [
            pair
            for said in self.said.values()
            for pair in ((said.answer, said.right), (said.early, said.early_right))
        ]
        return frozenset(answer.key for answer, right in read if answer is not None and right)


@dataclass(frozen=True)
class Recordings:
    """A file of them. `models`: those that answered every question."""

    form: AnswerForm
    models: Sequence[str]
    questions: Sequence[Question]


def read(path: Path = ANSWERS, *, form: str = "auto") -> Recordings:
    """Reads a file of JSON lines, gzipped or not: `id`, `question`, `gold`, `outputs` by model.

    Args:
        form: how answers are compared; `auto`: told by the right ones.

    Raises:
        BenchmarkError: there is no such file or form, or a line is none of these.
    """
    rows = _rows(path)
    golds = [_text(row["gold"]) for row in rows]
    if form not in ("auto", *get_args(Form)):
        raise BenchmarkError(f"no form of answers is called {form!r}; name auto, {', '.join(get_args(Form))}")
    compared = _compared(form, golds, rows)
    models = [name for name in rows[0]["outputs"] if all(name in row["outputs"] for row in rows)]
    questions = [_question(row, gold, models, compared) for row, gold in zip(rows, golds, strict=True)]
    return Recordings(compared, models, questions)


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise BenchmarkError(f"there are no recorded answers in {path}; ANSWERS=FILE names others")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
        rows = [
            _row(line, f"{path}, line {number}") for number, line in enumerate(file, start=1) if line.strip()
        ]
    if not rows:
        raise BenchmarkError(f"{path} is empty; it needs a line for each question")
    return rows


def _row(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise BenchmarkError(f"{place}: {error}; each line is a JSON object") from None
    if missing := {"id", "question", "gold", "outputs"} - (row.keys() if isinstance(row, dict) else set()):
        raise BenchmarkError(f"{place}: no {', '.join(sorted(missing))}")
    return row  # type: ignore[no-any-return]


def _text(gold: Any) -> str:
    return gold if isinstance(gold, str) else json.dumps(gold)


def form_of(golds: Sequence[str]) -> Form:
    """The form that right answers have; the first that fits nearly all of them."""
    fits: Mapping[Form, Callable[[str], object]] = {
        "choice": lambda gold: re.fullmatch(r"\(?[A-J]\)?\.?", gold.strip()),
        "number": lambda gold: len(gold) < NUMBER_CHARS and normalise(gold, AnswerForm(form="number")),
        "code": _is_code,
        "span": lambda gold: len(gold.split()) <= SPAN_WORDS,
    }
    for form, fit in fits.items():
        if sum(bool(fit(gold)) for gold in golds) >= MOST * len(golds):
            return form
    return "text"


def _is_code(gold: str) -> bool:
    """Whether it is what a program prints, or a program."""
    try:
        ast.literal_eval(gold.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return gold.strip()[:1] in ("{", "[") or _PROGRAM.search(gold) is not None
    return True


def _compared(form: str, golds: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> AnswerForm:
    """The form; of JSON and code, which may be the whole text, the field that answers have where most have one."""
    found = form_of(golds) if form == "auto" else form
    outputs = [output or "" for row in rows for output in row["outputs"].values()]
    is_field = sum(field_pattern(FIELD).search(output) is not None for output in outputs) > len(outputs) / 2
    return AnswerForm(form=found, field=FIELD if is_field and found in ("json", "code") else "")  # type: ignore[arg-type]


def _gold(gold: str, form: AnswerForm) -> Answer:
    """The right answer, read as a model would have written it."""
    written = json.dumps({form.field: _parsed(gold) if form.form == "json" else gold}) if form.field else gold
    return normalise(written, form) or Answer(key=gold.strip(), shown=gold.strip(), value=gold)


def _parsed(gold: str) -> Any:
    try:
        return json.loads(gold)
    except ValueError:
        raise BenchmarkError(f"the right answer {gold!r} is no JSON; name another form than json") from None


def _question(row: Mapping[str, Any], gold: str, models: Sequence[str], form: AnswerForm) -> Question:
    right = _gold(gold, form)
    said = {model: said_of(row["outputs"][model] or "", right, form) for model in models}
    return Question(str(row["id"]), str(row["question"]), right, said)


def said_of(output: str, gold: Answer, form: AnswerForm) -> Said:
    """What a text says, and from where on that is certain."""
    text = _ENDS.sub("", output)
    whole = normalise(text, form)
    end, early = _complete(text, form) or (len(text), whole)
    return Said(
        text=text,
        answer=whole,
        right=is_same(whole, gold, form),
        tokens=len(text) / CHARS,
        early=early,
        early_right=is_same(early, gold, form),
        early_tokens=end / CHARS,
    )


def _complete(text: str, form: AnswerForm) -> tuple[int, Answer] | None:
    """The answer, and after how many characters it is complete, read a token at a time; None: only at the end."""
    reader = AnswerReader(form)
    for start in range(0, len(text), CHARS):
        if (answer := reader.feed(text[start : start + CHARS])) is not None:
            return min(start + CHARS, len(text)), answer
    return None


def is_same(answer: Answer | None, gold: Answer, form: AnswerForm) -> bool:
    """Whether an answer is the right one."""
    return answer is not None and len(groups((gold, answer), form)) == 1


def split(questions: Sequence[Question], seed: int) -> tuple[list[Question], list[Question]]:
    """One part to learn on, one to report on: by a hash of the question's id, so that order plays no part."""
    parts: tuple[list[Question], list[Question]] = ([], [])
    for question in questions:
        parts[sha256(f"{seed}:{question.id}".encode()).digest()[0] % 2].append(question)
    return parts
