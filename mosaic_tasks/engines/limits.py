"""What the headers of a server's answer say about its rate limits: pure functions.

Three families are read: the pauses that a server asks for (`retry-after-ms`, `Retry-After`), what OpenAI and those who
follow it tell of each limit (`x-ratelimit-remaining-requests`, `x-ratelimit-reset-requests: 6m0s`), and the same in
Anthropic's form, whose resets are moments (`anthropic-ratelimit-tokens-reset: 2026-01-31T12:00:00Z`). What cannot be
read says nothing, and no pause is believed beyond an hour.

An engine that hears such headers says so by `tell_limits`; whoever asks it hears them within `hearing_limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from mosaic_routing.guards.readers import number, until_s

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


Hear = Callable[[Mapping[str, str]], None]
"""Is told headers, on the event loop."""
_hears: ContextVar[Hear | None] = ContextVar("mosaic_hears_limits", default=None)


@contextmanager
def hearing_limits(hear: Hear) -> Iterator[None]:
    """What engines that are asked in this block, and in its tasks, are told of the limits of a deployment."""
    token = _hears.set(hear)
    try:
        yield
    finally:
        _hears.reset(token)


def tell_limits(headers: Mapping[str, str]) -> None:
    """An answer, or a refusal, came with these headers."""
    hear = _hears.get()
    if hear is not None:
        hear(headers)


def asked_pause_s(headers: Mapping[str, str], *, now_s: float) -> float | None:
    """The pause that a server asks for before the next request, at most an hour, or None.

    Args:
        headers: by name, in small letters.
        now_s: seconds since 1970.
    """
    milliseconds = number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return min(_LONGEST_S, milliseconds / 1000)
    asked_s = until_s(headers.get("retry-after", ""), now_s)
    return None if asked_s is None else min(_LONGEST_S, asked_s)


def reset_pause_s(headers: Mapping[str, str], *, now_s: float) -> float:
    """Seconds until every limit of which nothing remains is whole again, at most an hour; 0 where there is none such.

    Args:
        headers: by name, in small letters.
        now_s: seconds since 1970.
    """
    used_up = (reset for remaining, reset in _LIMITS if number(headers.get(remaining, "")) == 0)
    reset_s = max((until_s(headers.get(reset, ""), now_s) or 0.0 for reset in used_up), default=0.0)
    return min(_LONGEST_S, reset_s)
