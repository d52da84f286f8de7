"""What the headers of a provider's answer say of its rate limits: pure functions.

Of OpenAI and those who follow it `x-ratelimit-remaining-requests` and `x-ratelimit-reset-requests: 6m0s` are read,
and the same in Anthropic's form, whose resets are moments; and the pauses `retry-after-ms` and `Retry-After`. What
cannot be read says nothing; a negative number or one without end cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping

from mosaic_routing.guards.buckets import LONGEST_MS, MAX_AMOUNT
from mosaic_routing.guards.readers import moment_s, number, until_s
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


def told(headers: Mapping[str, str], unit: Unit, *, now_s: float) -> Told:
    """What remains of a limit, and when it is whole again, as far as is said.

    Args:
        headers: by name, in small letters.
        now_s: seconds since 1970; the provider's own `Date` is preferred, for moments are of its clock.
    """
    for remaining_name, reset_name in _NAMES[unit]:
        remaining = number(headers.get(remaining_name, ""))
        if remaining is not None:
            reset_ms = _until_ms(headers.get(reset_name, ""), _clock_s(headers, now_s))
            return Told(int(min(remaining, MAX_AMOUNT)), int(min(reset_ms, LONGEST_MS)))
    return Told()


def pause_ms(headers: Mapping[str, str], *, now_s: float) -> int:
    """How long the provider asks to be left alone; 0 where it does not. Arguments are those of `told`."""
    milliseconds = number(headers.get("retry-after-ms", ""))
    if milliseconds is None:
        milliseconds = _until_ms(headers.get("retry-after", ""), _clock_s(headers, now_s))
    return int(min(milliseconds, LONGEST_MS))


def paused(told: Told, pause: int) -> Told:
    """A limit of a provider that asks to be left alone for so many milliseconds: nothing remains of any before."""
    return Told(0, max(pause, told.reset_ms if told.remaining == 0 else 0)) if pause else told


def _clock_s(headers: Mapping[str, str], now_s: float) -> float:
    said_s = moment_s(headers.get("date", ""))
    return now_s if said_s is None else said_s


def _until_ms(value: str, now_s: float) -> float:
    """Until what `value` says; 0 where it says nothing."""
    return (until_s(value, now_s) or 0.0) * 1_000
