"""The figures that processes count, by name: what they mean, what they are told apart by, and their buckets.

Names are public: dashboards and alerts go by them. docs/reference/metrics.md lists them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal, NamedTuple

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_LONG_SECONDS = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
OTHER = "other"
"""In the place of a name that users chose, where there are too many of them."""
FREE = frozenset({"workflow", "node", "queue", "model"})
"""Labels whose values users choose."""


class Figure(NamedTuple):
    """Something that is counted.

    Attributes:
        name: behind `mosaic_`.
        buckets: upper bounds; of a histogram alone.
    """

    name: str
    kind: Literal["counter", "histogram"]
    about: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def bucket_of(self, amount: float) -> int:
        """The place of the smallest bucket that holds an amount; behind the last one: none does."""
        return bisect_left(self.buckets, amount)

    def capped(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Values of its labels without those that users chose."""
        return tuple(
            OTHER if label in FREE else value for label, value in zip(self.labels, values, strict=True)
        )


def _counter(name: str, about: str, *labels: str) -> Figure:
    return Figure(name, "counter", about, labels)


def _seconds(name: str, about: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Figure:
    return Figure(name, "histogram", about, labels, buckets)


RUNS = _seconds(
    "run_seconds", "Runs that are over, and how long they took.", "workflow", "status", buckets=_LONG_SECONDS
)
CALLS = _seconds("call_seconds", "Attempts of calls, by what ran and what came of it.", "kind", "outcome")
QUEUED = _seconds("queue_seconds", "How long calls waited, from ready to claimed.", "queue")
REQUESTS = _seconds("request_seconds", "Questions to engines.", "engine", "outcome")
FIRST_TOKENS = _seconds("first_token_seconds", "From a question to the first piece of its answer.", "engine")
CHUNK_LAG = _seconds("chunk_lag_seconds", "Age of chunks of streams when their readers took them.")
TOKENS = _counter("tokens", "Tokens of engines.", "model", "direction")
COST = _counter("cost_usd", "US dollars of engines, where the price is known.", "model")
RETRIES = _counter("retries", "Calls that failed and are tried again.", "kind")
LOSSES = _counter("losses", "Calls whose process died, and that were taken back.")
HEDGES = _counter("hedges", "Calls that were asked a second time elsewhere.")
SWEEPS = _counter("sweeps", "Rounds of the sweeper.")
MENDED = _counter("mended", "Calls that the sweeper published again.")
SPANS_LOST = _counter("spans_lost", "Spans of traces that the collector did not take, or not in time.")
DECIDED = _counter(
    "mixture_decided", "Mixtures that came to an end, by what decided.", "workflow", "node", "by"
)


def _of_mixtures(name: str, about: str) -> Figure:
    return _counter(f"mixture_{name}", about, "workflow", "node")


EXPERTS_ASKED = _of_mixtures("experts_asked", "Calls to experts of mixtures.")
EXPERTS_CUT = _of_mixtures(
    "experts_cut", "Calls to experts that were cut off, or not begun, since they were not needed any more."
)
EXPERTS_UNASKED = _of_mixtures("experts_unasked", "Calls to experts that were never made.")
AGGREGATORS_SKIPPED = _of_mixtures(
    "aggregators_skipped", "Mixtures that did not need their aggregator or verifier."
)
TOKENS_SAVED = _of_mixtures(
    "tokens_saved", "Tokens, estimated, of the calls that were cut off or never made."
)
USD_SAVED = _of_mixtures("usd_saved", "US dollars, estimated, of the calls that were cut off or never made.")

FIGURES: dict[str, Figure] = {
    figure.name: figure for figure in list(globals().values()) if isinstance(figure, Figure)
}
"""All of them."""
