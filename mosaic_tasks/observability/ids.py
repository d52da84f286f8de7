"""Ids of traces and spans, derived from what they stand for: whoever knows a call knows its span.

So nothing of a trace travels in messages, a parent may be told after its children or by another process, and a call
that runs again has a span of its own, since the fence of its claim is another.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TypeGuard

_RUN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RANDOM_BITS = 56
"""The last bits of a trace id are by chance, as W3C's Trace Context (level 2) has it; a UUIDv7 keeps to that."""
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def is_run(text: object) -> TypeGuard[str]:
    """Whether it is written as ids of runs are."""
    return isinstance(text, str) and _RUN.fullmatch(text) is not None


def trace_of(run_id: str) -> int:
    """The id of the run's trace: its own 128 bits."""
    return int(run_id.replace("-", ""), 16)


def span_of(run_id: str, *parts: object) -> int:
    """The id of a span of a run: of nothing more, the run's own; `(call, fence)` is that of an attempt."""
    named = "\0".join((run_id, *map(str, parts)))
    return int.from_bytes(blake2b(named.encode(), digest_size=8).digest(), "big") or 1


def is_in_ratio(trace: int, ratio: float) -> bool:
    """Whether a trace is among the part of all that is kept. All processes agree on it."""
    return trace & (1 << _RANDOM_BITS) - 1 < ratio * (1 << _RANDOM_BITS)


def read_traceparent(header: str) -> tuple[int, int, int] | None:
    """Trace, span and flags of a header `traceparent`; None: it is none."""
    found = _TRACEPARENT.fullmatch(header.strip())
    if found is None:
        return None
    trace, span, flags = (int(part, 16) for part in found.groups())
    return (trace, span, flags) if trace and span else None


def traceparent(trace: int, span: int, flags: int) -> str:
    """The header that names a span."""
    return f"00-{trace:032x}-{span:016x}-{flags:02x}"


__all__ = ["is_in_ratio", "is_run", "read_traceparent", "span_of", "trace_of", "traceparent"]
