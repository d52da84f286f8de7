"""What kills a plain chord on Celery's Redis backend leaves one on ours unharmed.

Each scenario runs on both side by side, with workers of their own; when ours is done, the other gets as long again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from celery import Celery, chain, chord
from celery.exceptions import ChordError
from celery.exceptions import TimeoutError as NotInTime
from celery.result import AsyncResult
from redis import Redis

from tests.integration.chord_app import client_of, happened
from tests.services import Pool, ServerForTests, Worker, Workers

pytestmark = [
    pytest.mark.integration,
    # Celery stores results so; here too, where headers are done before the chord is sealed.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

WAIT_S = 20.0
LIMITS = {"MOSAIC_LIVENESS_S": "1.2", "MOSAIC_SWEEP_S": "0.2", "MOSAIC_OUTBOX_GRACE_S": "0.6"}
Label = Literal["stock", "ours"]


@dataclass(frozen=True)
class Side:
    """One of the two: its app as a client, and where its workers come from."""

    label: Label
    app: Celery
    client: Redis
    _workers: Workers
    _environment: dict[str, str]

    @property
    def queue(self) -> str:
        return str(self.app.conf.task_default_queue)

    def start(self, *, pool: Pool = "solo", queue: str | None = None, args: tuple[str, ...] = ()) -> Worker:
        name = "tests.integration.chord_app"
        return self._workers.start(name, [queue or self.queue], pool=pool, env=self._environment, args=args)

    def task(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.app.signature(name, args, kwargs)

    def chord(self, *header: Any, body: str = "collect", **options: Any) -> AsyncResult:
        signature = self.task(body).on_error(self.task("on_error")).set(**options)
        return chord(list(header), signature)()

    def happened(self, what: str) -> list[bytes]:
        return self.client.lrange(happened(self.app, what), 0, -1)

    def await_happened(self, what: str, *values: str) -> None:
        """Waits until all these happened, in any order among others; what happened so far counts no more."""
        missing = Counter(value.encode() for value in values)
        while missing:
            missing -= Counter([self.pop(happened(self.app, what))])

    def pop(self, key: str) -> bytes:
        """Takes the first of a list, as soon as there is one."""
        found = self.client.blpop([key], timeout=WAIT_S)
        assert found is not None, f"not in time: {key}"
        return bytes(found[1])


@dataclass(frozen=True)
class Sides:
    stock: Side
    ours: Side

    def __iter__(self) -> Iterator[Side]:
        return iter((self.stock, self.ours))

    def start(self, **options: Any) -> list[Worker]:
        started = [side.start(**options) for side in self]
        return [worker.wait_ready() for worker in started]


@pytest.fixture
def sides(redis_server: ServerForTests, workers: Workers, broker_url: str) -> Iterator[Sides]:
    """Both, without workers yet."""
    with ExitStack() as stack:

        def side(label: Label, backend: str) -> Side:
            environment = {
                **LIMITS,
                "CHORD_BROKER": broker_url,
                "CHORD_BACKEND": backend,
                "CHORD_LABEL": label,
            }
            app = stack.enter_context(client_of(broker_url, backend, label))
            return Side(label, app, redis_server.client, workers, environment)

        yield Sides(side("stock", broker_url), side("ours", f"mosaic+{broker_url}"))


def wait_started(sides: Sides) -> None:
    for side in sides:
        side.pop(happened(side.app, "started"))


def compare(stock: AsyncResult, ours: AsyncResult, *, at_least_s: float = 0.5) -> tuple[Any, Any]:
    """The two results; the stock one is None when it is not there after twice the time that ours took."""
    started = time.monotonic()
    result = ours.get(timeout=WAIT_S, propagate=False)
    try:
        other = stock.get(timeout=max(at_least_s, time.monotonic() - started), propagate=False)
    except NotInTime:
        other = None
    return other, result


def kill_all(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()


def test_header_of_a_killed_worker_runs_again_when_it_may(sides: Sides) -> None:
    first = sides.start()
    sent = [side.chord(side.task("block_once_late", "a"), side.task("add", 1, 1)) for side in sides]
    wait_started(sides)
    kill_all(first)
    sides.start()
    assert compare(*sent) == (None, ["a", 2])
    assert sides.ours.happened("bodies") == [b"['a', 2]"]


def test_header_of_a_killed_worker_fails_the_chord_when_it_may_not_run_again(sides: Sides) -> None:
    first = sides.start(pool="prefork")
    sent = [side.chord(side.task("block_once", "a"), side.task("add", 1, 1)) for side in sides]
    wait_started(sides)
    kill_all(first)
    sides.start()
    stock, ours = compare(*sent)
    assert (stock, type(ours)) == (None, ChordError)
    assert "died" in str(ours)
    assert (sides.stock.happened("errors"), sides.ours.happened("errors")) == ([], [b"ChordError"])


def test_header_that_a_killed_worker_had_prefetched_runs_elsewhere(sides: Sides) -> None:
    first = sides.start(pool="prefork", args=("--prefetch-multiplier", "8"))
    for side in sides:
        side.task("block_once", "first").apply_async()
    wait_started(sides)
    sent = [side.chord(side.task("add", 1, 1), side.task("add", 2, 2)) for side in sides]
    for side in sides:
        side.await_happened("received", "add", "add")
    kill_all(first)
    sides.start()
    assert compare(*sent) == (None, [2, 4])


def test_second_step_of_a_chain_in_a_header_runs_again(sides: Sides) -> None:
    first = sides.start()
    sent = [
        side.chord(chain(side.task("echo", "a"), side.task("block_once_late")), side.task("add", 1, 1))
        for side in sides
    ]
    wait_started(sides)
    kill_all(first)
    sides.start()
    assert compare(*sent) == (None, ["a", 2])


@pytest.mark.parametrize("position", [0, 1], ids=["first", "second"])
def test_header_whose_message_is_lost_is_sent_again(sides: Sides, position: int) -> None:
    sent = [
        side.chord(chain(side.task("add", 1, 1), side.task("add", 1)), side.task("add", 2, 2))
        for side in sides
    ]
    for side in sides:
        lost = side.client.lrange(side.queue, 0, -1)[position]
        assert side.client.lrem(side.queue, 1, lost) == 1
    sides.start()
    assert compare(*sent) == (None, [3, 4])


def test_body_whose_dispatcher_was_killed_is_sent_once(sides: Sides) -> None:
    sides.start(pool="prefork")
    sent = [side.chord(side.task("add", 1, 1), side.task("add", 2, 2), body="fragile") for side in sides]
    assert compare(*sent) == (None, [2, 4])
    assert sides.ours.happened("bodies") == [b"[2, 4]"]


def test_body_whose_message_is_lost_is_sent_again(sides: Sides) -> None:
    sides.start()
    sent = [side.chord(side.task("add", 1, 1), queue=f"bodies-{side.label}") for side in sides]
    for side in sides:
        side.pop(f"bodies-{side.label}")
    for side in sides:
        side.start(queue=f"bodies-{side.label}").wait_ready()
    assert compare(*sent) == (None, [2])
    assert sides.ours.happened("bodies") == [b"[2]"]


def test_header_whose_child_was_killed_runs_again_when_it_may(sides: Sides) -> None:
    sides.start(pool="prefork")
    sent = [side.chord(side.task("die_once_late", "a"), side.task("add", 1, 1)) for side in sides]
    stock, ours = compare(*sent, at_least_s=WAIT_S)
    assert (type(stock), ours) == (ChordError, ["a", 2])


def test_header_whose_child_was_killed_fails_the_chord_when_it_may_not_run_again(sides: Sides) -> None:
    sides.start(pool="prefork")
    sent = [side.chord(side.task("die_once", "a"), side.task("add", 1, 1)) for side in sides]
    assert [type(result) for result in compare(*sent, at_least_s=WAIT_S)] == [ChordError, ChordError]
    assert [side.happened("errors") for side in sides] == [[b"ChordError"]] * 2


def test_headers_delivered_twice_count_once_and_the_first_result_wins(sides: Sides) -> None:
    """Both hold: Celery 5.7 keeps a header's first result as well."""
    sent = [side.chord(side.task("first_result", "a"), side.task("first_result", "b")) for side in sides]
    for side in sides:
        side.client.lpush(side.queue, *side.client.lrange(side.queue, 0, -1))
    sides.start()
    assert compare(*sent, at_least_s=WAIT_S) == ([1, 1], [1, 1])
    for side in sides:
        side.await_happened("ended", *["first_result"] * 4)
        side.task("add", 1, 1).apply_async().get(timeout=WAIT_S)
        assert side.client.hvals(happened(side.app, "runs")) == [b"2", b"2"]
        assert side.happened("bodies") == [b"[1, 1]"]


def test_failure_of_a_nested_chord_reaches_the_outer_one(sides: Sides) -> None:
    sides.start()
    sent = [
        side.chord(chord([side.task("boom"), side.task("add", 1)], side.task("total")), side.task("add", 1))
        for side in sides
    ]
    stock, ours = compare(*sent)
    assert (stock, type(ours)) == (None, ChordError)
    assert (sides.stock.happened("errors"), sides.ours.happened("errors")) == ([], [b"ChordError"])


def test_quorum_runs_the_body_before_the_rest(sides: Sides) -> None:
    side = sides.ours
    side.start(pool="threads", args=("--concurrency", "4")).wait_ready()
    header = [
        side.task("boom"),
        side.task("add", 1, 1),
        side.task("block_once", "slow"),
        side.task("add", 2, 2),
    ]
    sent = side.chord(*header, quorum=2)
    assert sent.get(timeout=WAIT_S, propagate=False) == [None, 2, None, 4]
    side.client.rpush("test:gate", 1)
    side.await_happened("ended", "block_once")
    assert side.happened("bodies") == [b"[None, 2, None, 4]"]


def test_quorum_that_cannot_be_reached_fails_the_chord_at_once(sides: Sides) -> None:
    side = sides.ours
    side.start(pool="threads", args=("--concurrency", "4")).wait_ready()
    sent = side.chord(side.task("boom"), side.task("boom"), side.task("block_once", "slow"), quorum=2)
    assert isinstance(sent.get(timeout=WAIT_S, propagate=False), ChordError)
    assert side.happened("errors") == [b"ChordError"]
    side.client.rpush("test:gate", 1)
