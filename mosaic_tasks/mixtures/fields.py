"""Values in JSON that models wrote: fenced, in prose, or broken.

Where several could be meant the last counts: models correct themselves. Each search is linear, or tries a fixed number
of places.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_MAX_OPENS = 64
_MAX_FIELDS = 8
_MAX_DEPTH = 100

ABSENT: Final = object()
"""What stands for no value, as null is one."""

_decoder = json.JSONDecoder(strict=False)
_OPENS = re.compile(r"[{\[]")
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_QUOTED = re.compile(r"'((?:[^'\\\n]++|\\.)*+)'")
_UNCLOSED = re.compile(r'"([^"\n]++)\n')
_BARE = re.compile(r'[^"\n\]}]++')
_LOOSE_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_EATEN = (("\x0crac", "\\frac"), ("\x08oxed", "\\boxed"), ("\text", "\\text"), ("\times", "\\times"))
"""LaTeX whose backslash JSON took for an escape."""


def field_pattern(name: str) -> re.Pattern[str]:
    """Finds the key `name` with its colon."""
    quoted = re.escape(name)
    return re.compile(rf"""(?:"{quoted}"|'{quoted}')\s*+:\s*+""")


def last_field(text: str, name: str) -> Any:
    """The value of the last field called `name`, at whatever depth; `ABSENT` where there is none."""
    places = [found.end() for found in field_pattern(name).finditer(text)]
    for place in reversed(places[-_MAX_FIELDS:]):
        value = read_value(text, place)
        if value is not ABSENT:
            return value
    return ABSENT


def read_value(text: str, place: int) -> Any:
    """The value that begins at `place`, mended where its JSON is broken; `ABSENT` where it does not end."""
    first = text[place : place + 1]
    if first == '"':
        return _read_string(text, place)
    if first and first in "{[":
        found = _decoded(text, place)
        return ABSENT if found is None else found[0]
    if first == "'":
        quoted = _QUOTED.match(text, place)
        return ABSENT if quoted is None else _unescaped(quoted[1])
    bare = _BARE.match(text, place)
    return ABSENT if bare is None else _word(bare[0].strip().rstrip(",").rstrip())


def _read_string(text: str, place: int) -> Any:
    found = _STRING.match(text, place) or _UNCLOSED.match(text, place)
    return ABSENT if found is None else _unescaped(found[1])


def _unescaped(written: str) -> str:
    """What a JSON string says; a backslash that escapes nothing stands for itself."""
    escaped = _LOOSE_ESCAPE.sub(r"\\\\", written)
    try:
        said = str(json.loads(f'"{escaped}"', strict=False))
    except ValueError:
        said = written
    for eaten, meant in _EATEN:
        said = said.replace(eaten, meant)
    return said


def _word(written: str) -> Any:
    try:
        return json.loads(written)
    except ValueError:
        return written or ABSENT


def _decoded(text: str, place: int) -> tuple[Any, int] | None:
    """The document at `place`, and where it ends."""
    try:
        return _decoder.raw_decode(text, place)
    except (ValueError, RecursionError):
        return None


def documents(text: str) -> list[tuple[int, Any]]:
    """The objects and arrays in `text` that are no parts of others, in their order, each with its length."""
    found, place = [], 0
    for _ in range(_MAX_OPENS):
        opening = _OPENS.search(text, place)
        if opening is None:
            break
        place = opening.start() + 1
        document = _decoded(text, opening.start())
        if document is not None:
            value, place = document
            found.append((place - opening.start(), value))
    return found


def part(value: Any, path: str) -> Any:
    """What stands at `path`, `a.b` or `a.0.b`; `ABSENT` where there is no such part."""
    for step in path.split(".") if path else ():
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return ABSENT
    return value


def canonical(value: Any, *, depth: int = 0) -> Any:
    """`value` with equal things written equally: whole numbers without a point, keys sorted, white space single.

    Raises:
        ValueError: it is nested too deeply.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(
            f"the value is nested more than {_MAX_DEPTH} deep; compare a part of it: set 'field'"
        )
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {str(key): canonical(value[key], depth=depth + 1) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [canonical(each, depth=depth + 1) for each in value]
    return value


__all__ = ["ABSENT", "canonical", "documents", "field_pattern", "last_field", "part", "read_value"]
