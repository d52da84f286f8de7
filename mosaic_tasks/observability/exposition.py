"""What is told at one moment in Prometheus's text format. Names are public: dashboards and alerts go by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from mosaic_queues.queue_ages import QueueAge
from mosaic_routing.inventory import prometheus
from mosaic_tasks.observability.figures import FIGURES, Figure
from mosaic_tasks.observability.gathering import Figures
from mosaic_tasks.observability.tallies import SUM, Tally

_Rows = Iterable[tuple[tuple[str, ...], float]]


class Gauge(NamedTuple):
    """Something that is as it is at the moment.

    Attributes:
        name: behind `mosaic_`.
    """

    name: str
    about: str
    labels: tuple[str, ...] = ()


WAITING = Gauge("queue_waiting", "Messages that wait.", ("queue",))
RUNNING = Gauge("queue_running", "Messages that workers have taken and not ended.", ("queue",))
WORKERS = Gauge("queue_workers", "Workers that serve it.", ("queue",))
GROUP_WORK = Gauge("group_work", "Messages of all queues of a worker group, waiting or running.", ("group",))
UNFINISHED = Gauge("runs_unfinished", "Runs that are not over.")
READY = Gauge("queue_ready_calls", "Calls that wait to be claimed.", ("queue",))
CLAIMED = Gauge("queue_claimed_calls", "Calls that run.", ("queue",))
READY_AGE = Gauge("queue_oldest_ready_seconds", "Age of the call that waits longest.", ("queue",))
CLAIM_AGE = Gauge("queue_oldest_claim_seconds", "Age of the oldest claim.", ("queue",))
SWEEPER = Gauge("sweeper_leads", "1: runs are swept; 0: no worker does.")
BREAKER = Gauge("breaker_open", "1: open; 0.5: tried again; 0: closed.", ("deployment",))
BUDGET = Gauge("budget_usd", "US dollars that may be spent a day.", ("account",))
SPENT = Gauge("budget_spent_usd", "US dollars of it that are spent or reserved today.", ("account",))
DEAD = Gauge("dead_letters", "Messages and calls that nobody can work on.")
BEAT = Gauge("beat_leads", "1: a beat holds the lock and sends ticks.")
SCHEDULES = Gauge("beat_schedules", "Schedules that a beat has to keep.")
ENGINE_READY = Gauge("engine_ready", "1: the engine takes requests.", ("model", "class", "worker"))
GAUGES: tuple[Gauge, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Gauge))
"""All of them."""

_OPEN = {"closed": 0.0, "half": 0.5, "open": 1.0}


def exposition(figures: Figures) -> str:
    """All of it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(figures))
    return generate_latest(registry).decode() + prometheus(figures.engines)


class _Collector:
    """The figures, for a registry."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """A family each."""
        for gauge, rows in _gauges(self._figures):
            yield _gauge(gauge, rows)
        for figure in FIGURES.values():
            tallies = [tally for tally in self._figures.tallies if tally.figure == figure.name]
            yield _histogram(figure, tallies) if figure.buckets else _counter(figure, tallies)


def _gauge(gauge: Gauge, rows: _Rows) -> Metric:
    family = GaugeMetricFamily(f"mosaic_{gauge.name}", gauge.about, labels=gauge.labels)
    for values, amount in rows:
        family.add_metric(values, amount)
    return family


def _counter(figure: Figure, tallies: Sequence[Tally]) -> Metric:
    family = CounterMetricFamily(f"mosaic_{figure.name}", figure.about, labels=figure.labels)
    if not (figure.labels or tallies):
        family.add_metric((), 0.0)  # its first increase would not be seen, had it not been there before
    for tally in tallies:
        family.add_metric(tally.values, tally.amount)
    return family


def _histogram(figure: Figure, tallies: Iterable[Tally]) -> Metric:
    family = HistogramMetricFamily(f"mosaic_{figure.name}", figure.about, labels=figure.labels)
    found: dict[tuple[str, ...], dict[int, float]] = {}
    for tally in tallies:
        found.setdefault(tally.values, {})[tally.place] = tally.amount
    names = [*(f"{bound:g}" for bound in figure.buckets), "+Inf"]
    for values, places in found.items():
        counts = accumulate(places.get(place, 0.0) for place in range(len(names)))
        family.add_metric(values, list(zip(names, counts, strict=True)), sum_value=places.get(SUM, 0.0))
    return family


def _gauges(figures: Figures) -> Iterator[tuple[Gauge, _Rows]]:
    yield WAITING, _by_name({name: found.waiting for name, found in figures.queues.items()})
    yield RUNNING, _by_name({name: found.running for name, found in figures.queues.items()})
    yield WORKERS, _by_name({**dict.fromkeys(figures.queues, 0), **figures.workers})
    yield GROUP_WORK, _by_name({name: found.work for name, found in figures.groups.items()})
    yield from _ages(figures)
    yield BREAKER, _by_name({name: _OPEN[state] for name, state in figures.breakers.items()})
    yield BUDGET, _by_name({name: budget.limit_usd for name, budget in figures.budgets.items()})
    yield SPENT, _by_name({name: budget.spent_usd for name, budget in figures.budgets.items()})
    yield DEAD, [((), figures.dead_letters)]
    yield BEAT, [((), float(figures.beat.leads))]
    yield SCHEDULES, [((), figures.beat.schedules)]
    yield (
        ENGINE_READY,
        [
            ((each.title, each.gpu_class, each.holder), float(each.state == "ready"))
            for each in figures.engines
        ],
    )


def _ages(figures: Figures) -> Iterator[tuple[Gauge, _Rows]]:
    ages = figures.ages
    yield SWEEPER, [((), float(ages is not None))]
    queues = ages.queues if ages is not None else {}
    yield UNFINISHED, [((), ages.runs)] if ages is not None else []
    # A queue that nothing waits in says so, rather than vanish: what was there would stay for minutes.
    known: Sequence[str] = [*dict.fromkeys([*figures.queues, *queues])] if ages is not None else []
    of = {name: queues.get(name, QueueAge()) for name in known}
    yield READY, _by_name({name: age.ready for name, age in of.items()})
    yield CLAIMED, _by_name({name: age.claimed for name, age in of.items()})
    yield READY_AGE, _by_name({name: age.ready_ms / 1000 for name, age in of.items()})
    yield CLAIM_AGE, _by_name({name: age.claimed_ms / 1000 for name, age in of.items()})


def _by_name(amounts: Mapping[str, float]) -> _Rows:
    return [((name,), amount) for name, amount in amounts.items()]


__all__ = ["GAUGES", "Gauge", "exposition"]
