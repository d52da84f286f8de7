"""YAML into plain data, with the line of everything in it.

Only data can be written: no tags of other languages, no merge keys, no aliases that multiply, no key twice.
Words are read as in YAML 1.2: `true` and `false` are booleans, `yes`, `on` and dates are texts.

The text is read as a stream of events straight into data. Lines are looked up by reading the text once more,
when there is a problem to tell; so a workflow without problems pays nothing for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from mosaic_queues.errors import DefinitionError
from mosaic_queues.settings import settings
from mosaic_tasks.definition.references import Path as DataPath
from mosaic_tasks.definition.references import path_text

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


class Problem(NamedTuple):
    """What is wrong with the part of a workflow at `path`."""

    path: DataPath
    message: str


class Source:
    """Where a workflow was read from.

    Attributes:
        name: of the file, for messages.
        text: what was read.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

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


def read_source(path: str | Path) -> Source:
    """The text of a file.

    Raises:
        DefinitionError: there is none, it is too large, or no text.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DefinitionError(
                [f"{path}: larger than {MAX_FILE_BYTES // 1024 // 1024} MiB; split the workflow"]
            )
        return Source(str(path), path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DefinitionError([f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8"]) from None
    except OSError as error:
        raise DefinitionError([f"{path}: {error.strerror or error}"]) from None


def told(problem: Problem, *, source: Source | None, workflow: str) -> str:
    """One readable line: `FILE:LINE: node 'x', field 'with.commits': what is wrong`."""
    origin = f"{source.name}:{source.line(problem.path)}" if source else f"workflow {workflow!r}"
    place = _place(problem.path)
    return f"{origin}: {place}: {problem.message}" if place else f"{origin}: {problem.message}"


def _place(path: DataPath) -> str:
    parts = []
    if len(path) > 1 and path[0] == "nodes":
        parts.append(f"node {path[1]!r}")
        path = path[2:]
    if path:
        parts.append(f"field {path_text(path).lstrip('.')!r}")
    return ", ".join(parts)


class _Stop(Exception):
    """Reading cannot go on; the reason is the last problem."""


class _Reader:
    """Builds data from the events of a text; collects problems and, in `lines` when given, lines."""

    def __init__(self, source: Source, *, lines: dict[DataPath, int] | None = None) -> None:
        self.source, self.lines = source, lines
        self.problems: list[str] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._made = self._repeated = 0
        self._max_nodes = settings().max_nodes

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
            self._refuse(1, "the file is empty; a workflow has name, nodes and output")
        data = self._value(self._next(), ())
        self._next()
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            self._refuse(event.start_mark.line + 1, "a second document begins; one file holds one workflow")
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
        counted = path == ("nodes",)
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key, line = self._key(event), event.start_mark.line + 1
            inner = (*path, key)
            if key in lines:
                self._repeat(inner, lines[key], line)
            lines[key] = line
            if self.lines is not None:
                self.lines.setdefault(inner, line)
            values[key] = self._value(self._next(), inner)
            if counted and len(values) > self._max_nodes:
                self._refuse(line, too_large(f"more than {self._max_nodes:,}", self._max_nodes))
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
        place = _place(path)
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


def too_large(nodes: str, limit: int) -> str:
    """The refusal of a workflow with too many nodes."""
    return (
        f"the workflow has {nodes} nodes and the limit is {limit:,}; use for_each for repeated steps, "
        "or raise MOSAIC_MAX_NODES"
    )


def _broken(source: Source, error: yaml.YAMLError) -> str:
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
    """The data as YAML, that `Source.load` reads back as it was."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


__all__ = [
    "MAX_ALIASED",
    "MAX_DEPTH",
    "MAX_FILE_BYTES",
    "Problem",
    "Source",
    "dump",
    "plain_value",
    "read_source",
    "told",
    "too_large",
]
