"""How moments are written."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_text(ms: int) -> str:
    """A moment in UTC to the second, as RFC 3339 has it: `2026-11-30T07:00:00Z`.

    Args:
        ms: Unix milliseconds.
    """
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


__all__ = ["utc_text"]
