"""JSON Schemas of inputs, tools and agents: made from types, followed along paths, compared.

A comparison tells definite mismatches only: what may fit is left to the run. A schema that lists properties
is taken at its word, unless it says `additionalProperties: true`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

from pydantic import PydanticUserError, TypeAdapter

from mosaic_queues.documents import path_text
from mosaic_queues.errors import InputError
from mosaic_tasks.definition.references import Path, did_you_mean, nearest

Schema = dict[str, Any]

ANY: Schema = {}
"""The schema that everything fits."""
TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}
_SIMPLE = frozenset(("type", "default", "description", "title", "examples"))
_MAX_DEPTH = 8


def schema_of(annotation: Any, *, output: bool = False) -> Schema:
    """The JSON Schema of a type; `ANY` for a type that has none.

    Before Python 3.12 a `typing.TypedDict` has none; that of `typing_extensions` has.

    Args:
        annotation: whatever stands in an annotation.
        output: describe what such a value looks like once written, rather than what is accepted for it.
    """
    try:
        schema = TypeAdapter(annotation).json_schema(mode="serialization" if output else "validation")
    except (PydanticUserError, TypeError, NameError):
        return ANY
    return _merged_types(schema)


def _merged_types(schema: Schema) -> Schema:
    """`anyOf` of bare types written as a list of types, the way people write it."""
    options = schema.get("anyOf")
    if not options or any(set(option) != {"type"} or type(option["type"]) is not str for option in options):
        return schema
    return {"type": [option["type"] for option in options]} | {
        key: value for key, value in schema.items() if key != "anyOf"
    }


class NoSuchPath(LookupError):
    """A path that no value of the schema has; `str()` says where it ends and what there is."""


def schema_at(schema: Schema, path: Path) -> Schema:
    """The schema of the part at `path`; `ANY` where the schema does not tell.

    Raises:
        NoSuchPath: values of the schema definitely have no such part.
    """
    definitions = schema.get("$defs")
    for depth, step in enumerate(path):
        schema = _part(_followed(schema, definitions or {}), step, path[:depth])
    schema = _followed(schema, definitions or {})
    return {**schema, "$defs": definitions} if definitions and schema else schema


def _followed(schema: Any, definitions: Mapping[str, Any]) -> Schema:
    """The schema behind a local `$ref`; `ANY` for a reference elsewhere or a boolean schema."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict):
            return ANY
        if "$ref" not in schema:
            return schema
        schema = definitions.get(str(schema["$ref"]).removeprefix("#/$defs/"), ANY)
    return ANY


def _part(schema: Schema, step: str | int, before: Path) -> Any:
    types = _types(schema)
    if any(key in schema for key in ("anyOf", "oneOf", "allOf", "not", "if")) or types is None:
        return ANY
    if isinstance(step, int):
        return _element(schema, step, types, before)
    return _property(schema, step, types, before)


def _element(schema: Schema, step: int, types: set[str], before: Path) -> Any:
    if not types & {"array", "object"}:
        _no_part(f"it is {_readable(types)}, which has no elements", step, before)
    if "array" not in types:
        _no_part("it is an object; name a key, not a number", step, before)
    prefix = schema.get("prefixItems", [])
    return prefix[step] if 0 <= step < len(prefix) else schema.get("items", ANY)


def _property(schema: Schema, step: str, types: set[str], before: Path) -> Any:
    if "object" not in types:
        _no_part(f"it is {_readable(types)}, which has no keys", step, before)
    properties = schema.get("properties", {})
    if step in properties:
        return properties[step]
    more = schema.get("additionalProperties")
    if "patternProperties" in schema or more is True or (more is None and not properties):
        return ANY
    if isinstance(more, dict):
        return more
    return _no_part(
        f"it has: {', '.join(properties) or 'nothing'}{did_you_mean(step, properties)}", step, before
    )


def _no_part(reason: str, step: str | int, before: Path) -> NoReturn:
    where = f" at {path_text(before).lstrip('.')!r}" if before else ""
    raise NoSuchPath(f"has no {step!r}{where}; {reason}")


def _types(schema: Schema) -> set[str] | None:
    """The types that the schema allows, or None when it does not tell."""
    declared = schema.get("type")
    if declared is None:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        return None if values is None else {_type_of(value) for value in values}
    return {declared} if isinstance(declared, str) else set(declared)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, types in _PYTHON_TYPES.items() if isinstance(value, types)), "object")


def _readable(types: set[str]) -> str:
    return " or ".join(sorted(types))


def mismatch(producer: Schema, consumer: Schema) -> str | None:
    """Why no value of `producer` fits `consumer`, or None when one may."""
    return _mismatch(producer, consumer, (producer.get("$defs", {}), consumer.get("$defs", {})), 0)


def _mismatch(given: Any, wanted: Any, defs: tuple[Schema, Schema], depth: int) -> str | None:
    given, wanted = _followed(given, defs[0]), _followed(wanted, defs[1])
    if depth > _MAX_DEPTH or not given or not wanted:
        return None
    for options, flip in ((_options(given), False), (_options(wanted), True)):
        if options:
            pairs = [(given, option) if flip else (option, wanted) for option in options]
            reasons = [_mismatch(*pair, defs, depth + 1) for pair in pairs]
            return reasons[0] if all(reasons) else None
    return _plain_mismatch(given, wanted, defs, depth)


def _options(schema: Schema) -> list[Any]:
    options: list[Any] = schema.get("anyOf") or schema.get("oneOf") or []
    return options


def _plain_mismatch(given: Schema, wanted: Schema, defs: tuple[Schema, Schema], depth: int) -> str | None:
    have, want = _types(given), _types(wanted)
    if have is None or want is None:
        return None
    both = have & want | (have & {"integer"} if "number" in want else set())
    both |= {"integer"} if "number" in have and "integer" in want else set()
    if not both:
        return f"it is {_readable(have)}, but {_readable(want)} is wanted"
    if both == {"array"}:
        reason = _mismatch(given.get("items", ANY), wanted.get("items", ANY), defs, depth + 1)
        return reason and f"of its elements: {reason}"
    if both == {"object"}:
        return _object_mismatch(given, wanted, defs, depth)
    return _value_mismatch(given, wanted)


def _object_mismatch(given: Schema, wanted: Schema, defs: tuple[Schema, Schema], depth: int) -> str | None:
    have, want = given.get("properties", {}), wanted.get("properties", {})
    open_ended = not have or given.get("additionalProperties") not in (None, False)
    for name in wanted.get("required", ()):
        if name not in have and not open_ended:
            return f"it lacks the key {name!r}{did_you_mean(name, have)}"
    for name in have.keys() & want.keys():
        reason = _mismatch(have[name], want[name], defs, depth + 1)
        if reason:
            return f"of its key {name!r}: {reason}"
    return None


def _value_mismatch(given: Schema, wanted: Schema) -> str | None:
    have, want = _values(given), _values(wanted)
    if have is None or want is None or any(value in want for value in have):
        return None
    return f"it is one of {have!r}, but one of {want!r} is wanted"


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values: list[Any] | None = schema.get("enum")
    return values


def misfit(value: Any, schema: Schema) -> str | None:
    """Why a value does not fit a schema, or None when it does."""
    types = _types(schema)
    if types is not None and not any(_is_a(value, name) for name in types):
        return f"{value!r:.80} is {_type_of(value)}, but {_readable(types)} is wanted"
    return None if schema.keys() <= _SIMPLE else _deep_misfit(value, json.dumps(schema, sort_keys=True))


def _is_a(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON_TYPES.get(name, ()))


def _deep_misfit(value: Any, schema: str) -> str | None:
    from jsonschema.exceptions import best_match

    error = best_match(_validator(schema).iter_errors(value))
    if error is None:
        return None
    where = path_text(tuple(error.absolute_path)).lstrip(".")
    return f"{error.message:.300}" + (f" (at {where!r})" if where else "")


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def schema_problem(schema: Schema) -> str | None:
    """Why this is no JSON Schema, or None when it is one."""
    if schema.keys() <= _SIMPLE:
        unknown = [name for name in _types(schema) or () if name not in TYPES]
        return f"no type {unknown[0]!r}{did_you_mean(unknown[0], TYPES)}" if unknown else None
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = path_text(tuple(error.absolute_path)).lstrip(".") or "its root"
        return f"it is no JSON Schema: {error.message:.200} (at {where!r})"
    return None


def inputs_schema(inputs: Mapping[str, Schema]) -> Schema:
    """The schema of a run's inputs: an object with these properties and no others."""
    if not inputs:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {
        "type": "object",
        "properties": dict(inputs),
        "required": [name for name, schema in inputs.items() if "default" not in schema],
        "additionalProperties": False,
    }


def complete_inputs(schema: Schema, given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a run with defaults filled in.

    Args:
        schema: from `inputs_schema`.
        given: values by name.

    Raises:
        InputError: unknown or missing names, values of a wrong type; tells all of them.
    """
    declared: Mapping[str, Schema] = schema.get("properties", {})
    problems = [_unknown_input(name, declared) for name in given if name not in declared]
    values: dict[str, Any] = {}
    for name, wanted in declared.items():
        if name in given:
            values[name] = given[name]
            reason = misfit(given[name], wanted)
            problems += [f"input {name!r}: {reason}"] if reason else []
        elif "default" in wanted:
            values[name] = wanted["default"]
        else:
            problems.append(f"input {name!r} is missing and has no default")
    if problems:
        raise InputError("; ".join(problems))
    return values


def _unknown_input(name: str, declared: Mapping[str, Schema]) -> str:
    known = f"it has: {', '.join(declared)}" if declared else "it has none"
    near = nearest(name, declared)
    hint = f" (did you mean {near!r}?)" if near else ""
    return f"the workflow has no input {name!r}{hint}; {known}"


def read_inputs(schema: Schema, texts: Mapping[str, str]) -> dict[str, Any]:
    """Values of a command line, read by the type of each input: text where a string is wanted, else JSON.

    Raises:
        InputError: a text is no JSON where JSON is wanted.
    """
    declared: Mapping[str, Schema] = schema.get("properties", {})
    return {name: _read_input(name, text, declared.get(name, ANY)) for name, text in texts.items()}


def _read_input(name: str, text: str, schema: Schema) -> Any:
    types = _types(schema) or set(TYPES)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if "string" in types and (isinstance(value, str) or not any(_is_a(value, other) for other in types)):
        return text
    if "string" in types and types != set(TYPES) and value is not None:
        return text
    if isinstance(value, str) and value == text:
        raise InputError(f"input {name!r}: {text!r:.80} is not {_readable(types)} written as JSON")
    return value


__all__ = [
    "ANY",
    "TYPES",
    "NoSuchPath",
    "Schema",
    "complete_inputs",
    "inputs_schema",
    "misfit",
    "mismatch",
    "read_inputs",
    "schema_at",
    "schema_of",
    "schema_problem",
]
