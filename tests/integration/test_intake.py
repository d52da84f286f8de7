"""A consumer's channel takes as much as there is room for, in one trip, and gives back what it did not deliver."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue
from kombu.message import Message
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from mosaic_queues import intake
from mosaic_queues.intake import Intake, install_intake, weight_of
from mosaic_queues.outbox import CALL_TASK
from mosaic_queues.popping import LastPop
from mosaic_queues.unreadable import bear_unreadable

pytestmark = pytest.mark.integration


class Taker:
    """A consumer of the queues `a` and `b` that keeps what it gets."""

    def __init__(self, connection: Any, *, room: int, ahead: int = 0) -> None:
        self.room, self.woken = room, 0
        self.got: list[Message] = []
        self.channel = connection.channel()
        installed = install_intake(self.channel, self._free, ahead=lambda: ahead, wake=self._wake)
        assert installed is not None
        self.intake: Intake = installed
        queues = [Queue(name, exchange="", routing_key=name) for name in "ab"]
        self.consumer = Consumer(self.channel, queues, on_message=self.got.append, auto_declare=False)
        self.consumer.consume()
        self._connection = connection

    def _wake(self) -> None:
        self.woken += 1

    def _free(self) -> int:
        return self.room - sum(weight_of(message.headers) for message in self.got)

    def take(self) -> Counter[str]:
        """One message that a blocking pop took, and what comes with it; how many of each queue."""
        self._connection.drain_events(timeout=5)
        self.intake.turn()
        return Counter(message.delivery_info["routing_key"] for message in self.got)


@pytest.fixture
def connection(broker_url: str) -> Iterator[Any]:
    with Connection(broker_url) as connection:
        yield connection


@pytest.fixture
def taker(connection: Any) -> Taker:
    return Taker(connection, room=6)


def publish(connection: Any, queue: str, count: int, **options: Any) -> None:
    with connection.channel() as channel:
        producer = connection.Producer(channel)
        for number in range(count):
            producer.publish({"number": number}, routing_key=queue, **options)


def left(client: Redis) -> dict[str, int]:
    return {name: int(client.llen(name)) for name in "ab"} | {"unacked": int(client.hlen("unacked"))}


def test_all_that_has_room_is_taken_from_each_queue_in_turn(
    connection: Any, taker: Taker, redis_client: Redis
) -> None:
    publish(connection, "a", 10)
    publish(connection, "b", 10)
    assert taker.take() == {"a": 3, "b": 3}
    assert left(redis_client) == {"a": 7, "b": 7, "unacked": 6}
    assert not taker.intake.can_consume()


def test_what_is_taken_ahead_is_beyond_the_prefetch_count(connection: Any) -> None:
    taker = Taker(connection, room=9, ahead=2)
    taker.intake.prefetch_count = 4
    publish(connection, "a", 10)
    assert taker.take() == {"a": 6}


def test_a_message_may_take_many_slots(connection: Any, taker: Taker) -> None:
    publish(connection, "a", 5, headers={"mosaic_slots": 4})
    assert taker.take() == {"a": 2}  # the second is larger than what is left, as nobody can know before


@pytest.mark.parametrize("weight", ["A1", 0, -2, 2.5, [3]])
def test_a_weight_that_is_none_counts_as_one(connection: Any, taker: Taker, weight: Any) -> None:
    publish(connection, "a", 10, headers={"mosaic_slots": weight})
    assert taker.take() == {"a": 6}


def test_a_message_that_nobody_can_read_stays_where_it_is(
    connection: Any, taker: Taker, redis_client: Redis
) -> None:
    publish(connection, "a", 1)
    raw = '{"properties": {"delivery_tag": "t"}, "headers": null}'
    redis_client.lpush("a", raw)
    assert taker.take() == {"a": 1}
    assert redis_client.lrange("a", 0, -1) == [raw.encode()]


def test_the_most_urgent_come_first(connection: Any, taker: Taker) -> None:
    publish(connection, "a", 4, priority=9)
    publish(connection, "b", 4, priority=0)
    assert taker.take() == {"b": 4, "a": 2}


def test_one_turn_acknowledges_and_takes_more(connection: Any, taker: Taker, redis_client: Redis) -> None:
    publish(connection, "a", 20)
    taker.take()
    for message in taker.got:
        message.ack()
    assert left(redis_client)["unacked"] == 6
    taker.got.clear()
    redis_client.config_resetstat()
    taker.intake.turn()
    assert left(redis_client) == {"a": 8, "b": 0, "unacked": 6}
    counts = redis_client.info("commandstats")
    assert counts["cmdstat_evalsha"]["calls"] == 1
    assert "cmdstat_multi" not in counts


def pop_a_call(connection: Any, taker: Taker) -> Message:
    """One that came and is not noted yet."""
    publish(connection, "a", 1, headers={"task": CALL_TASK})
    connection.drain_events(timeout=5)
    return taker.got.pop()


def take_a_call(connection: Any, taker: Taker) -> Message:
    """One that is noted; its acknowledgement may wait."""
    call = pop_a_call(connection, taker)
    taker.intake.note()
    return call


@pytest.mark.usefixtures("patient")
def test_calls_are_noted_and_others_taken_once_a_second_one_was_popped(
    connection: Any, taker: Taker, redis_client: Redis
) -> None:
    publish(connection, "a", 4, headers={"task": CALL_TASK})
    connection.drain_events(timeout=5)
    assert taker.intake.can_consume()
    assert (len(taker.got), left(redis_client)["unacked"]) == (1, 0)
    connection.drain_events(timeout=5)
    assert (len(taker.got), left(redis_client)["unacked"]) == (2, 0)
    redis_client.config_resetstat()
    assert taker.intake.can_consume()
    assert (len(taker.got), taker.woken) == (2, 1)
    assert left(redis_client) == {"a": 0, "b": 0, "unacked": 4}
    taker.intake.turn()
    assert len(taker.got) == 4
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1


def test_a_call_is_noted_when_it_has_waited(
    connection: Any, taker: Taker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "LATE_S", 0.0)
    call = pop_a_call(connection, taker)
    taker.intake.turn()
    (entry,) = redis_client.hvals("unacked")
    assert call.delivery_tag.encode() in entry


def test_of_a_call_that_is_done_before_it_is_noted_nothing_ever_is(
    connection: Any, taker: Taker, redis_client: Redis
) -> None:
    call = pop_a_call(connection, taker)
    redis_client.config_resetstat()
    call.ack()
    taker.intake.note()
    assert "cmdstat_evalsha" not in redis_client.info("commandstats")
    assert left(redis_client) == {"a": 0, "b": 0, "unacked": 0}
    assert not taker.intake.is_owing


@pytest.mark.parametrize("how", ["requeue", "close"])
def test_a_call_that_is_not_noted_is_put_back(
    connection: Any, taker: Taker, redis_client: Redis, how: str
) -> None:
    call = pop_a_call(connection, taker)
    if how == "requeue":
        call.requeue()
    else:
        taker.channel.close()
    assert left(redis_client) == {"a": 1, "b": 0, "unacked": 0}


def test_a_call_is_noted_later_where_the_server_refuses(
    connection: Any, taker: Taker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    pop_a_call(connection, taker)
    with monkeypatch.context() as changed:
        changed.setattr(taker.intake, "_run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            taker.intake.note()
    taker.intake.note()
    assert left(redis_client)["unacked"] == 1


@pytest.mark.parametrize("arrives", [False, True], ids=["never arrived", "answer lost"])
def test_a_call_that_is_done_after_a_trip_that_failed_leaves_no_note(
    connection: Any, taker: Taker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    call, run = pop_a_call(connection, taker), taker.intake._run

    def fails(*given: Any) -> Any:
        if arrives:
            run(*given)
        raise RedisConnectionError("away")

    with monkeypatch.context() as changed:
        changed.setattr(taker.intake, "_run", fails)
        with pytest.raises(RedisConnectionError):
            taker.intake.note()
    call.ack()
    taker.intake.note()
    assert left(redis_client)["unacked"] == 0
    assert not taker.intake.is_owing


def test_a_call_that_is_done_while_it_is_noted_leaves_no_note(
    connection: Any, taker: Taker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the handler of a signal."""
    call, run = pop_a_call(connection, taker), taker.intake._run

    def interrupted(*given: Any) -> Any:
        answer = run(*given)
        call.ack()
        return answer

    with monkeypatch.context() as changed:
        changed.setattr(taker.intake, "_run", interrupted)
        taker.intake.note()
    taker.intake.note()
    assert left(redis_client)["unacked"] == 0
    assert not taker.intake.is_owing


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "LATE_S", 1000.0)


@pytest.mark.usefixtures("patient")
def test_calls_are_acknowledged_in_the_trip_that_notes_the_next_message(
    connection: Any, taker: Taker, redis_client: Redis
) -> None:
    take_a_call(connection, taker).ack()
    redis_client.config_resetstat()
    taker.intake.turn()
    assert left(redis_client)["unacked"] == 1
    publish(connection, "a", 1)
    taker.take()
    assert list(redis_client.hgetall("unacked")) == [taker.got[0].delivery_tag.encode()]
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1


@pytest.mark.usefixtures("patient")
def test_other_tasks_are_acknowledged_with_the_next_turn_and_calls_with_them(
    connection: Any, taker: Taker, redis_client: Redis
) -> None:
    publish(connection, "a", 1, headers={"task": "reports.fetch"})
    taker.take()
    take_a_call(connection, taker).ack()
    taker.intake.turn()
    assert left(redis_client)["unacked"] == 2
    taker.got[0].ack()
    taker.intake.turn()
    assert left(redis_client)["unacked"] == 0


def test_an_acknowledgement_that_has_waited_goes_alone(
    connection: Any, taker: Taker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "LATE_S", 0.0)
    take_a_call(connection, taker).ack()
    taker.intake.turn()
    assert left(redis_client)["unacked"] == 0
    assert not taker.intake.is_owing


@pytest.mark.usefixtures("patient")
def test_what_waits_to_be_acknowledged_takes_no_room(connection: Any) -> None:
    taker = Taker(connection, room=6)
    taker.intake.prefetch_count = 1
    take_a_call(connection, taker).ack()
    assert taker.intake.can_consume()


def test_a_message_is_noted_with_the_text_that_came(
    connection: Any, taker: Taker, redis_client: Redis
) -> None:
    publish(connection, "a", 1)
    raw = redis_client.lpop("a").replace(b", ", b" ,")
    redis_client.lpush("a", raw)
    connection.drain_events(timeout=5)
    assert redis_client.hvals("unacked") == [b"[" + raw + b', "", "a"]']


def test_a_message_that_was_asked_for_is_noted_with_its_own_text(
    connection: Any, taker: Taker, redis_client: Redis
) -> None:
    publish(connection, "a", 1)
    connection.drain_events(timeout=5)
    publish(connection, "c", 1)
    asked = taker.channel.basic_get("c")
    entry = json.loads(redis_client.hget("unacked", asked.delivery_tag))
    assert entry == [asked._raw, "", "c"]


@pytest.mark.parametrize("takes", ["kombu", "intake"])
def test_a_message_that_was_noted_is_not_kept(connection: Any, takes: str) -> None:
    with connection.channel() as channel:
        if takes == "intake":
            install_intake(channel, lambda: 1)
        else:
            bear_unreadable(channel, lambda _queue, _raw: 1 / 0)
        got, queue = list[Message](), Queue("a", exchange="", routing_key="a")
        Consumer(channel, [queue], on_message=got.append, auto_declare=False).consume()
        publish(connection, "a", 1)
        connection.drain_events(timeout=5)
        got.pop().ack()
        assert LastPop.of(channel).answer is None


def test_a_pool_of_one_connection_serves_others_between_trips(broker_url: str, redis_client: Redis) -> None:
    with Connection(broker_url, transport_options={"max_connections": 1}) as connection:
        taker = Taker(connection, room=2)
        publish(connection, "a", 3)
        assert taker.take() == {"a": 2}
        taker.got.pop().requeue()  # by a connection of the pool
        taker.got.pop().ack()
        taker.intake.turn()
    assert left(redis_client) == {"a": 2, "b": 0, "unacked": 0}


def test_a_trip_within_a_trip_has_a_connection_of_its_own(
    connection: Any, taker: Taker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a signal's handler makes one that ends the worker while it waits for an answer."""
    publish(connection, "a", 2)
    taker.take()
    parse, used = Redis.parse_response, list[Any]()

    def interrupted(client: Redis, connection: Any, *args: Any, **options: Any) -> Any:
        used.append(connection)
        if len(used) == 1:
            taker.got[1].ack()
            taker.intake.note()
        return parse(client, connection, *args, **options)

    monkeypatch.setattr(Redis, "parse_response", interrupted)
    taker.got[0].ack()
    taker.intake.turn()
    monkeypatch.undo()
    assert left(redis_client)["unacked"] == 0
    first, second = used
    assert first is not second


def test_what_was_rejected_is_in_its_queue_again(connection: Any, taker: Taker, redis_client: Redis) -> None:
    publish(connection, "a", 2)
    taker.take()
    taker.got[0].reject()
    taker.got[1].requeue()
    taker.intake.turn()
    assert left(redis_client) == {"a": 1, "b": 0, "unacked": 0}


def take_five(connection: Any, client: Redis) -> None:
    """One is delivered, and four are here."""
    publish(connection, "a", 5)
    connection.drain_events(timeout=5)
    assert left(client) == {"a": 0, "b": 0, "unacked": 5}


def test_a_consumer_that_was_cancelled_gives_back_what_it_had_not_seen(
    connection: Any, taker: Taker, redis_client: Redis
) -> None:
    take_five(connection, redis_client)
    taker.consumer.cancel()
    taker.intake.turn()
    assert left(redis_client) == {"a": 4, "b": 0, "unacked": 1}


def test_a_channel_that_closes_acknowledges_and_gives_back(
    connection: Any, taker: Taker, redis_client: Redis
) -> None:
    take_five(connection, redis_client)
    (message,) = taker.got
    message.ack()
    taker.channel.close()
    assert left(redis_client) == {"a": 4, "b": 0, "unacked": 0}


def test_an_acknowledgement_after_the_channel_closed_counts(
    connection: Any, taker: Taker, redis_client: Redis
) -> None:
    publish(connection, "a", 1)
    taker.take()
    entry, score = redis_client.hgetall("unacked"), 1.0
    taker.channel.close()
    redis_client.delete("a")
    redis_client.hset("unacked", mapping=entry)
    redis_client.zadd("unacked_index", dict.fromkeys(entry, score))
    taker.got[0].ack()
    assert left(redis_client)["unacked"] == 0


def test_a_server_that_is_full_notes_what_came(connection: Any, taker: Taker, redis_client: Redis) -> None:
    publish(connection, "a", 3)
    redis_client.config_set("maxmemory", 1)
    try:
        assert taker.take() == Counter(a=3)
        assert left(redis_client) == {"a": 0, "b": 0, "unacked": 3}
    finally:
        redis_client.config_set("maxmemory", 0)
