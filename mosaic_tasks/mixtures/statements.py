"""Where a model states its answer in prose: `\\boxed{18}`, `#### 18`, `The answer is 18.`, `Therefore ... 18.`"""

from __future__ import annotations

import re
from collections.abc import Iterator

_MAX_BOX = 10_000
_SHORT = 200

_HASHES = re.compile(r"####\s*+([^\n]++)")
_SAID = re.compile(
    r"\banswers?\b[*_\"']{0,3}+(?:[ ]?+\([^()\n]{0,40}+\))?+\s*+(?:is|was|are|would be|:|=)(?![ ]not\b)"
    r"[\s:*_]*+(?=[^\n])",
    re.IGNORECASE,
)
"""What follows up to the end of the line is the answer."""
_SUPPOSES = re.compile(
    r"\b(?:if|unless|whether|suppos\w++|assum\w++|imagine|pretend|let(?:['’]s| us)? say|guess\w*+)\b",
    re.IGNORECASE,
)
_SENTENCE_ENDS = re.compile(r"[.!?;]\s|\n")
_CERTAIN = re.compile(
    r"[#>*_\s-]*+(?:(?:and|so|then|therefore|thus|hence|finally|consequently|in conclusion)\b[,:\s*_]*+)*+"
    r"(?:(?:the|my|our)\s++)?+(?:(?:final|correct|right|numerical|numeric)\s++)*+[*_\"']*+",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"[#>*\s-]*+(?:so|therefore|thus|hence|in total|altogether|in conclusion|finally)\b", re.IGNORECASE
)
_NO_CONCLUSION = re.compile(r'":|\bnot\b|n[\'’]t\b', re.IGNORECASE)
_BRACES = re.compile(r"\\?[{}]")


def statements(text: str) -> Iterator[str]:
    """What the text may state as its answer, the surest first; each to be read on its own."""
    boxed = last_boxed(text)
    if boxed is not None:
        yield boxed
    yield from _HASHES.findall(text)[-1:]
    yield from [text[begin : _line_end(text, begin)] for begin in list(_said(text))[-1:]]


def _said(text: str) -> Iterator[int]:
    """Where begins what the text says that the answer is, once for each line; what is only supposed is passed over."""
    place = 0
    while (found := _SAID.search(text, place)) is not None:
        place = found.end()
        clause = _lead(text, found.start()).rpartition(",")[2]
        if not _SUPPOSES.search(clause):
            yield place
            place = _line_end(text, place)


def _lead(text: str, end: int) -> str:
    """What stands in the sentence before `end`."""
    before = text[max(end - _SHORT, 0) : end]
    return _SENTENCE_ENDS.split(before)[-1]


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def asserted(line: str) -> str | None:
    """What a line states as the answer; None where it doubts, denies, or lets somebody else say so."""
    if _SUPPOSES.search(line) or _NO_CONCLUSION.search(line) or line.rstrip().endswith("?"):
        return None
    boxed = last_boxed(line)
    if boxed is not None:
        return boxed
    found = _SAID.search(line)
    if found is not None:
        return line[found.end() :] if _CERTAIN.fullmatch(_lead(line, found.start())) else None
    hashes = _HASHES.match(line.lstrip())
    return None if hashes is None else hashes[1]


def conclusion(text: str, *, whole_only: bool = False) -> str | None:
    """The line that the text ends with, where that line is all there is, or (unless `whole_only`) concludes.

    A line that denies something, or belongs to JSON that broke off, concludes nothing.
    """
    text = text.strip()
    line = text[text.rfind("\n") + 1 :]
    alone = len(line) == len(text) and len(text) <= _SHORT
    if _NO_CONCLUSION.search(line):
        return None
    return line if alone or (not whole_only and _CONCLUDES.match(line)) else None


def last_boxed(text: str) -> str | None:
    """What stands in the last `\\boxed{}` that is closed."""
    end = len(text)
    for _ in range(2):  # the last one may have been cut off
        start = text.rfind("\\boxed{", 0, end)
        if start < 0:
            return None
        inside = _closed(text, start + len("\\boxed{"))
        if inside is not None:
            return inside
        end = start
    return None


def _closed(text: str, start: int) -> str | None:
    """The text from `start` to the brace that closes it."""
    depth = 1
    for brace in _BRACES.finditer(text, start, start + _MAX_BOX):
        if len(brace[0]) == 1:
            depth += 1 if brace[0] == "{" else -1
        if not depth:
            return text[start : brace.start()]
    return None


__all__ = ["asserted", "conclusion", "last_boxed", "statements"]
