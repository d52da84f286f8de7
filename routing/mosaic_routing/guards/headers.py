"""What the headers of a provider's answer say of its rate limits: pure functions.

Of OpenAI and those who follow it `x-ratelimit-remaining-requests` and `x-ratelimit-reset-requests: 6m0s` are read,
and the same in Anthropic's form, whose resets are moments; and the pauses `retry-after-ms` and `Retry-After`. What
cannot be read says nothing; a negative number or one without end cannot be read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from mosaic_routing.guards.buckets import LONGEST_MS, MAX_AMOUNT
from mosaic_routing.guards.values import Told, Unit

_NAMES: dict[Unit, tuple[tuple[str, str], ...]] = {
    "requests": (
        ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
        ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ),
    "tokens": (
        ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
        ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ),
}
"""What remains of a limit, and when it is whole again."""
_UNITS_MS = {
    "d": 86_400_000.0,
    "h": 3_600_000.0,
    "m": 60_000.0,
    "s": 1_000.0,
    "ms": 1.0,
    "us": 1e-3,
    "ns": 1e-6,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|ms|m|s|us|ns)")
_MOMENT_S = 1e9
"""Numbers from here on are no durations but moments, in seconds since 1970."""


def told(headers: Mapping[str, str], unit: Unit, *, now_s: float) -> Told:
    """What remains of a limit, and when it is whole again, as far as is said.

    Args:
        headers: by name, in small letters.
        now_s: seconds since 1970; the provider's own `Date` is preferred, for moments are of its clock.
    """
    for remaining_name, reset_name in _NAMES[unit]:
        remaining = _number(headers.get(remaining_name, ""))
        if remaining is not None:
            reset_ms = _until_ms(headers.get(reset_name, ""), _clock_s(headers, now_s))
            return Told(int(min(remaining, MAX_AMOUNT)), int(min(reset_ms, LONGEST_MS)))
    return Told()


def pause_ms(headers: Mapping[str, str], *, now_s: float) -> int:
    """How long the provider asks to be left alone; 0 where it does not. Arguments are those of `told`."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is None:
        milliseconds = _until_ms(headers.get("retry-after", ""), _clock_s(headers, now_s))
    return int(min(milliseconds, LONGEST_MS))


def _clock_s(headers: Mapping[str, str], now_s: float) -> float:
    said_s = _moment_s(headers.get("date", ""))
    return now_s if said_s is None else said_s


def _until_ms(value: str, now_s: float) -> float:
    """Until what `value` says: a number of seconds, a duration like `6m0s`, or a moment; 0 where it says nothing."""
    number = _number(value)
    if number is not None and number < _MOMENT_S:
        return number * 1_000
    moment_s = _moment_s(value) if number is None else number
    if moment_s is not None:
        return max(0.0, (moment_s - now_s) * 1_000)
    parts = _PART.findall(value)
    is_whole = "".join(amount + unit for amount, unit in parts) == value.strip()
    return sum(float(amount) * _UNITS_MS[unit] for amount, unit in parts) if is_whole else 0.0


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _moment_s(value: str) -> float | None:
    """The moment that an ISO or an HTTP date names, in seconds since 1970; without a zone it is UTC's."""
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            continue
    return None
