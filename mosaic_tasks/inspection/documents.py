"""Values of runs, and what is told of runs, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec


def to_json(document: Any) -> bytes:
    """JSON of any value that a run can hold, on one line; bytes become base64, named tuples objects."""
    return msgspec.json.encode(_plain(document))


def _plain(value: Any) -> Any:
    """Named tuples as objects."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
