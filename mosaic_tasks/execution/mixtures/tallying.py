"""Counts what mixtures came to, by workflow and node: in one hash of the server, so that it outlives workers and runs.

It is for watching many runs. A process that dies between a decision and its count leaves that one out, so the record of
a run is what holds for that run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, cast, get_args

import msgspec
import structlog
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.keys import Keys
from mosaic_tasks.mixtures.recording import Record

log = structlog.get_logger(__name__)

Figure = Literal[
    "decided",
    "experts_asked",
    "experts_cut",
    "experts_unasked",
    "aggregators_skipped",
    "tokens_saved",
    "usd_saved",
]
FIGURES: tuple[Figure, ...] = get_args(Figure)
FAILED = "failed"
"""In the place of what decided, where nothing did."""
_EXPIRY_S = 30 * 24 * 3600
"""Counts are forgotten when no mixture was decided for so long."""


class Tally(NamedTuple):
    """How often, or how much, in all.

    Attributes:
        by: of `decided`: what decided.
    """

    workflow: str
    node: str
    figure: Figure
    by: str
    amount: float


def count(client: Redis, keys: Keys, record: Record, *, workflow: str, node: str) -> None:
    """Adds what a mixture came to. Where the server is away it is left out: the mixture goes on."""
    tallies = [tally for tally in tallies_of(record, workflow=workflow, node=node) if tally.amount]
    try:
        with client.pipeline(transaction=False) as pipe:
            for tally in tallies:
                pipe.hincrbyfloat(_key(keys), _field(tally), tally.amount)
            pipe.expire(_key(keys), _EXPIRY_S)
            pipe.execute()
    except RedisError as error:
        log.info("tallying.away", what="a decision of a mixture is not counted", error=str(error))


def tallies_of(record: Record, *, workflow: str, node: str) -> Iterator[Tally]:
    """What one mixture adds."""
    amounts: dict[Figure, float] = {
        "decided": 1,
        "experts_asked": sum(said.kind == "expert" for said in record.calls),
        "experts_cut": sum(said.kind == "expert" and said.is_cut for said in record.calls),
        "experts_unasked": record.unasked,
        "aggregators_skipped": int(record.skipped_aggregator),
        "tokens_saved": record.saved_tokens,
        "usd_saved": record.saved_usd,
    }
    for figure, amount in amounts.items():
        by = (record.by or FAILED) if figure == "decided" else ""
        yield Tally(workflow, node, figure, by, amount)


def counted_mixtures(client: Redis, keys: Keys) -> list[Tally]:
    """All that was counted, in an order that stays."""
    found = cast("dict[bytes, bytes]", client.hgetall(_key(keys)))
    return sorted(
        Tally(*msgspec.json.decode(field, type=tuple[str, str, Figure, str]), float(amount))
        for field, amount in found.items()
    )


def _key(keys: Keys) -> str:
    return f"{keys.namespace}:mixtures"


def _field(tally: Tally) -> bytes:
    return msgspec.json.encode([tally.workflow, tally.node, tally.figure, tally.by])


__all__ = ["FAILED", "FIGURES", "Figure", "Tally", "count", "counted_mixtures", "tallies_of"]
