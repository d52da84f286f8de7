"""What runs take of the server, measured beside them, so that it costs their transitions nothing."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice

import structlog
from redis.exceptions import NoPermissionError, ResponseError

from mosaic_queues.ledger import Ledger
from mosaic_queues.payloads import PayloadStore
from mosaic_queues.transitions import INPUTS_CALL

log = structlog.get_logger(__name__)

MEASURE_EVERY_S = 5.0
RUNS_A_TRIP = 100
RUNS_A_TURN = 1_000
SAMPLES = 5
ALL = 0
OUTPUTS_READ = 20_000
_NODE = re.compile(rb"\d+")


class RunSizes:
    """Finds runs that outgrew the server, some each few seconds.

    The server estimates the size of a hash from a few of its fields, which may be its largest ones; so a run is counted
    exactly before it is said to be too large.

    Args:
        max_bytes: what the state, outputs, events, chunks and payloads of one run may take together.
    """

    def __init__(self, ledger: Ledger, *, max_bytes: int) -> None:
        self._ledger, self._max_bytes = ledger, max_bytes
        self._is_allowed = True
        self._next_turn, self._position = 0.0, 0
        self._counted: dict[str, float] = {}

    def beyond(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The runs beyond the limit, and what they take, in bytes; of more runs than a turn, those whose turn it is."""
        if not self._is_allowed or time.monotonic() < self._next_turn:
            return {}
        self._next_turn = time.monotonic() + MEASURE_EVERY_S
        try:
            return self._beyond(self._turn(run_ids))
        except ResponseError as error:
            if not isinstance(error, NoPermissionError) and "unknown" not in str(error).lower():
                raise
            self._is_allowed = False
            log.warning(
                "sweeper.unmeasured",
                what="server does not tell sizes (MEMORY USAGE), so MOSAIC_MAX_RUN_BYTES is not enforced",
                error=str(error),
            )
            return {}

    def _beyond(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Estimates all, and counts what seems too large; what was counted, again when it has grown by a quarter."""
        estimates = self._measure(run_ids, SAMPLES)
        large = [
            run_id
            for run_id, size in estimates.items()
            if size > max(self._max_bytes, 1.25 * self._counted.get(run_id, 0.0))
        ]
        counts = self._measure(large, ALL)
        kept = self._counted.keys() & estimates.keys()
        self._counted = {run_id: self._counted[run_id] for run_id in kept} | {
            run_id: float(estimates[run_id]) for run_id in large
        }
        return {run_id: size for run_id, size in counts.items() if size > self._max_bytes}

    def _turn(self, run_ids: Sequence[str]) -> Sequence[str]:
        if self._position >= len(run_ids):
            self._position = 0
        first, self._position = self._position, self._position + RUNS_A_TURN
        return run_ids[first : self._position]

    def _measure(self, run_ids: Sequence[str], samples: int) -> Counter[str]:
        sizes: Counter[str] = Counter()
        for first in range(0, len(run_ids), RUNS_A_TRIP):
            sizes += self._measure_some(run_ids[first : first + RUNS_A_TRIP], samples)
        return sizes

    def _measure_some(self, run_ids: Sequence[str], samples: int) -> Counter[str]:
        keys = self._keys(run_ids)
        with self._ledger.client.pipeline(transaction=False) as pipe:
            for _, key in keys:
                pipe.memory_usage(key, samples=samples)
            sizes: Counter[str] = Counter()
            for (run_id, _), size in zip(keys, pipe.execute(), strict=True):
                sizes[run_id] += size or 0
        return sizes

    def _keys(self, run_ids: Sequence[str]) -> list[tuple[str, str]]:
        """The runs with each of their keys; of streams, those that one look finds."""
        keys = self._ledger.keys
        with self._ledger.client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hscan(keys.run(run_id)[6], match="s:*", count=1_000)
            found = zip(run_ids, pipe.execute(), strict=True)
        streams = [
            (run_id, keys.stream(run_id, name.decode()[2:])) for run_id, (_, names) in found for name in names
        ]
        return [(run_id, key) for run_id in run_ids for key in keys.run(run_id)] + streams

    def largest(self, run_id: str) -> tuple[str, int] | None:
        """The first call of the node that put out most, and how many bytes, as far as the first outputs tell."""
        sizes: Counter[str] = Counter()
        outputs = self._ledger.client.hscan_iter(self._ledger.keys.run(run_id)[2], count=1_000)
        for call, envelope in islice(outputs, OUTPUTS_READ):
            first = _NODE.match(call)
            sizes[first[0].decode() if first else INPUTS_CALL] += PayloadStore.stored_bytes(envelope)
        return sizes.most_common(1)[0] if sizes else None
