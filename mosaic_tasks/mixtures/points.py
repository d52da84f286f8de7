"""What answers agree on, and what they differ in: the points that they state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from rapidfuzz import fuzz, process

from mosaic_tasks.engines.sentences import split_sentences
from mosaic_tasks.mixtures.values import Answer, AnswerForm, Heard

MOST_STATEMENTS = 40  # of one text; of longer ones the first
MOST_OPEN = 12  # open points that are put before the next round


class Point(msgspec.Struct, frozen=True):
    """One thing that answers state.

    Attributes:
        path: where it stands in a JSON answer, `a.b`; empty for an answer as a whole.
        said: what is stated, and by which calls, the most first.
    """

    path: str
    said: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def votes(self) -> int:
        """Of what most say."""
        return len(self.said[0][1])


class Built(msgspec.Struct, frozen=True):
    """What a round came to: the points that more than half of the experts agree on, and the others."""

    core: tuple[Point, ...]
    open: tuple[Point, ...]


def build(heard: Sequence[Heard], form: AnswerForm) -> Built:
    """What the answers agree on, and what they differ in: by field of JSON, by sentence of text, else as a whole."""
    counted = [one for one in heard if one.answer is not None]
    points = _text_points(counted, form) if form.form == "text" else _value_points(counted)
    core = tuple(point for point in points if 2 * point.votes > len(counted))
    differing = [point for point in points if 2 * point.votes <= len(counted)]
    return Built(core, tuple(sorted(differing, key=lambda point: -point.votes)[:MOST_OPEN]))


def _value_points(counted: Sequence[Heard]) -> list[Point]:
    """What is said at each path of the answers."""
    said: dict[str, dict[str, tuple[str, list[int]]]] = {}
    for one in counted:
        for path, key, shown in _leaves(one.answer) if one.answer else ():
            said.setdefault(path, {}).setdefault(key, (shown, []))[1].append(one.index)
    return [_point(path, values.values()) for path, values in said.items()]


def _leaves(answer: Answer) -> Iterator[tuple[str, str, str]]:
    """The paths of an answer, and what stands there: its key, and as shown; one without fields stands at no path."""
    if isinstance(answer.value, dict) and answer.value:
        yield from ((path, value, value) for path, value in _fields(answer.value, ""))
    else:
        yield "", answer.key, answer.shown


def _fields(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _fields(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, json.dumps(value, ensure_ascii=False, sort_keys=True)


def _text_points(counted: Sequence[Heard], form: AnswerForm) -> list[Point]:
    """The sentences of the answers; alike ones with the same numbers and negations are one."""
    groups: dict[tuple[str, ...], dict[str, tuple[str, list[int]]]] = {}
    for one in counted:
        for sentence in split_sentences(one.text)[:MOST_STATEMENTS]:
            alike = groups.setdefault(_turning(sentence), {})
            found = process.extractOne(
                sentence.lower(),
                alike.keys(),
                scorer=fuzz.token_sort_ratio,
                score_cutoff=100 * form.similarity,
            )
            indices = alike.setdefault(found[0] if found else sentence.lower(), (sentence, []))[1]
            indices += [] if one.index in indices else [one.index]
    return [_point("", [said]) for alike in groups.values() for said in alike.values()]


def _turning(sentence: str) -> tuple[str, ...]:
    """The words that turn a sentence into another one, however alike the rest is."""
    return tuple(re.findall(r"\d[\d.,]*(?<![.,])|\b(?:not|no|never|none)\b|n't\b", sentence.lower()))


def _point(path: str, said: Iterable[tuple[str, list[int]]]) -> Point:
    ordered = sorted(said, key=lambda one: -len(one[1]))
    return Point(path, tuple((text, tuple(indices)) for text, indices in ordered))


def stated(point: Point, said: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    """A line of a prompt: where, what, and how many say so."""
    values = "; or ".join(f"{text} ({len(indices)} said so)" for text, indices in said)
    return f"- {point.path}: {values}" if point.path else f"- {values}"


__all__ = ["Built", "Point", "build", "stated"]
