"""Reads numbers, durations and moments as servers write them in headers: pure functions."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_UNITS_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|ms|m|s|us|µs|ns)")
_MOMENT_S = 1e9
"""Numbers from here on are no durations but moments, in seconds since 1970; a hundred times that: in milliseconds."""


def until_s(value: str, now_s: float) -> float | None:
    """Seconds until what `value` says: a number, a duration like `6m0s`, or a moment; 0 where it has passed.

    None: it says nothing.
    """
    read = number(value)
    if read is None:
        read = _duration_s(value)
    if read is None:
        moment = moment_s(value)
        return None if moment is None else max(0.0, moment - now_s)
    if read < _MOMENT_S:
        return read
    return max(0.0, (read if read < 100 * _MOMENT_S else read / 1000) - now_s)


def number(value: str) -> float | None:
    """A number from 0 on; None: it is none, or has no end."""
    try:
        read = float(value)
    except ValueError:
        return None
    return read if math.isfinite(read) and read >= 0 else None


def _duration_s(value: str) -> float | None:
    parts = _PART.findall(value)
    if not parts or "".join(amount + unit for amount, unit in parts) != value.strip():
        return None
    return sum(float(amount) * _UNITS_S[unit] for amount, unit in parts)


def moment_s(value: str) -> float | None:
    """The moment that an ISO or an HTTP date names, in seconds since 1970; without a zone it is UTC's."""
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(value)
        except (ValueError, OverflowError):
            continue
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


__all__ = ["moment_s", "number", "until_s"]
