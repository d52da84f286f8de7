"""Where a model states its answer in prose: `\\boxed{18}`, `#### 18`, `The answer is 18.`, `Therefore ... 18.`"""

from __future__ import annotations

import re
from collections.abc import Iterator

_MAX_BOX = 10_000
_SHORT = 200

_HASHES = re.compile(r"####\s*+([^\n]++)")
_SAID = re.compile(
    r"\banswers?\b[*_\"']{0,3}+(?:[ ]?+\([^()\n]{0,40}+\))?+\s*+(?:is|was|are|would be|:|=)(?![ ]not\b)"
    r"[\s:*_]*+([^\n]++)",
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
    for pattern in (_HASHES, _SAID):
        yield from pattern.findall(text)[-1:]


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


__all__ = ["conclusion", "last_boxed", "statements"]
