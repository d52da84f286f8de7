"""Does a value fit a JSON Schema, and if not, which field does not?"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from mosaic_queues.errors import EngineRefused

_SHOWN = 240


def mismatch(value: Any, schema: dict[str, Any]) -> str | None:
    """The first thing that is wrong with `value`, as `field 'people[0].name': ...`, or None when it fits.

    References are resolved inside the schema only: nothing is ever fetched.

    Raises:
        EngineRefused: `schema` is not a valid JSON Schema.
    """
    try:
        error = best_match(_validator(msgspec.json.encode(schema)).iter_errors(value))
    except Unresolvable as unresolved:
        raise EngineRefused(
            f"the output schema refers to {unresolved.ref!r}, which it does not hold; define it under '$defs'"
        ) from unresolved
    return None if error is None else f"field {_field(error)!r}: {_shortened(error.message)}"


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Draft202012Validator:
    decoded = msgspec.json.decode(schema)
    try:
        Draft202012Validator.check_schema(decoded)
    except SchemaError as error:
        where = "/".join(str(step) for step in error.absolute_path) or "its root"
        raise EngineRefused(
            f"the output schema is not a JSON Schema: {_shortened(error.message)} at {where}; "
            "correct the agent's 'output'"
        ) from error
    return Draft202012Validator(decoded, registry=Registry())


def _field(error: ValidationError) -> str:
    path = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path
    ).removeprefix(".")
    wanted: Any = error.validator_value
    held: Any = error.instance
    if error.validator != "required":
        return path or "(the whole answer)"
    missing = next(name for name in wanted if name not in held)
    return f"{path}.{missing}" if path else str(missing)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"
