"""Counts, in a process, what happened there, and adds it now and then to what all processes counted.

The sums stand in one hash of the server, so that they outlive processes and never go back. A process adds with the
beat by which it says that it is alive: no call costs a trip. One that is killed takes with it what it counted since its
last beat; a batch whose answer is lost is sent again, and counts once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import NamedTuple, cast

import msgspec
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_queues.liveness import incarnation
from mosaic_tasks.observability.figures import FIGURES, Figure
from mosaic_tasks.observability.spans import plain

_LUA = resources.files("mosaic_tasks.observability").joinpath("tallies.lua").read_text("utf-8")
_EXPIRY_S = 30 * 24 * 3600
"""Sums are forgotten when nobody counted anything for so long."""
_MOST = 10_000
"""Fields; beyond them, names that users chose count together."""
SUM = -1
"""The place of a histogram's sum, among those of its buckets."""
_AT_ONCE = 1_000
_MOST_AMOUNT = 1e15
_NAME_CHARS = 200
"""Of a name that users chose; what comes behind does not tell names apart."""
Series = tuple[str, tuple[str, ...], int]
"""A figure, values of its labels, and a place as `Tally` has it."""


class Tally(NamedTuple):
    """How often, or how much, in all.

    Attributes:
        place: of a histogram: the bucket, or -1 for the sum.
    """

    figure: str
    values: tuple[str, ...]
    place: int
    amount: float


class Tallies:
    """What one process counts; may be used by all of its threads."""

    def __init__(self) -> None:
        self._counts: dict[Series, float] = {}
        self._sent: list[str] = []
        self._number, self._name = 0, incarnation()
        self._lock, self._flushing = threading.Lock(), threading.Lock()

    def add(self, figure: Figure, *values: str, amount: float = 1.0) -> None:
        """Counts something; what is no amount, or would have the sum go back, is left out."""
        if 0 < amount < _MOST_AMOUNT:
            with self._lock:
                series = (figure.name, values, 0)
                self._counts[series] = self._counts.get(series, 0.0) + amount

    def observe(self, figure: Figure, seconds: float, *values: str) -> None:
        """Counts something that took so long; by a clock that was set back, no time."""
        seconds = max(seconds, 0.0)
        with self._lock:
            counts = self._counts
            bucket, total = (figure.name, values, figure.bucket_of(seconds)), (figure.name, values, SUM)
            counts[bucket] = counts.get(bucket, 0.0) + 1.0
            counts[total] = counts.get(total, 0.0) + seconds

    def flush(self, client: Redis, keys: Keys) -> None:
        """Adds what was counted since the last time to what all counted.

        Raises:
            RedisError: it could not be sent; the next time it is.
        """
        with self._flushing:
            while self._sent or self._counts:
                if not self._sent:
                    self._sent, self._number = self._batch(), self._number + 1
                names = (tallies_key(keys), f"{tallies_key(keys)}:{self._name}")
                client.eval(_LUA, 2, *names, str(self._number), _EXPIRY_S, _MOST, *self._sent)
                self._sent = []

    def _batch(self) -> list[str]:
        """Fields and amounts, as the script takes them."""
        with self._lock:
            taken = {series: self._counts[series] for series in list(self._counts)[:_AT_ONCE]}
            for series in taken:
                del self._counts[series]
        return [text for series, amount in taken.items() for text in (*_fields(series), repr(amount))]


def _fields(series: Series) -> Iterable[str]:
    name, values, place = series
    for named in (values, FIGURES[name].capped(values)):
        told = [plain(value, _NAME_CHARS) for value in named]
        yield msgspec.json.encode((name, told, place)).decode()


def tallies_key(keys: Keys) -> str:
    """The hash of all that was counted."""
    return f"{keys.namespace}:{{tallies}}"


def counted(client: Redis, keys: Keys) -> list[Tally]:
    """All that was counted, in an order that stays."""
    found = cast("Mapping[bytes, bytes]", client.hgetall(tallies_key(keys)))
    return sorted(_tallies(found))


def _tallies(found: Mapping[bytes, bytes]) -> Iterator[Tally]:
    for field, amount in found.items():
        name, values, place = msgspec.json.decode(field, type=tuple[str, tuple[str, ...], int])
        yield Tally(name, values, place, float(amount))


__all__ = ["SUM", "Tallies", "Tally", "counted", "tallies_key"]
