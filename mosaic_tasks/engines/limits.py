"""What the headers of a server's answer say about its rate limits: pure functions.

Three families are read: the pauses that a server asks for (`retry-after-ms`, `Retry-After`), what OpenAI and those who
follow it tell of each limit (`x-ratelimit-remaining-requests`, `x-ratelimit-reset-requests: 6m0s`), and the same in
Anthropic's form, whose resets are moments (`anthropic-ratelimit-tokens-reset: 2026-01-31T12:00:00Z`). What cannot be
read says nothing, and no pause is believed beyond an hour.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_LIMITS = (
    *((f"x-ratelimit-remaining-{what}", f"x-ratelimit-reset-{what}") for what in ("requests", "tokens")),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("ratelimit-remaining", "ratelimit-reset"),
    *(
        (f"anthropic-ratelimit-{what}-remaining", f"anthropic-ratelimit-{what}-reset")
        for what in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
)
"""What is left of a limit, and when it is whole again."""
_LONGEST_S = 3_600.0
"""More is believed of no server: a wrong header would put its endpoint to rest until the process ends."""
_UNITS_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|ms|m|s|us|µs|ns)")
_MOMENT_S = 1e9
"""Numbers from here on are no durations but moments, in seconds since 1970; a hundred times that: in milliseconds."""


def asked_pause_s(headers: Mapping[str, str], *, now_s: float) -> float | None:
    """The pause that a server asks for before the next request, at most an hour, or None.

    Args:
        headers: by name, in small letters.
        now_s: seconds since 1970.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return min(_LONGEST_S, milliseconds / 1000)
    asked_s = _until(headers.get("retry-after", ""), now_s)
    return None if asked_s is None else min(_LONGEST_S, asked_s)


def reset_pause_s(headers: Mapping[str, str], *, now_s: float) -> float:
    """Seconds until every limit of which nothing remains is whole again, at most an hour; 0 where there is none such.

    Args:
        headers: by name, in small letters.
        now_s: seconds since 1970.
    """
    used_up = (reset for remaining, reset in _LIMITS if _number(headers.get(remaining, "")) == 0)
    reset_s = max((_until(headers.get(reset, ""), now_s) or 0.0 for reset in used_up), default=0.0)
    return min(_LONGEST_S, reset_s)


def _until(value: str, now_s: float) -> float | None:
    """Seconds until what `value` says: a number, a duration like `6m0s`, or a moment; 0 where it has passed."""
    number = _number(value)
    if number is None:
        number = _duration_s(value)
    if number is None:
        moment = _moment(value)
        return None if moment is None else max(0.0, moment - now_s)
    if number < _MOMENT_S:
        return number
    return max(0.0, (number if number < 100 * _MOMENT_S else number / 1000) - now_s)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _duration_s(value: str) -> float | None:
    parts = _PART.findall(value)
    if not parts or "".join(number + unit for number, unit in parts) != value.strip():
        return None
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def _moment(value: str) -> float | None:
    """The moment that an ISO or an HTTP date names, in seconds since 1970; without a zone it is UTC's."""
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(value)
        except (ValueError, OverflowError):
            continue
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None
