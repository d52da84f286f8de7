"""When the async pool wakes Celery's event loop, and that what is acknowledged without waking it is not left."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Queue
from kombu.message import Message
from redis import Redis

from mosaic_queues import intake
from mosaic_queues.outbox import CALL_TASK
from mosaic_tasks.pool import TaskPool

pytestmark = pytest.mark.integration

NEVER_S = 1000.0


class Hub:
    """In the place of Celery's: does what it is told to, when it is told."""

    def __init__(self) -> None:
        self.on_tick: set[Callable[[], object]] = set()
        self.looks: list[Callable[[], object]] = []
        self.delays_s: list[float] = []

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        self.fd, self.on_woken = fd, callback

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Any:
        self.delays_s.append(delay_s)
        self.looks.append(callback)
        return SimpleNamespace(cancel=lambda: self.looks.remove(callback))

    def tick(self) -> None:
        for callback in self.on_tick:
            callback()

    def look(self) -> None:
        """The time that was asked for is over."""
        self.looks.pop()()

    @property
    def is_woken(self) -> bool:
        """Whether somebody woke it; it goes through its loop then."""
        readable, _, _ = select.select([self.fd], [], [], 0)
        if readable:
            self.on_woken()
            self.tick()
        return bool(readable)


class Worker:
    """A pool whose consumer takes messages of calls from the queue `a`."""

    def __init__(self, app: Celery, connection: Any, slots: int) -> None:
        self.pool, self.hub, self.got = TaskPool(slots, app=app), Hub(), list[Message]()
        self.pool.start()
        self.pool.register_with_event_loop(self.hub)
        self._connection = connection
        self.intake = self.join(connection)

    def join(self, connection: Any) -> Any:
        """The pool works for a consumer of a connection, for whose channel it takes messages."""
        queue = Queue("a", exchange="", routing_key="a")
        consumer = Consumer(connection.channel(), [queue], on_message=self.got.append, auto_declare=False)
        joined = SimpleNamespace(hub=self.hub, task_consumer=consumer, controller=SimpleNamespace())
        self.pool.join_consumer(joined)
        consumer.consume()
        return consumer.channel.qos

    def take(self) -> Message:
        """A message comes, is taken up, and the loop goes on."""
        self._connection.Producer().publish({}, routing_key="a", headers={"task": CALL_TASK})
        self._connection.drain_events(timeout=5)
        self.pool.slots.take()
        self.intake.can_consume()
        self.hub.tick()
        assert self.hub.is_woken  # to learn when to look
        assert not self.hub.is_woken
        return self.got.pop()


@pytest.fixture
def start(broker_url: str) -> Iterator[Callable[[int], Worker]]:
    app, started = Celery("pool", set_as_current=False), list[Worker]()
    with Connection(broker_url) as connection:

        def start(slots: int) -> Worker:
            started.append(Worker(app, connection, slots))
            return started[-1]

        yield start
        for worker in started:
            worker.pool.stop()
    app.close()


def unacked(client: Redis) -> int:
    return int(client.hlen("unacked"))


def test_what_is_acknowledged_while_there_is_room_wakes_nobody_and_is_not_left(
    start: Callable[[int], Worker], redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "LATE_S", 0.0)
    worker = start(2)
    worker.pool.call_in_hub(worker.take().ack)
    worker.pool.slots.give()
    assert not worker.hub.is_woken
    assert unacked(redis_client) == 1
    worker.hub.look()
    assert unacked(redis_client) == 0
    assert worker.hub.looks == []


def test_it_looks_again_while_a_message_is_not_acknowledged(start: Callable[[int], Worker]) -> None:
    worker = start(2)
    worker.take()
    worker.hub.look()
    worker.hub.look()
    assert len(worker.hub.looks) == 1
    assert worker.hub.delays_s == [intake.LATE_S] * 3


def test_what_is_left_while_the_broker_is_lost_is_done_when_there_is_one(
    start: Callable[[int], Worker],
) -> None:
    """The hub looks for it no more, nor before it waits, as the new channel takes messages its own way."""
    worker, made = start(2), list[str]()
    worker.take()
    worker.pool.call_in_hub(lambda: made.append("left"))
    assert not worker.hub.is_woken
    with Connection("memory://") as found:
        worker.join(found)
        assert worker.hub.looks == []
        assert worker.hub.is_woken
    assert made == ["left"]


def test_a_slot_that_becomes_free_wakes_who_waits_for_it(start: Callable[[int], Worker]) -> None:
    worker = start(1)
    worker.take()
    worker.pool.slots.give()
    assert worker.hub.is_woken


def test_an_acknowledgement_wakes_who_waits_for_room(start: Callable[[int], Worker]) -> None:
    worker = start(1)
    worker.pool.call_in_hub(worker.take().ack)
    assert worker.hub.is_woken


def test_room_that_is_made_after_the_loop_looked_has_it_look_again(start: Callable[[int], Worker]) -> None:
    worker = start(9)
    worker.intake.prefetch_count = 2
    message = worker.take()
    worker.pool.call_in_hub(message.ack)
    worker.intake.prefetch_count = 1
    assert not worker.intake.can_consume()  # as kombu looks in the same turn before us
    worker.hub.tick()
    assert worker.hub.is_woken
    assert worker.intake.can_consume()


def test_a_warm_shutdown_acknowledges_what_waits_for_it(
    start: Callable[[int], Worker], redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "LATE_S", NEVER_S)
    worker = start(2)
    message = worker.take()
    worker.intake.note()
    worker.pool.call_in_hub(message.ack)
    worker.hub.look()
    assert unacked(redis_client) == 1
    worker.pool.stop()
    assert unacked(redis_client) == 0
