"""`${node.path[0].x}`: written in workflow files, compiled into bindings, resolved at run time.

A string that is wholly one reference keeps the type of what it names. References inside a longer string are
written into it as text. `$${` stands for a literal `${`.

Encoded bindings are literals and three forms: `{"$ref": [source, *path]}`, `{"$text": [pieces]}` and
`{"$literal": {...}}`, which protects a literal that looks like one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from rapidfuzz import process
from rapidfuzz.distance import JaroWinkler

from mosaic_queues.documents import path_text
from mosaic_queues.errors import BindingError
from mosaic_tasks.definition.plan import INPUTS, ITEM, Plan, Ref, decode_ref, encode_ref

Path = tuple[str | int, ...]
Lookup = Callable[[int], Any]
"""Gives the value of a source: the output of a node by its number, `INPUTS` or `ITEM`."""
Label = Callable[[int], str]
"""Names a source in messages: `node 'people'`."""
Encoded = Any

_TEXT, _LITERAL, _MARKS = "$text", "$literal", ("$ref", "$text", "$literal")
_STEP = r'\.[^\W\d][\w-]*|\[-?\d{1,9}\]|\["(?:[^"\\]|\\.)*"\]'
_STEPS = re.compile(_STEP)
_TOKEN = re.compile(
    rf"(?P<escape>\$\$\{{)|\$\{{\s*(?P<name>[a-zA-Z_]\w*)(?P<path>(?:{_STEP})*)\s*\}}|(?P<bad>\$\{{)"
)
_SHOWN_KEYS = 12
_ALIKE = 0.78
"""Jaro-Winkler similarity, which counts beginnings most: `reties` is as like `retry`, `temp` as like `temperature`."""


class ReferenceSyntaxError(ValueError):
    """A `${` that begins no reference."""


class Reference(NamedTuple):
    """A name and the way into its value. `str()` gives the form that stands in workflow files."""

    name: str
    path: Path = ()

    def __str__(self) -> str:
        return f"${{{self.name}{path_text(self.path)}}}"


def escape(text: str) -> str:
    """The string that stands for `text` literally, whatever it contains."""
    return text.replace("${", "$${")


def parse(text: str) -> Reference:
    """The reference that `text` wholly is.

    Raises:
        ReferenceSyntaxError: it is something else.
    """
    found = pieces(text)
    if len(found) != 1 or not isinstance(found[0], Reference):
        raise ReferenceSyntaxError(f"{text!r} is not a reference; write ${{node}} or ${{node.key[0]}}")
    return found[0]


@lru_cache(maxsize=4096)
def pieces(text: str) -> tuple[str | Reference, ...]:
    """The literal and the referring parts of a string, in order.

    Raises:
        ReferenceSyntaxError: a `${` begins no reference.
    """
    found: list[str | Reference] = []
    literal, position = "", 0
    for match in _TOKEN.finditer(text):
        if match["bad"]:
            raise ReferenceSyntaxError(
                f"{_excerpt(text, match.start())!r} is not a reference; write ${{node}} or ${{node.key[0]}}, "
                "or $${ for a literal ${"
            )
        literal += text[position : match.start()]
        position = match.end()
        if match["escape"]:
            literal += "${"
            continue
        found += [literal, _reference(match)] if literal else [_reference(match)]
        literal = ""
    literal += text[position:]
    return (*found, literal) if literal or not found else tuple(found)


def _excerpt(text: str, start: int) -> str:
    end = text.find("}", start) + 1 or len(text)
    return text[start : min(end, start + 60)]


def _reference(match: re.Match[str]) -> Reference:
    return Reference(match["name"], tuple(_step(step) for step in _STEPS.findall(match["path"])))


def _step(text: str) -> str | int:
    if text[0] == ".":
        return text[1:]
    key = json.loads(text)[0]
    return key if isinstance(key, str) else int(key)


def encode(value: Any, number_of: Callable[[Reference], int]) -> Encoded:
    """The value as it stands in `NodePlan.bindings`.

    Args:
        value: literals, lists and dicts, with references in their strings.
        number_of: the source of a reference.

    Raises:
        ReferenceSyntaxError: a `${` begins no reference.
    """
    kind = type(value)
    if kind is str:
        return _encode_text(value, number_of) if "${" in value else value
    if kind is dict:
        inner = {key: encode(part, number_of) for key, part in value.items()}
        return {_LITERAL: inner} if len(inner) == 1 and next(iter(inner)) in _MARKS else inner
    if kind is list or kind is tuple:
        return [encode(part, number_of) for part in value]
    return value


def _encode_text(text: str, number_of: Callable[[Reference], int]) -> Encoded:
    parts = [
        encode_ref(Ref(number_of(part), part.path)) if isinstance(part, Reference) else part
        for part in pieces(text)
    ]
    return parts[0] if len(parts) == 1 else {_TEXT: parts}


def refs_in(encoded: Encoded) -> Iterator[Ref]:
    """The references inside an encoded value; what `$literal` protects is none."""
    waiting = [encoded]
    while waiting:
        part = waiting.pop()
        if type(part) is dict:
            ref = decode_ref(part)
            if ref is not None:
                yield ref
            else:
                waiting.extend((part[_LITERAL] if len(part) == 1 and _LITERAL in part else part).values())
        elif type(part) is list or type(part) is tuple:
            waiting.extend(part)


def label_in(plan: Plan) -> Label:
    """Names the sources of a plan."""

    def label(source: int) -> str:
        if source == INPUTS:
            return "the workflow"
        return "the item" if source == ITEM else f"node {plan.nodes[source].name!r}"

    return label


def _number_label(source: int) -> str:
    return {INPUTS: "the workflow", ITEM: "the item"}.get(source, f"node {source}")


def resolve(bindings: Mapping[str, Any], lookup: Lookup, label: Label = _number_label) -> dict[str, Any]:
    """The arguments of a call. Who resolves the same bindings again and again keeps a `prepare`d form.

    Raises:
        BindingError: a path leads nowhere.
    """
    return prepare(bindings, label)(lookup)


def prepare(bindings: Mapping[str, Any], label: Label = _number_label) -> Callable[[Lookup], dict[str, Any]]:
    """Compiles bindings into a function that gives the arguments, in fresh containers, from a lookup."""
    parts = [(name, _prepared(value, label)) for name, value in bindings.items()]
    return lambda lookup: {name: part(lookup) for name, part in parts}


def _prepared(value: Any, label: Label) -> Callable[[Lookup], Any]:
    ref = decode_ref(value)
    if ref is not None:
        return lambda lookup: read(ref, lookup(ref.source), label)
    if isinstance(value, dict):
        if len(value) == 1 and _TEXT in value:
            return _prepared_text(value[_TEXT], label)
        return prepare(value[_LITERAL] if len(value) == 1 and _LITERAL in value else value, label)
    if isinstance(value, (list, tuple)):
        parts = [_prepared(part, label) for part in value]
        return lambda lookup: [part(lookup) for part in parts]
    return lambda _lookup: value


def _prepared_text(parts: Iterable[Any], label: Label) -> Callable[[Lookup], str]:
    prepared = [_prepared(part, label) for part in parts]
    return lambda lookup: "".join(_as_text(part(lookup)) for part in prepared)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def read(ref: Ref, value: Any, label: Label = _number_label) -> Any:
    """Follows the path of `ref` into the value of its source.

    Raises:
        BindingError: there is nothing at that place; names what there is.
    """
    for depth, step in enumerate(ref.path):
        try:
            value = value[step]
        except (LookupError, TypeError):
            raise BindingError(_missing(ref, depth, value, label)) from None
    return value


def _missing(ref: Ref, depth: int, value: Any, label: Label) -> str:
    """Tells where the path ended, and what stands there."""
    step = ref.path[depth]
    where = {INPUTS: "among its inputs", ITEM: "in it"}.get(ref.source, "in its output")
    if depth:
        where = f"at {path_text(ref.path[:depth]).lstrip('.')!r} {where}"
    return f"{label(ref.source)} has no {step!r} {where}; {_content(value, step)}"


def _content(value: Any, step: str | int) -> str:
    if isinstance(value, dict):
        return f"it has: {_listed(value)}{did_you_mean(str(step), map(str, value))}"
    if isinstance(value, (list, tuple)):
        return f"it is a list of {len(value)}; name an element by its number"
    return "it is null" if value is None else f"it is a {type(value).__name__}"


def _listed(keys: Mapping[Any, Any]) -> str:
    shown = ", ".join(str(key) for key in list(keys)[:_SHOWN_KEYS])
    return (shown or "nothing") + (f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else "")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name most like `name`; None when there is none."""
    match = process.extractOne(name, list(names), scorer=JaroWinkler.similarity, score_cutoff=_ALIKE)
    return match[0] if match and match[0] != name else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the name most like `name`, or nothing when none is; the end of a sentence."""
    found = nearest(name, names)
    return f"; did you mean {found!r}?" if found else ""


__all__ = [
    "Label",
    "Lookup",
    "Reference",
    "ReferenceSyntaxError",
    "did_you_mean",
    "encode",
    "escape",
    "label_in",
    "nearest",
    "parse",
    "pieces",
    "prepare",
    "read",
    "refs_in",
    "resolve",
]
