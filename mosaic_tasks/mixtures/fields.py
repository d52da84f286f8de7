"""Values in JSON that models wrote: fenced, in prose, or broken; and what can be stored of them.

Where several could be meant the last counts: models correct themselves. Each search is linear, or tries a fixed number
of places.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

_MAX_OPENS = 64
_MAX_FIELDS = 8
_MAX_DEPTH = 64
"""With what is stored around it, a value stays below the depth that payloads may have."""
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1

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


class Document(NamedTuple):
    """An object or array, and where it stands in the text."""

    start: int
    end: int
    value: Any


def last_field(text: str, path: str) -> Any:
    """The value of the last field at `path`; `ABSENT` where there is none.

    In a document that can be read the path counts, from its top. Elsewhere, in JSON that is broken, and in a document
    without such a path, the name alone does, at whatever depth.
    """
    places = [found.end() for found in field_pattern(path.rpartition(".")[2]).finditer(text)]
    found = documents(text) if places else []
    values = (_field_at(text, place, path, found) for place in reversed(places[-_MAX_FIELDS:]))
    return next((value for value in values if value is not ABSENT), ABSENT)


def _field_at(text: str, place: int, path: str, found: Sequence[Document]) -> Any:
    around = next((document.value for document in found if document.start < place < document.end), ABSENT)
    value = part(around, path)
    if value is ABSENT:
        return read_value(text, place)
    return _with_latex(value) if isinstance(value, str) else value


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
    return ABSENT if bare is None or bare.end() == len(text) else bare_value(bare[0])


def bare_value(written: str) -> Any:
    """The value of what stands without quotes, `18` or `18,`; `ABSENT` where nothing does."""
    written = written.strip().rstrip(",").rstrip()
    try:
        return json.loads(written)
    except ValueError:
        return written or ABSENT


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
    return _with_latex(said)


def _with_latex(said: str) -> str:
    for eaten, meant in _EATEN:
        said = said.replace(eaten, meant)
    return said


def _decoded(text: str, place: int) -> tuple[Any, int] | None:
    """The document at `place`, and where it ends."""
    try:
        return _decoder.raw_decode(text, place)
    except (ValueError, RecursionError):
        return None


def documents(text: str) -> list[Document]:
    """The objects and arrays in `text` that are no parts of others, in their order."""
    found, place = list[Document](), 0
    for _ in range(_MAX_OPENS):
        opening = _OPENS.search(text, place)
        if opening is None:
            break
        start = opening.start()
        place = start + 1
        decoded = _decoded(text, start)
        if decoded is not None:
            value, place = decoded
            found.append(Document(start, place, value))
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


def storable(value: Any) -> Any:
    """`value`, which came of JSON, as payloads and JSON hold it; `ABSENT` where they cannot.

    Whole numbers of more than 64 bits are floats, halves of characters (which escapes can make) question marks. NaN,
    infinity and what is nested too deeply are nothing.
    """
    try:
        return _stored(value, 0)
    except (OverflowError, ValueError):
        return ABSENT


def _stored(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the value is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(str(key)): _stored(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_stored(each, depth + 1) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no {value!r}")
    return float(value) if isinstance(value, int) and not _MIN_INT <= value <= _MAX_INT else value


def encodable(text: str) -> str:
    """`text` with question marks for halves of characters."""
    return text.encode("utf-8", "replace").decode()


def canonical(value: Any) -> Any:
    """`value` with equal things written equally: whole numbers without a point, keys sorted, white space single."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {str(key): canonical(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [canonical(each) for each in value]
    return value


__all__ = [
    "ABSENT",
    "bare_value",
    "canonical",
    "documents",
    "encodable",
    "field_pattern",
    "last_field",
    "part",
    "read_value",
    "storable",
]
