"""What one process tells those who watch many runs: it counts, and where it traces, sends spans."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.keys import Keys
from mosaic_queues.queue_ages import QueueAges
from mosaic_queues.transitions import LiveCall, RunStanding, Usage
from mosaic_tasks.mixtures.recording import Record
from mosaic_tasks.observability import figures, telling
from mosaic_tasks.observability.current import Current, Means, current
from mosaic_tasks.observability.spans import error_type
from mosaic_tasks.observability.standing import publish_ages
from mosaic_tasks.observability.tallies import Tallies
from mosaic_tasks.observability.tracing import Tracer

log = structlog.get_logger(__name__)

UNDECIDED = "failed"
"""In the place of what decided a mixture, where nothing did."""


class Observer:
    """Of one process. What it does can neither fail nor hold up what it tells of.

    Args:
        now_ms: the server's time.

    Attributes:
        tracer: None: this process does not trace.
        means: what calls are told with.
    """

    def __init__(
        self, client: Redis, keys: Keys, tracer: Tracer | None, *, now_ms: Callable[[], int]
    ) -> None:
        self._client, self._keys = client, keys
        self.tallies, self.tracer = Tallies(), tracer
        self.means = Means(self.tallies, tracer, now_ms)

    def flush(self) -> None:
        """Adds what was counted to what all processes counted; where the server is away, the next time."""
        if self.tracer is not None:
            self.tallies.add(figures.SPANS_LOST, amount=self.tracer.take_lost())
        try:
            self.tallies.flush(self._client, self._keys)
        except RedisError as error:
            log.info("tallies.away", what="what was counted is added later", error=str(error))

    def close(self) -> None:
        """Tells what is left."""
        self.flush()
        if self.tracer is not None:
            self.tracer.close()
            self.flush()

    def submitted(self, run_id: str, workflow: str, *, origin: str, start_ns: int) -> None:
        """A run was opened here, in the course of the span `origin`."""
        if self.tracer is not None:
            end_ns = time.time_ns()
            self.tracer.emit(
                telling.of_submission(run_id, workflow, origin, start_ns=start_ns, end_ns=end_ns)
            )

    def ended(self, call: Current, facts: telling.CallFacts, outcome: str, *, error: str = "") -> None:
        """An attempt ended.

        Args:
            error: what its failure is told with.
        """
        end_ns = time.time_ns()
        self.tallies.observe(figures.CALLS, (end_ns - call.began_ns) / 1e9, facts.kind, outcome)
        if outcome == "retried":
            self.tallies.add(figures.RETRIES, facts.kind)
        if self.tracer is not None:
            kind = error_type(error) if error else ""
            self.tracer.emit(telling.of_attempt(call, facts, outcome, end_ns=end_ns, error=kind))

    def used(self, usage: Usage) -> None:
        """An engine was used."""
        add, model = self.tallies.add, usage.model
        add(figures.TOKENS, model, "input", amount=usage.input_tokens)
        add(figures.TOKENS, model, "output", amount=usage.output_tokens)
        add(figures.TOKENS, model, "cached", amount=usage.cached_tokens)
        add(figures.COST, model, amount=usage.cost_usd or 0.0)

    def decided(self, record: Record, *, workflow: str, node: str) -> None:
        """A mixture came to an end, in the current call."""
        add = self.tallies.add
        add(figures.DECIDED, workflow, node, record.by or UNDECIDED)
        for figure, amount in amounts_of(record).items():
            add(figure, workflow, node, amount=amount)
        call = current()
        if self.tracer is not None and call is not None:
            self.tracer.emit(telling.of_decision(call, record, now_ns=time.time_ns()))

    # -- what the sweeper that leads sees of all processes -------------------------------------------------------------

    def run_ended(self, run_id: str, standing: RunStanding) -> None:
        """A run is over; of each run once, whoever ended it and died thereafter."""
        ended_ms = standing.ended_ms or standing.since_ms
        seconds = max(ended_ms - standing.since_ms, 0) / 1000
        self.tallies.observe(figures.RUNS, seconds, standing.name, standing.status)
        if self.tracer is not None:
            for span in telling.of_run(run_id, standing):
                self.tracer.emit(span)

    def lost(self, run_id: str, call: LiveCall, node: str, *, now_ms: int) -> None:
        """A claim of a process that died was taken back. Who died can tell nothing of it."""
        self.tallies.add(figures.LOSSES)
        if self.tracer is not None:
            self.tracer.emit(telling.of_lost(run_id, call, node, now_ms=now_ms))

    def swept(self, ages: QueueAges, *, mended: int) -> None:
        """All unfinished runs were looked at."""
        self.tallies.add(figures.SWEEPS)
        self.tallies.add(figures.MENDED, amount=mended)
        publish_ages(self._client, self._keys, ages)


def amounts_of(record: Record) -> dict[figures.Figure, float]:
    """What one mixture adds to the figures of all."""
    experts = [said for said in record.calls if said.kind == "expert"]
    return {
        figures.EXPERTS_ASKED: len(experts),
        figures.EXPERTS_CUT: sum(said.is_cut for said in experts),
        figures.EXPERTS_UNASKED: record.unasked,
        figures.AGGREGATORS_SKIPPED: int(record.skipped_aggregator),
        figures.TOKENS_SAVED: record.saved_tokens,
        figures.USD_SAVED: record.saved_usd,
    }


__all__ = ["UNDECIDED", "Observer", "amounts_of"]
