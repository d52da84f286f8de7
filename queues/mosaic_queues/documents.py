"""YAML into plain data, with the line of everything in it.

Only data can be written: no tags of other languages, no merge keys, no aliases that multiply, no key twice.
Words are read as in YAML 1.2: `true` and `false` are booleans, `yes`, `on` and dates are texts.

The text is read as a stream of events straight into data. Lines are looked up by reading the text once more,
when there is a problem to tell; so a document without problems pays nothing for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from mosaic_queues.errors import ConfigurationError, DefinitionError

M = TypeVar("M", bound=BaseModel)
DataPath = tuple[str | int, ...]
"""Where something stands in a document: keys and positions, from the outside."""

MAX_FILE_BYTES = 32 * 1024 * 1024
"""Larger files are refused unread."""
MAX_DEPTH = 100
"""Deeper nesting is refused."""
MAX_ALIASED = 10_000
"""Values that aliases may repeat, all together."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_TAG = "tag:yaml.org,2002:"
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_SPECIAL = frozenset("~nNtTfF-+.0123456789")
_KEY = re.compile(r"[^\W\d][\w-]*")


class Document:
    """A YAML text, and where it was read from.

    Attributes:
        name: of the file, for messages.
        text: what was read.
        kind: what it is, for messages.
    """

    kind = "document"

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The text of a file.

        Raises:
            DefinitionError: there is none, it is too large, or no text.
        """
        path = Path(path)
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                size = MAX_FILE_BYTES // 1024 // 1024
                raise DefinitionError([f"{path}: larger than {size} MiB; split the {cls.kind}"])
            return cls(str(path), path.read_bytes().decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise DefinitionError(
                [f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8"]
            ) from None
        except OSError as error:
            raise DefinitionError([f"{path}: {error.strerror or error}"]) from None

    @cached_property
    def _lines(self) -> dict[DataPath, int]:
        reader = _Reader(self, lines={})
        reader.document()
        return reader.lines or {}

    def line(self, path: DataPath) -> int:
        """The line of the part at `path`, or of the nearest part around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def load(self) -> Any:
        """The data in the text.

        Raises:
            DefinitionError: broken YAML, with line and column; a key twice, with both lines; too much.
        """
        reader = _Reader(self)
        data = reader.document()
        if reader.problems:
            raise DefinitionError(reader.problems)
        return data

    def place(self, path: DataPath) -> str:
        """How messages call a part."""
        return f"field {path_text(path).lstrip('.')!r}" if path else ""

    def empty(self) -> str:
        """What is to be in an empty file."""
        return "the file is empty"

    def too_many(self, path: DataPath, count: int) -> str | None:  # noqa: ARG002
        """Why a mapping must not have so many keys; None: it may."""
        return None


def path_text(path: DataPath) -> str:
    """The path as it is written behind a name: `.a[0]["b c"]`."""
    return "".join(_step_text(step) for step in path)


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _KEY.fullmatch(step) else f"[{json.dumps(step)}]"


class _Stop(Exception):
    """Reading cannot go on; the reason is the last problem."""


class _Reader:
    """Builds data from the events of a text; collects problems and, in `lines` when given, lines."""

    def __init__(self, source: Document, *, lines: dict[DataPath, int] | None = None) -> None:
        self.source, self.lines = source, lines
        self.problems: list[str] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._made = self._repeated = 0

    def document(self) -> Any:
        """The only document of the text."""
        try:
            self._parser = _LOADER(self.source.text)
            self._next = self._parser.get_event
            return self._only_document()
        except yaml.YAMLError as error:
            self.problems.append(_broken(self.source, error))
        except _Stop:
            pass
        return None

    def _only_document(self) -> Any:
        self._next()
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            self._refuse(1, self.source.empty())
        data = self._value(self._next(), ())
        self._next()
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            self._refuse(
                event.start_mark.line + 1, f"a second document begins; one file holds one {self.source.kind}"
            )
        return data

    def _refuse(self, line: int, message: str) -> None:
        self.problems.append(f"{self.source.name}:{line}: {message}")
        raise _Stop

    def _value(self, event: Any, path: DataPath) -> Any:
        """The value that begins with `event`."""
        kind = type(event)
        self._made += 1
        if self.lines is not None:
            self.lines.setdefault(path, event.start_mark.line + 1)
        if kind is yaml.ScalarEvent:
            value = self._scalar(event)
        elif kind is yaml.AliasEvent:
            return self._alias(event)
        else:
            return self._collection(event, path)
        if event.anchor:
            self._anchors[event.anchor] = (value, 1)
        return value

    def _collection(self, event: Any, path: DataPath) -> Any:
        if len(path) > MAX_DEPTH:
            self._refuse(event.start_mark.line + 1, f"nested deeper than {MAX_DEPTH} levels")
        if event.tag and not event.implicit and event.tag not in (_TAG + "map", _TAG + "seq"):
            self._refuse(event.start_mark.line + 1, f"the tag {event.tag!r} is not allowed; write plain data")
        before = self._made
        value: Any = (
            self._mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._sequence(path)
        )
        if event.anchor:
            self._anchors[event.anchor] = (value, self._made - before + 1)
        return value

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            self._refuse(
                event.start_mark.line + 1, f"the alias *{event.anchor} has no complete anchor before it"
            )
        value, size = self._anchors[event.anchor]
        self._made += size
        self._repeated += size
        if self._repeated > MAX_ALIASED:
            self._refuse(event.start_mark.line + 1, f"aliases repeat more than {MAX_ALIASED} values")
        return value

    def _sequence(self, path: DataPath) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            values.append(self._value(event, (*path, len(values))))
        return values

    def _mapping(self, path: DataPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key, line = self._key(event), event.start_mark.line + 1
            inner = (*path, key)
            if key in lines:
                self._repeat(inner, lines[key], line)
            lines[key] = line
            if self.lines is not None:
                self.lines.setdefault(inner, line)
            values[key] = self._value(self._next(), inner)
            if too_many := self.source.too_many(path, len(values)):
                self._refuse(line, too_many)
        return values

    def _key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            self._refuse(event.start_mark.line + 1, "a key must be a text, not a list, a mapping or an alias")
        key = self._scalar(event)
        if not isinstance(key, str):
            self.problems.append(
                f"{self.source.name}:{event.start_mark.line + 1}: the key {event.value!r} is read as "
                f"{type(key).__name__}; put it in quotes"
            )
        return str(event.value)

    def _repeat(self, path: DataPath, first: int, line: int) -> None:
        place = self.source.place(path)
        self.problems.append(
            f"{self.source.name}:{line}: {place} is there twice, first in line {first}; rename one"
        )

    def _scalar(self, event: Any) -> Any:
        plain, _ = event.implicit
        if plain and event.tag is None:
            value = event.value
            if value[:1] not in _SPECIAL and value:
                return value
            return self._plain(event)
        if event.tag in (None, "!", _TAG + "str"):
            return event.value
        if event.tag.removeprefix(_TAG) not in ("int", "float", "bool", "null"):
            self._refuse(event.start_mark.line + 1, f"the tag {event.tag!r} is not allowed; write plain data")
        return self._plain(event)

    def _plain(self, event: Any) -> Any:
        value = plain_value(event.value)
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            self._refuse(
                event.start_mark.line + 1, f"the number {event.value[:40]} has more than 64 bits; quote it"
            )
        return value


def plain_value(text: str) -> Any:
    """What an unquoted text means, by the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        if text[:2] in ("0x", "0o"):
            return int(text[:100], 0)
        return int(text[:100])
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _broken(source: Document, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"{source.name}:1: broken YAML: {error}"
    line = next(_lines_from(source.text, mark.line), "")
    hint = "; YAML indents with spaces, not with tabs" if "\t" in line else ""
    context = getattr(error, "context", None)
    problem = getattr(error, "problem", error)
    reason = f"{problem} {context}" if context else problem
    return f"{source.name}:{mark.line + 1}: broken YAML in column {mark.column + 1}: {reason}{hint}"


def _lines_from(text: str, number: int) -> Iterator[str]:
    yield from text.splitlines()[number:]


class _Dumper(_DUMPER):
    """Quotes exactly the texts that `plain_value` would read as something else, and those of YAML 1.1."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _write_text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text else None
    if not isinstance(plain_value(text), str):
        style = '"'
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _write_text)


def dump(data: Any) -> str:
    """The data as YAML, that `Document.load` reads back as it was."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def _told(document: Document, detail: dict[str, Any], model: type[BaseModel]) -> str:
    path = tuple(step for step in detail["loc"] if step != "[key]")
    where, place = f"{document.name}:{document.line(path)}", document.place(path)
    return ": ".join(part for part in (where, place, _said({**detail, "loc": path}, model)) if part)


def _said(detail: dict[str, Any], model: type[BaseModel]) -> str:
    match detail["type"]:
        case "missing":
            return "it is missing"
        case "extra_forbidden":
            *around, name = detail["loc"]
            return f"there is no such field{_meant(str(name), _fields_at(model, around))}"
        case "value_error":
            return str(detail["msg"]).removeprefix("Value error, ")
    return f"{detail['msg']}, and it is {detail['input']!r:.80}"


def _meant(name: str, known: Collection[str]) -> str:
    if near := get_close_matches(name, known, n=1):
        return f"; did you mean {near[0]!r}?"
    return f"; there are: {', '.join(known)}" if known else ""


def _fields_at(model: type[BaseModel], path: Sequence[str | int]) -> dict[str, Any]:
    """The fields that may stand at a place, by the names that files have for them."""
    kind: Any = model
    for step in path:  # a key or a position leads to no other type: `_fields` sees through one container
        kind = _fields(kind).get(str(step), kind)
    return _fields(kind)


def _fields(kind: Any) -> dict[str, Any]:
    kinds = (each for each in (kind, *get_args(kind)) if isinstance(each, type))
    models = [each for each in kinds if issubclass(each, BaseModel)]
    return {
        field.alias or name: field.annotation for each in models for name, field in each.model_fields.items()
    }


def read_model(path: Path, model: type[M], *, kind: str) -> M:
    """A file of settings as a model.

    Args:
        kind: what the file is, for messages.

    Raises:
        ConfigurationError: with all problems, each by file, line and field.
    """
    try:
        document = Document.read(path)
        data = document.load()
    except DefinitionError as error:
        raise ConfigurationError(f"the {kind} cannot be read: {error}") from None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        problems = "\n".join(_told(document, dict(detail), model) for detail in found)
        raise ConfigurationError(f"the {kind} cannot be used: {problems}") from None


__all__ = [
    "MAX_ALIASED",
    "MAX_DEPTH",
    "MAX_FILE_BYTES",
    "DataPath",
    "Document",
    "dump",
    "path_text",
    "plain_value",
    "read_model",
]
