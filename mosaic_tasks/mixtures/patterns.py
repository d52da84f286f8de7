"""Patterns that rules ask for: found in time linear in the text, since they may come from anybody's file."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import StringConstraints, TypeAdapter, ValidationError

from mosaic_queues.errors import ConfigurationError


def pattern_error(pattern: str) -> str | None:
    """What is wrong with a pattern of `Rules`; None where it can be used."""
    try:
        _finder(pattern)
    except Exception as error:  # noqa: BLE001 - pydantic exports no name for what a wrong pattern raises
        return f"{pattern!r} is no pattern of Rust's regex, which has no look-around: {_last_line(error)}"
    return None


def has_pattern(text: str, pattern: str) -> bool:
    """Whether it is found in the text.

    Raises:
        ConfigurationError: it is none.
    """
    wrong = pattern_error(pattern)
    if wrong is not None:
        raise ConfigurationError(f"the rules' pattern {wrong}")
    try:
        _finder(pattern).validate_python(text)
    except ValidationError:
        return False
    return True


@lru_cache(maxsize=256)
def _finder(pattern: str) -> TypeAdapter[str]:
    return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])  # Rust's regex, pydantic's default


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2].strip()


__all__ = ["has_pattern", "pattern_error"]
