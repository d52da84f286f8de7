"""A worker that has nothing to do ends at once, though kombu waits for the answer of its blocking pop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Connection
from redis import Redis
from redis.exceptions import NoPermissionError

from mosaic_queues.blocking_pop import end_blocking_pop
from tests.services import READY_S, ServerForTests, Workers

pytestmark = pytest.mark.integration


@pytest.fixture
def channel(broker_url: str) -> Iterator[Any]:
    """Of a consumer that waits for messages of a queue."""
    with Connection(broker_url) as connection, connection.channel() as channel:
        channel.basic_consume("waited_for", no_ack=True, callback=lambda message: None, consumer_tag="waits")
        channel.client.connection = channel.client.connection_pool.get_connection()
        channel._brpop_start(timeout=20 * READY_S)
        yield channel
        channel._in_poll = None


def test_the_server_answers_at_once_and_takes_no_message_for_it(channel: Any, redis_client: Redis) -> None:
    end_blocking_pop(channel)
    assert channel.client.connection.can_read(READY_S)
    assert channel.client.parse_response(channel.client.connection, "BRPOP") is None
    redis_client.lpush("waited_for", "stays")
    assert redis_client.lpop("waited_for") == b"stays"


def test_a_message_that_was_popped_before_comes(channel: Any, redis_client: Redis) -> None:
    redis_client.lpush("waited_for", "comes")
    end_blocking_pop(channel)
    assert channel.client.parse_response(channel.client.connection, "BRPOP") == (b"waited_for", b"comes")


def test_what_forbids_it_is_waited_for() -> None:
    def refused(number: int) -> None:
        raise NoPermissionError(number)

    client = SimpleNamespace(client_unblock=refused)
    connection = SimpleNamespace(handshake_metadata={"id": 7})
    end_blocking_pop(
        SimpleNamespace(_in_poll=connection, conn_or_acquire=lambda: contextlib.nullcontext(client))
    )


@pytest.mark.parametrize("connection", [None, SimpleNamespace(handshake_metadata=None)])
def test_a_connection_without_a_number_is_waited_for(connection: Any) -> None:
    end_blocking_pop(SimpleNamespace(_in_poll=connection))


def test_another_broker_has_none() -> None:
    with Celery(broker="memory://").connection_for_read() as connection:
        end_blocking_pop(connection.default_channel)


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_worker_asks_for_it_when_it_ends(pool: Any, workers: Workers, redis_server: ServerForTests) -> None:
    client = redis_server.client
    worker = workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool=pool).wait_ready()
    while not client.info("clients")["blocked_clients"]:
        pass
    client.config_resetstat()
    worker.stop()
    assert client.info("commandstats")["cmdstat_client|unblock"]["calls"] == 1
