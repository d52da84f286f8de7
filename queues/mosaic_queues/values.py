"""Values as msgpack: what a payload may hold, and as what it comes back.

| value | comes back as |
|---|---|
| None, bool, int (64 bit), float (NaN and infinities too), str, bytes, list, dict | itself |
| tuple, named tuple, deque | list |
| set, frozenset | sorted list (by their encoded form when they have no order) |
| pydantic model, dataclass, msgspec Struct, other mapping | dict |
| datetime, date, time, timedelta | ISO 8601 string |
| Decimal, UUID, Path | str |
| Enum | its value |
| bytearray, memoryview | bytes |

Keys of a dict are str or int; the types above that come back as str, and enums of str or int, are converted.
All else is refused with `NotSerializable`, which names the place inside the value; so is a str with a lone
surrogate (bytes that were no UTF-8, read with `surrogateescape`), which no encoding could give back.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pydantic

from mosaic_queues.errors import NotSerializable

MAX_DEPTH = 100
"""Deeper values are refused."""

_MIN_INT = -(2**63)
_MAX_INT = 2**64 - 1
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_KEYS = frozenset({str, int})
_SURROGATE = re.compile("[\ud800-\udfff]")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")

_encode = msgspec.msgpack.Encoder().encode


def encode(value: Any) -> bytes:
    """The msgpack form of a value.

    Raises:
        NotSerializable: it has none; the message names the type, the place inside the value and what to do.
    """
    if _is_plain(value, 0):
        try:
            return _encode(value)
        except (OverflowError, UnicodeEncodeError):  # a huge int or a lone surrogate: told with its place
            return _encode(plain(value))
    return _encode(plain(value))


def plain(value: Any) -> Any:
    """The value in terms of None, bool, int, float, str, bytes, list and dict.

    Raises:
        NotSerializable: see `encode`.
    """
    return _Plain().convert(value)


def _is_plain(value: Any, depth: int) -> bool:
    """Whether msgpack can take the value as it is: the fast path for what nearly all values are."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is dict:
        return _KEYS.issuperset(map(type, value)) and _are_plain(value.values(), depth)
    return (kind is list or kind is tuple) and _are_plain(value, depth)


def _are_plain(items: Iterable[Any], depth: int) -> bool:
    if _ATOMS.issuperset(map(type, items)):
        return True
    if depth >= MAX_DEPTH:
        return False
    for item in items:  # noqa: SIM110 - twice as fast as all()
        if not _is_plain(item, depth + 1):
            return False
    return True


_TO_TEXT: tuple[tuple[type | tuple[type, ...], Callable[[Any], str]], ...] = (
    (str, str.__str__),
    ((datetime.datetime, datetime.date, datetime.time), lambda value: str(value.isoformat())),
    (datetime.timedelta, lambda value: str(msgspec.to_builtins(value))),
    ((decimal.Decimal, uuid.UUID, pathlib.PurePath), str),
)

_TO_FIELDS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (pydantic.BaseModel, lambda value: value.model_dump()),
    (msgspec.Struct, msgspec.structs.asdict),
    (Mapping, lambda value: value),
)


class _Plain:
    """One conversion; knows where it is, for messages, and which containers are open, to notice cycles."""

    def __init__(self) -> None:
        self._trail: list[str | int] = []
        self._open: set[int] = set()

    def convert(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return self.convert(value.value)
        if value is None or isinstance(value, bool | bytes):
            return value
        if isinstance(value, int):
            return self._int(value)
        if isinstance(value, float):
            return float(value)
        text = self._text(value)
        return self._container(value) if text is None else text

    def _int(self, value: int) -> int:
        if not _MIN_INT <= value <= _MAX_INT:
            raise self._refuse(f"an int of {value.bit_length()} bits", "use a str or a float")
        return int(value)

    def _text(self, value: Any) -> str | None:
        """The text that stands for a value; None when the value is no such thing."""
        for kinds, to_text in _TO_TEXT:
            if isinstance(value, kinds):
                return self._well_formed(to_text(value))
        return None

    def _well_formed(self, text: str) -> str:
        lone = _SURROGATE.search(text)
        if lone is not None:
            raise self._refuse(
                f"a text with the lone surrogate {lone.group()!r} at position {lone.start()}",
                "decode it with errors='replace', or use bytes",
            )
        return text

    def _container(self, value: Any) -> Any:
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        with self._entered(value):
            if isinstance(value, set | frozenset):
                return _ordered([self.convert(item) for item in value])
            if isinstance(value, list | tuple | deque):
                return [self._at(index, item) for index, item in enumerate(value)]
            return self._fields(value)

    def _fields(self, value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._mapping(
                {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            )
        for kind, to_fields in _TO_FIELDS:
            if isinstance(value, kind):
                fields = to_fields(value)
                return self._mapping(fields) if isinstance(fields, Mapping) else self.convert(fields)
        raise self._refuse(
            f"a value of type {_name(type(value))}",
            "use str, int, float, bool, None, bytes, list, dict, a dataclass or a pydantic model",
        )

    def _mapping(self, fields: Mapping[Any, Any]) -> dict[str | int, Any]:
        found: dict[str | int, Any] = {}
        for key, item in fields.items():
            name = self._key(key)
            if name in found:
                raise self._refuse(f"two keys that both become {name!r}", "make them differ")
            found[name] = self._at(name, item)
        return found

    def _key(self, key: Any) -> str | int:
        if isinstance(key, enum.Enum):
            return self._key(key.value)
        if isinstance(key, int) and not isinstance(key, bool):
            return self._int(key)
        text = self._text(key)
        if text is None:
            raise self._refuse(
                f"a dict with the key {_short(key)} of type {_name(type(key))}",
                "use keys of type str or int, or a list of pairs",
            )
        return text

    def _at(self, step: str | int, item: Any) -> Any:
        self._trail.append(step)
        found = self.convert(item)
        self._trail.pop()
        return found

    @contextmanager
    def _entered(self, value: Any) -> Iterator[None]:
        if id(value) in self._open:
            raise self._refuse(f"a {_name(type(value))} that contains itself", "break the cycle")
        if len(self._open) > MAX_DEPTH:
            raise self._refuse(f"more than {MAX_DEPTH} levels of nesting", "use a flatter value")
        self._open.add(id(value))
        yield
        self._open.discard(id(value))

    def _refuse(self, what: str, advice: str) -> NotSerializable:
        steps = [_step(step) for step in self._trail]
        place = "".join(steps if len(steps) <= 12 else [*steps[:8], "...", *steps[-3:]])
        return NotSerializable(self._trail, f"{place} holds {what}, which cannot be stored; {advice}")


def _ordered(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=_encode)


def _step(name: str | int) -> str:
    return f".{name}" if isinstance(name, str) and _IDENTIFIER.fullmatch(name) else f"[{_short(name)}]"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _name(kind: type) -> str:
    return repr(
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )
