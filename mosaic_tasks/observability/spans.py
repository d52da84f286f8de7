"""A span as this project tells it, before any library is asked: values, and the errors that may be told of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Attribute = str | int | float | bool | Sequence[str]
Kind = Literal["internal", "client", "producer", "consumer"]
Link = tuple[int, int]
"""Trace and span."""
MOST_LINKS = 64
_ERROR_CHARS = 1_000
"""Class names stand at the beginning."""
_ERROR = re.compile(r"(?:[A-Za-z_]\w*(?:\.\w+)*)(?=:|$)")
_PLACE = re.compile(r"\Anode '[^']*'(?:, item \d+)?: ")


class Span(NamedTuple):
    """Something that took time.

    Attributes:
        id: see `ids.span_of`.
        parent: of the same trace; None: it is the root.
        start_ns, end_ns: since 1970.
        error: its kind, as `error_type` gives it; empty: it went well.
    """

    trace: int
    id: int
    parent: int | None
    name: str
    start_ns: int
    end_ns: int
    kind: Kind = "internal"
    attributes: Mapping[str, Attribute] = {}
    links: Sequence[Link] = ()
    error: str = ""


def plain(text: str, most_chars: int) -> str:
    """The beginning of a text, as UTF-8 can hold it."""
    return text[:most_chars].encode(errors="replace").decode()


def error_type(told: str) -> str:
    """What kind of error a failure tells of: the last of the class names before its words, which may quote data.

    "node 'a': ToolError: ValueError: no such key" is a `ValueError`.
    """
    rest, kind = _PLACE.sub("", told[:_ERROR_CHARS]), ""
    while (found := _ERROR.match(rest)) is not None:
        kind = found[0]
        if not rest[found.end() :].startswith(": "):
            break
        rest = rest[found.end() + 2 :]
    return kind or "error"


__all__ = ["MOST_LINKS", "Attribute", "Kind", "Link", "Span", "error_type", "plain"]
