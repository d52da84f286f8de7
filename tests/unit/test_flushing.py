"""Flushes that share their trips, and when publications are due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from mosaic_queues.deliveries import Delivery
from mosaic_queues.errors import ClaimLost
from mosaic_queues.ledger import Ledger
from mosaic_queues.transitions import Claim, Group
from mosaic_tasks.execution.streams.flushing import Flushing, Steps, flush_together
from mosaic_tasks.execution.streams.outlets import COALESCE_S
from mosaic_tasks.execution.streams.publisher import REST_S, RESTS, Timetable


def delivery(run_id: str) -> Delivery:
    return Delivery(run_id, Claim("0", 1, 0, 0), "me", [])


class Noting:
    """A ledger that notes which runs each trip told of, and answers what it was told to.

    Attributes:
        answers: by run; default: nothing to publish.
    """

    def __init__(self, **answers: list[Group] | Exception) -> None:
        self.trips: list[list[str]] = []
        self.answers = answers

    def publish(self, deliveries: Sequence[Delivery]) -> list[list[Group] | Exception]:
        runs = [each.run_id for each in deliveries]
        self.trips.append(runs)
        return [self.answers.get(run, []) for run in runs]


class Away:
    """A ledger whose server does not answer."""

    def publish(self, _deliveries: Sequence[Delivery]) -> Any:
        raise RedisConnectionError("away")


class Said:
    """What came of the flush of a run with so many batches."""

    def __init__(self, ledger: Any, run_id: str, *, batches: int = 1) -> None:
        self.ready: list[Sequence[Group]] = []
        self.is_closed = False
        self.flushing = Flushing(cast("Ledger", ledger), self._steps(run_id, batches))

    def _steps(self, run_id: str, batches: int) -> Steps:
        try:
            for _ in range(batches):
                self.ready.append((yield delivery(run_id)))
        finally:
            self.is_closed = True

    @property
    def error(self) -> Exception | None:
        return self.flushing.error


def flush(*said: Said) -> None:
    flush_together([each.flushing for each in said])


def test_several_share_a_trip_as_long_as_they_have_something() -> None:
    ledger = Noting(a=[("q", ["1"])])
    first, second, nothing = Said(ledger, "a"), Said(ledger, "b", batches=2), Said(ledger, "c", batches=0)
    flush(first, second, nothing)
    assert ledger.trips == [["a", "b"], ["b"]]
    assert (first.ready, second.ready, nothing.ready) == ([[("q", ["1"])]], [[], []], [])
    assert [each.error for each in (first, second, nothing)] == [None] * 3


def test_what_goes_wrong_with_one_is_its_own() -> None:
    lost = ClaimLost("lost")
    ledger = Noting(b=lost)
    said = [Said(ledger, run, batches=2) for run in "abc"]
    flush(*said)
    assert ledger.trips == [["a", "b", "c"], ["a", "c"]]
    assert [each.error for each in said] == [None, lost, None]


def test_a_server_that_does_not_answer_keeps_no_other_from_it() -> None:
    ledger = Noting()
    there, away, away_too = Said(ledger, "a"), Said(server := Away(), "b"), Said(server, "c")
    flush(there, away, away_too)
    assert there.ready == [[]]
    assert [type(each.error) for each in (away, away_too)] == [RedisConnectionError] * 2


class Interrupting(Noting):
    """The thread is interrupted while the server is asked."""

    def publish(self, deliveries: Sequence[Delivery]) -> list[list[Group] | Exception]:
        raise KeyboardInterrupt


def test_who_is_interrupted_holds_nothing_afterwards() -> None:
    ledger = Interrupting()
    said = [Said(ledger, run) for run in "ab"]
    with pytest.raises(KeyboardInterrupt):
        flush(*said)
    assert [each.is_closed for each in said] == [True, True]


# -- when they are due -------------------------------------------------------------------------------------------------


class Publication:
    def flushing(self, *, all_: bool) -> Flushing:
        raise NotImplementedError

    def next_due(self) -> float:
        raise NotImplementedError


BEGAN = 100.0
BEAT_S = COALESCE_S


@pytest.fixture
def table() -> Timetable:
    return Timetable(BEGAN)


def test_who_waits_goes_with_the_beat_before_its_time(table: Timetable) -> None:
    """So nobody waits for longer than without the others."""
    early, late = Publication(), Publication()
    for publication, beats in ((early, 5.1), (late, 5.9)):
        table.enter(publication, BEGAN + beats * BEAT_S)
    assert table.next_at == pytest.approx(BEGAN + 5 * BEAT_S)
    assert table.take(BEGAN + 4.9 * BEAT_S) == []
    assert table.take(BEGAN + 5.05 * BEAT_S) == [early, late]
    assert table.take(BEGAN + 6 * BEAT_S) == []


def test_all_that_go_with_a_beat_are_due_at_the_very_same_time(table: Timetable) -> None:
    """So the second wakes nobody who sleeps until the first is due."""
    due = {table.enter(Publication(), BEGAN + (7 + part / 101) * BEAT_S) for part in range(1, 101)}
    assert len(due) == 1


def test_what_is_due_at_once_waits_for_no_beat(table: Timetable) -> None:
    waiting, due = Publication(), Publication()
    table.enter(waiting, BEGAN + 2.5 * BEAT_S)
    table.enter(due, 0.0)
    assert table.take(BEGAN + 1.5 * BEAT_S) == [due]


def test_who_is_entered_again_is_due_at_the_earlier_time(table: Timetable) -> None:
    publication = Publication()
    times = [table.enter(publication, at) for at in (BEGAN + 3.5 * BEAT_S, 0.0, BEGAN + 2.5 * BEAT_S)]
    assert times[0] == pytest.approx(BEGAN + 3 * BEAT_S)
    assert times[2] == times[1] <= 0.0
    assert table.take(BEGAN) == [publication]


def test_a_beat_that_took_long_is_followed_by_a_rest(table: Timetable) -> None:
    """What came during the flush waits for its end too, and all that wait go together."""
    early, late = Publication(), Publication()
    table.enter(early, BEGAN + 1 * BEAT_S)
    assert table.take(BEGAN + 1 * BEAT_S) == [early]
    table.enter(early, BEGAN + 2 * BEAT_S)
    table.worked(BEAT_S / 2, now=BEGAN + 2 * BEAT_S)
    rested = BEGAN + 2 * BEAT_S + RESTS * BEAT_S / 2
    assert table.enter(late, BEGAN + 3 * BEAT_S) == table.next_at == pytest.approx(rested)
    assert table.take(rested - BEAT_S / 4) == []
    assert table.take(rested) == [early, late]


def test_a_beat_that_took_no_time_is_followed_by_the_next(table: Timetable) -> None:
    publication = Publication()
    table.take(BEGAN)
    table.worked(BEAT_S / RESTS / 2, now=BEGAN)
    assert table.enter(publication, BEGAN + 1.5 * BEAT_S) == pytest.approx(BEGAN + BEAT_S)


def test_nobody_waits_for_longer_than_the_longest_rest(table: Timetable) -> None:
    publication = Publication()
    table.take(BEGAN)
    table.worked(60.0, now=BEGAN + 60.0)
    assert table.enter(publication, BEGAN + 1 * BEAT_S) == pytest.approx(BEGAN + 60.0 + REST_S)


def test_what_is_due_at_once_waits_for_no_rest_and_makes_none_longer(table: Timetable) -> None:
    waiting, first = Publication(), Publication()
    work_s = 0.8 * REST_S / RESTS
    table.take(BEGAN)
    table.worked(work_s, now=BEGAN)
    rested = table.enter(waiting, BEGAN + 1 * BEAT_S)
    for times in (1, 2, 3):
        assert table.enter(first, 0.0) <= 0.0
        assert table.take(BEGAN + times * work_s) == [first]
        table.worked(work_s, now=BEGAN + (times + 0.5) * work_s)
    assert table.next_at == rested == BEGAN + RESTS * work_s
    assert table.take(rested) == [waiting]
