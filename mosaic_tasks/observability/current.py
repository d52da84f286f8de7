"""The call that this thread or coroutine works on, for its log lines and the spans below its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from mosaic_queues.streams import Chunk
from mosaic_tasks.observability.figures import CHUNK_LAG
from mosaic_tasks.observability.ids import span_of, trace_of
from mosaic_tasks.observability.spans import MOST_LINKS
from mosaic_tasks.observability.tallies import Tallies
from mosaic_tasks.observability.tracing import Tracer


class Means(NamedTuple):
    """By which a process tells of its calls.

    Attributes:
        tracer: None: it does not trace.
        now_ms: the server's time.
    """

    tallies: Tallies
    tracer: Tracer | None
    now_ms: Callable[[], int]


class Current:
    """One attempt of a call, from its start to its end.

    Attributes:
        number: which attempt, from 1.
        began_ns: since 1970.
        requests: questions to engines so far.
        chunks: of streams, read so far.
        heard: calls and fences whose chunks, or whose answers to a mixture, it has read.
    """

    __slots__ = (
        "began_ns",
        "call",
        "chunks",
        "fence",
        "heard",
        "means",
        "node",
        "number",
        "requests",
        "run_id",
    )

    def __init__(self, means: Means, run_id: str, *, node: str, call: str, fence: int, number: int) -> None:
        self.means, self.run_id, self.node, self.call = means, run_id, node, call
        self.fence, self.number, self.began_ns = fence, number, time.time_ns()
        self.requests = self.chunks = 0
        self.heard: dict[tuple[str, int], None] = {}

    @property
    def trace(self) -> int:
        """The id of its trace."""
        return trace_of(self.run_id)

    @property
    def span(self) -> int:
        """The id of its span."""
        return span_of(self.run_id, self.call, self.fence)

    def hear(self, call: str, fence: int) -> None:
        """It has read what an attempt of another call has put out."""
        if len(self.heard) < MOST_LINKS:
            self.heard[call, fence] = None


_current: ContextVar[Current | None] = ContextVar("mosaic_call", default=None)
current = _current.get


@contextmanager
def working_on(call: Current | None) -> Iterator[None]:
    """Within, this call is the current one."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


def heard(chunks: Sequence[Chunk]) -> None:
    """The current call reads these chunks of a stream."""
    call = current()
    if call is None or not chunks:
        return
    oldest_ms = int(chunks[0].id.partition("-")[0])
    call.means.tallies.observe(CHUNK_LAG, max(call.means.now_ms() - oldest_ms, 0) / 1000)
    for chunk in chunks:
        if chunk.kind != "retract":
            call.hear(chunk.call, chunk.attempt)
    call.chunks += len(chunks)


__all__ = ["Current", "Means", "current", "heard", "working_on"]
