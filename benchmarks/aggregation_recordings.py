"""Recorded answers of many models to the same questions: read, compared with what is right, split into two parts."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from processes import BenchmarkError

from mosaic_tasks.mixtures.agreement import groups
from mosaic_tasks.mixtures.answers import normalise
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
    compared = AnswerForm(form=form_of(golds) if form == "auto" else form)  # type: ignore[arg-type]
    models = [name for name in rows[0]["outputs"] if all(name in row["outputs"] for row in rows)]
    questions = [_question(row, gold, models, compared) for row, gold in zip(rows, golds, strict=True)]
    return Recordings(compared, models, questions)


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise BenchmarkError(f"there are no recorded answers in {path}; ANSWERS=FILE names others")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
        rows = [json.loads(line) for line in file if line.strip()]
    for number, row in enumerate(rows, start=1):
        if missing := {"id", "question", "gold", "outputs"} - row.keys():
            raise BenchmarkError(f"{path}, line {number}: no {', '.join(sorted(missing))}")
    if not rows:
        raise BenchmarkError(f"{path} is empty; it needs a line for each question")
    return rows


def _text(gold: Any) -> str:
    return gold if isinstance(gold, str) else json.dumps(gold)


def form_of(golds: Sequence[str]) -> Form:
    """The form that right answers have; the first that fits nearly all of them."""
    fits: Mapping[Form, Any] = {
        "choice": lambda gold: re.fullmatch(r"\(?[A-J]\)?\.?", gold.strip()),
        "number": lambda gold: len(gold) < 40 and normalise(gold, AnswerForm(form="number")),
        "json": lambda gold: gold.strip()[:1] in ("{", "["),
        "code": lambda gold: (
            "\n" in gold.strip() and re.search(r"(?m)^\s*(?:def|class|import|return)\b", gold)
        ),
        "span": lambda gold: len(gold.split()) <= SPAN_WORDS,
    }
    for form, fit in fits.items():
        if sum(bool(fit(gold)) for gold in golds) >= MOST * len(golds):
            return form
    return "text"


def _question(row: Mapping[str, Any], gold: str, models: Sequence[str], form: AnswerForm) -> Question:
    right = normalise(gold, form) or Answer(key=gold.strip(), shown=gold.strip(), value=gold)
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
