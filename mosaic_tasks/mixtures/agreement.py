"""Which answers say the same: those with equal keys, numbers within the tolerance, texts that are alike.

Groups do not depend on the order in which answers came. Where keys differ, the answer that most others are close to
takes those that are close to it, then the next one of the rest (star clustering; Aslam, Pelekhov and Rus 2004, The star
clustering algorithm): so every member is close to the one that stands for its group, and no chain of small steps makes
opposites agree.

Texts whose numbers differ, or of which one denies more than the other, never say the same, however alike their letters
are: `it rises by 3 %` and `it rises by 5 %`, `it is safe` and `it is not safe`.

Percent. `75%` is 75 (see `numerals`). Where somebody wrote 0.75, and nobody 75 without the sign, it says the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from rapidfuzz.fuzz import ratio

from mosaic_tasks.mixtures.values import Answer, AnswerForm

Similarity = Callable[[Sequence[str], float], list[list[float]]]
"""Of each text to each, 0 to 1; what is below the second argument may be 0."""

_MAX_COMPARED = 800
_PERCENT = re.compile(r"(?:%|percent|per cent)\W*\Z", re.IGNORECASE)
_WORD = re.compile(r"\d++(?:[.,]\d++)*+|[^\W\d]++(?:[’'][^\W\d]++)?+")
_DENIALS = frozenset(
    {"no", "not", "never", "none", "nor", "neither", "without", "cannot", "false", "incorrect"}
)


class Group(NamedTuple):
    """Answers that say the same.

    Attributes:
        answer: the one that stands for them.
        members: the places of all of them, in their order.
    """

    answer: Answer
    members: tuple[int, ...]


def groups(
    answers: Sequence[Answer | None], form: AnswerForm, *, similarity: Similarity | None = None
) -> list[Group]:
    """The answers in groups, the one that was said first at the front; those that are None are in none.

    Args:
        similarity: of texts; default: `lexical`.
    """
    by_key: dict[str, list[int]] = {}
    for place, answer in enumerate(answers):
        if answer is not None:
            by_key.setdefault(answer.key, []).append(place)
    firsts = {key: answer for key, (place, *_) in by_key.items() if (answer := answers[place]) is not None}
    if len(by_key) > 1:
        by_key = _joined(by_key, firsts, answers, form, similarity or lexical)
    found = [Group(firsts[key], tuple(sorted(members))) for key, members in by_key.items()]
    return sorted(found, key=lambda group: group.members[0])


def lexical(texts: Sequence[str], least: float) -> list[list[float]]:
    """Similarity by the letters of the sorted words: what is needed to turn one into the other.

    Of long texts the beginning and the end are compared.
    """
    bags = [_bag(text) for text in texts]
    return _symmetric(
        len(bags), lambda one, other: ratio(bags[one], bags[other], score_cutoff=100 * least) / 100
    )


def _joined(
    by_key: dict[str, list[int]],
    firsts: dict[str, Answer],
    answers: Sequence[Answer | None],
    form: AnswerForm,
    similarity: Similarity,
) -> dict[str, list[int]]:
    """The places by the key of the answer that stands for them."""
    if form.form == "text":
        return _around(by_key, _alike(firsts, form.similarity, similarity))
    if form.form != "number":
        return by_key
    by_key = _without_percent(by_key, answers)
    return _around(by_key, _near(by_key, form.tolerance)) if form.tolerance > 0 else by_key


def _around(by_key: dict[str, list[int]], close: dict[str, set[str]]) -> dict[str, list[int]]:
    """Star clusters; `close` holds for each key those that are close to it, itself included."""
    votes = {key: sum(len(by_key[other]) for other in near) for key, near in close.items()}
    left, found = dict(by_key), {}
    for key in sorted(by_key, key=lambda key: (-votes[key], -len(by_key[key]), key)):
        if key in left:
            members = [other for other in left if other in close[key]]
            found[key] = [place for other in members for place in left.pop(other)]
    return found


def _near(by_key: dict[str, list[int]], tolerance: float) -> dict[str, set[str]]:
    """Which numbers are within the tolerance of each; a formula is near to itself alone."""
    values = {key: float(Fraction(key)) for key in by_key if not key.startswith("=")}
    close = {key: {key} for key in by_key}
    for key, value in values.items():
        close[key] |= {o for o, v in values.items() if abs(v - value) <= tolerance * max(abs(v), abs(value))}
    return close


def _without_percent(by_key: dict[str, list[int]], answers: Sequence[Answer | None]) -> dict[str, list[int]]:
    """Numbers that all have a percent sign joined to the fraction that they may mean, where others wrote that."""
    found = dict(by_key)
    signed = [key for key, places in by_key.items() if all(_has_percent(answers[place]) for place in places)]
    for key in signed:
        meant = "" if key.startswith("=") else str(Fraction(key) / 100)
        if meant in found and meant not in signed:
            found[meant] = [*found[meant], *found.pop(key)]
    return found


def _has_percent(answer: Answer | None) -> bool:
    return answer is not None and _PERCENT.search(answer.shown) is not None


def _alike(firsts: dict[str, Answer], least: float, similarity: Similarity) -> dict[str, set[str]]:
    """Which texts say the same as each."""
    keys = list(firsts)
    texts = [firsts[key].shown for key in keys]
    claims = [_claims(text) for text in texts]
    table = similarity(texts, least)
    return {
        key: {
            other
            for column, other in enumerate(keys)
            if row == column or (claims[row] == claims[column] and table[row][column] >= least)
        }
        for row, key in enumerate(keys)
    }


def _claims(text: str) -> tuple[frozenset[str], int]:
    """The numbers in a text, and how often it denies something."""
    words = _WORD.findall(_ends(text).casefold())
    numbers = frozenset(word for word in words if word[0].isdigit())
    return numbers, sum(word in _DENIALS or word.endswith(("n't", "n’t")) for word in words)


def _bag(text: str) -> str:
    return " ".join(sorted(_WORD.findall(_ends(text).casefold())))


def _ends(text: str) -> str:
    """The beginning and the end of a long text, else all of it."""
    if len(text) <= _MAX_COMPARED:
        return text
    return f"{text[: _MAX_COMPARED // 2]} {text[-_MAX_COMPARED // 2 :]}"


def _symmetric(size: int, value: Callable[[int, int], float]) -> list[list[float]]:
    table = [[1.0] * size for _ in range(size)]
    for row in range(size):
        for column in range(row):
            table[row][column] = table[column][row] = value(row, column)
    return table


__all__ = ["Group", "Similarity", "groups", "lexical"]
