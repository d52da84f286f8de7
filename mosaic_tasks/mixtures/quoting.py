"""Answers in a prompt: quoted, so that they are data whatever they say, and cut to what fits, by value.

They are quoted between lines that name a boundary which occurs in none of them, and which nobody can foresee who does
not know them all.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from mosaic_tasks.engines.protocol import approx_tokens
from mosaic_tasks.mixtures.values import Heard, View

LONGEST_PIECE = 400  # characters; a longer sentence is cut
CUT = " [...] "
OUTVOTED = 0.02  # value of a call whose answer does not count: its words may still help
REPEATED = 0.25  # value of a piece that a better call says too, in the same words
TELLING = 3.0  # value of a piece that names the answer
FRAME_TOKENS = 8  # lines around a quotation, beside its heading and boundary

_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")


def boundary_of(*quoted: str) -> str:
    """A word that occurs in none of the texts."""
    digest = hashlib.sha256("\0".join(quoted).encode("utf-8", "replace")).hexdigest()
    boundary = f"quoted-{digest[:16]}"
    return boundary_of(*quoted, digest) if any(boundary in text for text in quoted) else boundary


def quoted(text: str, boundary: str) -> str:
    return f"{boundary} begins\n{text}\n{boundary} ends"


def cost_of(heading: str, boundary: str) -> int:
    """Tokens that quoting a call takes, beside its text."""
    return approx_tokens(heading) + 2 * approx_tokens(boundary) + FRAME_TOKENS


def values_of(view: View) -> Mapping[int, float]:
    """What each call's words are worth: the probability that its answer is right."""
    values: dict[int, float] = defaultdict(lambda: OUTVOTED)
    for candidate in view.candidates:
        values.update(dict.fromkeys(candidate.indices, max(candidate.probability, OUTVOTED)))
    return values


class _Piece(msgspec.Struct, frozen=True):
    """A part of a call's text, `start:end`, and what it is worth."""

    index: int
    start: int
    end: int
    value: float
    tokens: int


def kept_of(
    calls: Sequence[Heard], values: Mapping[int, float], headings: Mapping[int, int], left: int
) -> dict[int, str]:
    """What is quoted of each call: its pieces by value, as many as fit; `headings` is what opening a call costs."""
    taken: dict[int, list[_Piece]] = {}
    for piece in sorted(_pieces(calls, values), key=lambda piece: -piece.value):
        cost = piece.tokens + (0 if piece.index in taken else headings[piece.index])
        if cost <= left:
            taken.setdefault(piece.index, []).append(piece)
            left -= cost
    texts = {one.index: one.text for one in calls}
    return {index: _joined(texts[index], pieces) for index, pieces in taken.items()}


def _pieces(calls: Sequence[Heard], values: Mapping[int, float]) -> Iterator[_Piece]:
    """All pieces of all calls, which are in the order of their values."""
    said: set[str] = set()
    for one in calls:
        for start, end in _spans(one.text):
            text = one.text[start:end]
            words = " ".join(text.lower().split())
            value = values[one.index] * (REPEATED if words in said else 1.0)
            value *= TELLING if one.answer is not None and one.answer.shown in text else 1.0
            said.add(words)
            yield _Piece(one.index, start, end, value, approx_tokens(text) + approx_tokens(CUT))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """The sentences and lines of a text, long ones in parts: where they begin and end."""
    ends = [match.end() for match in _BREAK.finditer(text)] + [len(text)]
    start = 0
    for end in ends:
        for place in range(start, end, LONGEST_PIECE):
            yield place, min(place + LONGEST_PIECE, end)
        start = end


def _joined(text: str, pieces: Iterable[_Piece]) -> str:
    """Pieces in their order; a mark stands where something was cut."""
    parts, place = [], 0
    for piece in sorted(pieces, key=lambda piece: piece.start):
        parts += [CUT] if piece.start > place else []
        parts.append(text[piece.start : piece.end])
        place = piece.end
    return "".join(parts) + (CUT if place < len(text) else "")


__all__ = ["boundary_of", "cost_of", "kept_of", "quoted", "values_of"]
