"""Whether a model's answers surely have the form that somebody asks for.

The form is a schema from outside. It is only walked beside the model's own one, which bounds the time; no pattern of it
is tried, and no reference of it is followed to elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mosaic_tasks.definition.schemas import ANY, Schema

_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$defs", "$schema", "$id", "$comment", "deprecated")
)
_WALKED = frozenset(("type", "properties", "required", "items", "enum", "const", "additionalProperties"))
_MOST_DEEP = 16
_MOST_REFERENCES = 8


def is_object(output: Schema) -> bool:
    """Whether all values of a schema are objects."""
    return _types(_followed(output, output)) == {"object"}


def guarantees(output: Schema, wanted: Any) -> bool:
    """Whether each value of the schema `output` fits the schema `wanted`, as far as it can be told.

    A schema that lists properties is taken at its word: others are not expected of it.
    """
    return isinstance(wanted, dict) and _covers(output, wanted, (output, wanted), 0)


def _covers(given: Any, wanted: Any, roots: tuple[Schema, Schema], depth: int) -> bool:
    given, wanted = _followed(given, roots[0]), _followed(wanted, roots[1])
    if wanted is None or given is None or depth > _MOST_DEEP:
        return False
    if not wanted.keys() - _ANNOTATIONS:
        return True
    rules = wanted.keys() - _ANNOTATIONS - _WALKED
    return (
        all(given.get(name) == wanted[name] for name in rules)
        and _covers_types(given, wanted)
        and _covers_values(given, wanted)
        and _covers_properties(given, wanted, roots, depth)
        and ("items" not in wanted or _covers(given.get("items", ANY), wanted["items"], roots, depth + 1))
    )


def _covers_types(given: Schema, wanted: Schema) -> bool:
    have, want = _types(given), _types(wanted)
    if want is None:
        return "type" not in wanted
    return have is not None and have <= want | ({"integer"} if "number" in want else set())


def _types(schema: Schema | None) -> set[str] | None:
    declared = (schema or {}).get("type")
    if isinstance(declared, str):
        return {declared}
    return {str(name) for name in declared} if isinstance(declared, list) else None


def _covers_values(given: Schema, wanted: Schema) -> bool:
    have, want = _values(given), _values(wanted)
    if want is None:
        return "enum" not in wanted
    return have is not None and all(value in want for value in have)


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _covers_properties(given: Schema, wanted: Schema, roots: tuple[Schema, Schema], depth: int) -> bool:
    have, want, more = (
        given.get("properties", {}),
        wanted.get("properties", {}),
        wanted.get("additionalProperties"),
    )
    needed = wanted.get("required", [])
    if not isinstance(want, dict) or not isinstance(needed, list) or isinstance(more, dict):
        return False
    closed = more is not False or have.keys() <= want.keys()
    has_all = all(name in given.get("required", []) for name in needed)
    both = have.keys() & want.keys()
    return closed and has_all and all(_covers(have[name], want[name], roots, depth + 1) for name in both)


def _followed(schema: Any, root: Schema) -> Schema | None:
    """The schema behind local references; None where there is none to be found."""
    for _ in range(_MOST_REFERENCES):
        if isinstance(schema, bool):
            return ANY if schema else None
        if not isinstance(schema, dict):
            return None
        if "$ref" not in schema:
            return schema
        schema = _definition(root, schema["$ref"])
    return None


def _definition(root: Schema, reference: Any) -> Any:
    definitions = root.get("$defs")
    if not isinstance(reference, str) or not isinstance(definitions, Mapping):
        return None
    return definitions.get(reference.removeprefix("#/$defs/"))
