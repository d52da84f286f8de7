"""Which sentences of a text matter, and in which paragraphs to put them.

Extractive summarisation in its classic form. A sentence scores by its place, its length, how many of the
text's frequent words it holds (Luhn 1958), by numbers, by names, and by the words that it shares with the
question. Then sentences are taken by maximal marginal relevance (Carbonell and Goldstein 1998): the best one
that says least of what was already taken. They stand in the order of the text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from rapidfuzz import fuzz

from mosaic_tasks.engines.sentences import Block

_RELEVANCE = 0.75
"""Share of the score in marginal relevance; the rest is what it repeats."""
_SAME = 0.9
"""Sentences so alike, with the same numbers and names, say the same."""
_CANDIDATES = 400
_COMPARED = 400
_PARAGRAPH_SENTENCES = 5
_PARAGRAPH_CHARS = 600

_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NAME = re.compile(r"`[^`]+`|(?<=[\w,;:] )[A-Z][\w-]+|\b\w+_\w+\b|\b[A-Z]{2,}-\d+\b|\b[a-z]+[A-Z]\w*")

_STOPWORDS = (
    "a about above after again all also am an and any are as at be been before being below between both "
    "but by can could did do does doing down during each few for from further had has have having he her "
    "here hers him his how i if in into is it its itself just me more most my no nor not now of off on "
    "once only or other our out over own per same she should so some such than that the their theirs "
    "them then there these they this those through to too under until up very was we were what when "
    "where which while who whom why will with would you your"
)
STOPWORDS = frozenset(_STOPWORDS.split())


class Sentence(msgspec.Struct, frozen=True):
    """A sentence at its place.

    Attributes:
        text: as it stands in the input.
        place: its number in the text.
        block: the number of its block; sentences of one block make a paragraph.
        heading: the Markdown heading over it.
        score: how much it matters; only the order means something.
    """

    text: str
    place: int
    block: int
    heading: str
    score: float


def terms(text: str) -> list[str]:
    """The words of `text` that carry meaning, in lower case."""
    words = (word.lower() for word in _WORD.findall(text))
    return [word for word in words if len(word) > 2 and word not in STOPWORDS]


def ranked(blocks: Sequence[Block], question: str = "") -> list[Sentence]:
    """All sentences of `blocks` with their scores, in the order of the text."""
    texts = [sentence for block in blocks for sentence in block.sentences]
    bags = [set(terms(text)) for text in texts]
    centrality = _centrality(bags)
    asked = set(terms(question))
    sentences: list[Sentence] = []
    for number, block in enumerate(blocks):
        for text in block.sentences:
            place = len(sentences)
            shared = len(bags[place] & asked) / (len(asked) or 1)
            lead = 0.5 * (1 - place / len(texts)) + 0.5 / (1 + place)
            score = 2.0 * centrality[place] + _form(text) + shared + lead
            sentences.append(Sentence(text, place, number, block.heading, score))
    return sentences


def chosen(sentences: Iterable[Sentence], *, count: int | None, chars: int) -> list[Sentence]:
    """The sentences that say most without repeating each other, in the order of the text.

    Args:
        sentences: from `ranked`.
        count: at most so many, or None.
        chars: at most so many characters, paragraph breaks included.
    """
    rest = sorted(sentences, key=lambda sentence: (-sentence.score, sentence.place))[:_CANDIDATES]
    highest = max((sentence.score for sentence in rest), default=1.0) or 1.0
    repeats = [0.0] * len(rest)
    taken: list[Sentence] = []
    while rest and (count is None or len(taken) < count):
        gain = [_gain(sentence.score / highest, seen) for sentence, seen in zip(rest, repeats, strict=True)]
        best = max(range(len(rest)), key=gain.__getitem__)
        sentence = rest.pop(best)
        repeats.pop(best)
        cost = len(sentence.text) + 2
        if cost <= chars + 2:
            chars -= cost
            taken.append(sentence)
            rest, repeats = _without_repeats(rest, repeats, sentence)
    return sorted(taken, key=lambda sentence: sentence.place)


def paragraphs(sentences: Sequence[Sentence]) -> list[list[str]]:
    """The sentences as paragraphs of readable length; a heading is a paragraph of its own, once."""
    grouped: list[list[str]] = []
    last: Sentence | None = None
    for sentence in sentences:
        if sentence.heading and (last is None or last.heading != sentence.heading):
            grouped.append([sentence.heading])
            last = None
        if last is None or last.block != sentence.block or _is_full(grouped[-1]):
            grouped.append([])
        grouped[-1].append(ended(sentence.text))
        last = sentence
    return _joined_singles(grouped)


def ended(sentence: str) -> str:
    """The sentence with a full stop where it has no end."""
    return sentence if sentence.endswith((".", "!", "?", "…", ":", ";", "。", "！", "？")) else f"{sentence}."


def _centrality(bags: Sequence[set[str]]) -> list[float]:
    """How many of the text's frequent words each sentence holds, 0 to 1."""
    frequency = Counter(term for bag in bags for term in bag)
    raw = [sum(math.log(frequency[term]) for term in bag) / (1 + math.log(1 + len(bag))) for bag in bags]
    highest = max(raw, default=0.0) or 1.0
    return [value / highest for value in raw]


def _form(text: str) -> float:
    """What a sentence's form tells, 0 to 2: a good length, numbers, names."""
    words = len(text.split()) or 1
    length = min(words / 8, 1.0, 35 / words)
    return length + min(len(_NUMBER.findall(text)), 3) / 6 + min(len(_NAME.findall(text)), 3) / 6


def _gain(score: float, repeats: float) -> float:
    return _RELEVANCE * score - (1 - _RELEVANCE) * repeats


def _without_repeats(
    rest: list[Sentence], repeats: list[float], taken: Sentence
) -> tuple[list[Sentence], list[float]]:
    """What is left after `taken`, with how much of each sentence is said already."""
    kept, said = [], []
    marks = _marks(taken.text)
    for sentence, before in zip(rest, repeats, strict=True):
        alike = fuzz.token_sort_ratio(sentence.text[:_COMPARED], taken.text[:_COMPARED]) / 100
        if alike < _SAME or _marks(sentence.text) != marks:
            kept.append(sentence)
            said.append(max(before, alike))
    return kept, said


def _marks(text: str) -> set[str]:
    """What makes two similar sentences differ in fact: their numbers and names."""
    return {*_NUMBER.findall(text), *_NAME.findall(text)}


def _is_full(paragraph: list[str]) -> bool:
    return len(paragraph) >= _PARAGRAPH_SENTENCES or sum(map(len, paragraph)) >= _PARAGRAPH_CHARS


def _joined_singles(grouped: list[list[str]]) -> list[list[str]]:
    """Neighbouring paragraphs of one sentence make one: blocks of which one sentence is left."""
    joined: list[list[str]] = []
    open_to_more = False
    for paragraph in grouped:
        single = len(paragraph) == 1 and not paragraph[0].startswith("#")
        if single and open_to_more and not _is_full(joined[-1]):
            joined[-1].extend(paragraph)
        else:
            joined.append(list(paragraph))
            open_to_more = single
    return joined
