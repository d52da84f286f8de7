"""Text taken apart into sentences, as people would: `3.11`, `e.g.`, `setup.py` and `a.b()` hold together."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_NEVER_LAST = {"e.g", "i.e", "cf", "vs", "viz", "al", "dr", "mr", "mrs", "ms", "prof", "st", "gen", "sen"} | {
    "rep",
    "capt",
    "lt",
    "sgt",
    "rev",
    "hon",
    "messrs",
    "mt",
    "bzw",
    "ca",
    "resp",
    "incl",
    "esp",
}
"""Abbreviations that something always follows."""

_BEFORE_NUMBER = {
    "no",
    "nos",
    "nr",
    "fig",
    "figs",
    "sec",
    "p",
    "pp",
    "vol",
    "ch",
    "eq",
    "approx",
    "art",
    "ver",
} | {"v", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"}
"""Abbreviations where a number follows."""

_MARK = re.compile(r"(?<![.!?…])[.!?…]+[\"'”’)\]*_]*(?=\s)|[。！？]+[」』”）]*")
_CODE = re.compile(r"`[^`\n]+`")
_LOOKED_AT = 80
"""Characters around a mark that tell whether it ends a sentence."""
_INITIALS = re.compile(r"(?:[A-Za-z]\.)*[A-Za-z]")
_CODE_WORD = re.compile(r"`|[\w-]*[._/(:][\w/(]")

_FENCE = re.compile(r"^\s*(```|~~~)")
_BULLET = re.compile(r"^\s*(?:[-*•+]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
_HEADING = re.compile(r"^\s*#{1,6}\s+\S")


class Block(msgspec.Struct, frozen=True):
    """Sentences that stand together, under the Markdown heading that they stand under."""

    sentences: tuple[str, ...]
    heading: str = ""


def split_sentences(text: str) -> list[str]:
    """The sentences of running text, without the white space between them."""
    text = " ".join(text.split())
    code = _code_places(text)
    sentences, start = [], 0
    for mark in _MARK.finditer(text):
        first, last = mark.span()
        before = text[max(start, first - _LOOKED_AT) : first]
        if first not in code and _ends(before, mark.group(), text[last : last + _LOOKED_AT].lstrip()):
            sentences.append(text[start:last].strip())
            start = last
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def split_blocks(text: str, *, line_is_sentence: bool = False) -> list[Block]:
    """The blocks of a Markdown-like text: paragraphs, each list item a sentence or more, no fenced code.

    Args:
        text: the text.
        line_is_sentence: each line is one sentence, whatever it holds.
    """
    blocks, heading = [], ""
    for lines in _paragraphs(text):
        if _HEADING.match(lines[0]):
            heading = lines.pop(0).strip()
        sentences = _lines(lines) if line_is_sentence else _items(lines)
        if sentences:
            blocks.append(Block(tuple(sentences), heading))
    return blocks


def _code_places(text: str) -> set[int]:
    """The places inside backticks."""
    spans = (match.span() for match in _CODE.finditer(text))
    return {place for first, last in spans for place in range(first, last - 1)}


def _ends(before: str, mark: str, after: str) -> bool:
    """Whether the sentence `before` ends with `mark`, given what follows."""
    if mark[0] in "。！？" or not after:
        return True
    word = before.rsplit(None, 1)[-1].strip("([{\"'*_“‘") if before.strip() else ""
    if mark[0] == "." and (not word or not _may_end(word, before, after)):
        return False
    return not after[0].islower() or _CODE_WORD.match(after.split(None, 1)[0]) is not None


def _may_end(word: str, before: str, after: str) -> bool:
    """Whether a full stop after `word` may be more than the sign of an abbreviation."""
    if word.lower() in _NEVER_LAST or (_INITIALS.fullmatch(word) and word != "I"):
        return False
    if word.lower() in _BEFORE_NUMBER and after[0].isdigit():
        return False
    return not before.strip().isdigit()


def _paragraphs(text: str) -> Iterator[list[str]]:
    """Groups of lines between blank lines; a heading starts a group."""
    lines: list[str] = []
    for line in _outside_fences(text):
        if lines and (not line.strip() or _HEADING.match(line)):
            yield lines
            lines = []
        if line.strip():
            lines.append(line)
    if lines:
        yield lines


def _outside_fences(text: str) -> Iterator[str]:
    fenced = False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield line


def _lines(lines: list[str]) -> list[str]:
    stripped = (" ".join(_BULLET.sub("", line).split()) for line in lines)
    return [line for line in stripped if line]


def _items(lines: list[str]) -> list[str]:
    """The sentences of a paragraph whose list items are units, and whose other lines are one running text."""
    units: list[list[str]] = []
    for line in lines:
        if _BULLET.match(line) or not units:
            units.append([_BULLET.sub("", line)])
        else:
            units[-1].append(line)
    return [sentence for unit in units for sentence in split_sentences(" ".join(unit))]
