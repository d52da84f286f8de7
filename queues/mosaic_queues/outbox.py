"""Publishes ready calls as Celery messages: many calls a message, many messages a round trip.

The ledger is the truth: a call that is ready stays in the outbox until it is claimed, so a message that is lost or
sent twice costs time, never a result.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import structlog
from celery import Celery, chord
from kombu.exceptions import OperationalError
from redis import Redis

from mosaic_queues.broker import is_redis
from mosaic_queues.streams import Letter
from mosaic_queues.transitions import CLOSE, MAILBOX, Group

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

CALL_TASK = "mosaic.call"
"""Name of the task that runs calls: `(run_id, [call ids])`."""
CLOSE_TASK = "mosaic.close"
"""Name of the task that closes a fan-out, the body of its chord. Same arguments."""
CONSUME_TASK = "mosaic.consume"
"""Name of the task that reads streams for a node: drains its mailbox. Same arguments."""
_TASKS = {f".{CLOSE}": CLOSE_TASK, f".{MAILBOX}": CONSUME_TASK}
"""By the end of a call's id; every other call is a `mosaic.call`."""

WEIGHT_HEADER = "mosaic_slots"
"""Header of a message that takes more than one slot of a worker that runs calls together: how many."""

BatchSize = Callable[[str, Sequence[str]], int]
"""How many of these calls, in this queue, one message may carry."""

_STENCIL_ID, _STENCIL_S = "-stencil-", 1234567890.0625
"""What stands in a stencil for the id of a message, and for the time when it is sent."""

_RETRY = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 1.0}


def one_call_a_message(_queue: str, _calls: Sequence[str]) -> int:
    """The batch size without knowledge of the calls."""
    return 1


class Stencil(NamedTuple):
    """The letters of one call, each with an id and a time of its own."""

    call: str
    queue: str
    key: str
    text: str
    clock: Callable[[], float]

    def letter(self) -> Letter:
        """One to be sent now."""
        text = self.text.replace(_STENCIL_ID, uuid.uuid4().hex).replace(repr(_STENCIL_S), repr(self.clock()))
        return Letter(self.call, self.queue, self.key, text)


class Outbox:
    """Sends calls to the queues they wait for.

    Args:
        clock: the server's time in Unix seconds; messages carry it, and the sweeper compares it with the ledger's.
        ledger: a client of the ledger's server, whose transitions may put messages into queues there.
    """

    def __init__(
        self, app: Celery, *, clock: Callable[[], float] = time.time, ledger: Redis | None = None
    ) -> None:
        self._app, self._clock, self._ledger = app, clock, ledger

    def publish(
        self,
        run_id: str,
        groups: Iterable[Group],
        *,
        batch_size: BatchSize = one_call_a_message,
        priority: int = 0,
    ) -> bool:
        """Publishes; False when the broker does not answer (the sweeper publishes later).

        Args:
            priority: 0 is the most urgent, as in Celery on Redis.
        """
        messages = list(_messages(groups, batch_size))

        def send(producer: Any) -> bool:
            sent_at = self._clock()
            for queue, calls in messages:
                self._send(producer, run_id, queue, calls, sent_at, priority)
            return True

        return not messages or bool(self._with_producer(run_id, send, batch=len(messages) > 1))

    def publish_chord(
        self,
        run_id: str,
        header: Iterable[Group],
        close: Group,
        *,
        batch_size: BatchSize = one_call_a_message,
        priority: int = 0,
    ) -> bool:
        """Publishes the calls of a fan-out as the header of a chord; False as `publish`.

        The ledger applies the chord: it makes the body ready with the last call's transition, so header messages
        need not carry the body, and the result backend has nothing to join.
        """
        node = self._chord(run_id, list(_messages(header, batch_size)), close)
        if node is None:
            return True

        def send(producer: Any) -> bool:
            sent_at = self._clock()
            for index, member in enumerate(node.tasks):
                _, calls = member.args
                group = {"group_id": node.id, "group_index": index}
                self._send(producer, run_id, member.options["queue"], calls, sent_at, priority, **group)
            return True

        return bool(self._with_producer(run_id, send))

    def stencil(self, run_id: str, queue: str, call: str, *, priority: int = 0) -> Stencil | None:
        """For letters of a call: its messages as a transition puts them into their queue itself.

        None: the broker is not the ledger's server, or does more than to put a message into a list.
        """

        def cut(producer: Any) -> Stencil | None:
            if not self._is_at_ledger(producer):
                return None
            noted = _Noting(producer.channel)
            sender = self._app.amqp.Producer(noted, auto_declare=False)
            self._send(sender, run_id, queue, [call], _STENCIL_S, priority, task_id=_STENCIL_ID)
            if [name for name, *_ in noted.commands] != ["lpush"]:
                return None
            _, key, text = noted.commands[0]
            text = text.replace(noted.delivery_tag, _STENCIL_ID)
            return Stencil(call, queue, f"{producer.channel.global_keyprefix}{key}", text, self._clock)

        return self._with_producer(run_id, cut, batch=False)

    def _is_at_ledger(self, producer: Any) -> bool:
        """Whether broker and ledger are one database of one server, for the same user."""
        if self._ledger is None or not is_redis(producer.connection):
            return False
        places = [
            [pool.connection_kwargs.get(name) for name in ("path", "host", "port", "db", "username")]
            for pool in (self._ledger.connection_pool, producer.channel.pool)
        ]
        return places[0] == places[1] and any(places[0][:2])

    def _chord(self, run_id: str, messages: Sequence[Group], close: Group) -> Any:
        """The chord of a fan-out; None when nothing of its header is to be published."""
        if not messages:
            return None
        header = [self._signature(CALL_TASK, run_id, queue, calls) for queue, calls in messages]
        node = chord(header, self._signature(CLOSE_TASK, run_id, *close), app=self._app)
        node.id = uuid.uuid4().hex
        return node

    def _signature(self, task: str, run_id: str, queue: str, calls: Sequence[str]) -> Any:
        return self._app.signature(task, (run_id, calls), immutable=True, options={"queue": queue})

    def _with_producer(self, run_id: str, use: Callable[[Any], _T], *, batch: bool = True) -> _T | None:
        """What `use` makes of a producer. None: the broker does not answer, which is logged; the calls stay in the
        outbox."""
        try:
            with self._app.producer_pool.acquire(block=True) as producer:
                keep_client(producer.channel)
                with producer.batch() if batch else nullcontext():
                    return use(producer)
        except (OperationalError, *self._broker_errors()) as error:
            log.warning(
                "outbox.down",
                what="broker does not answer, the sweeper publishes later",
                run=run_id,
                error=str(error),
            )
            return None

    def _broker_errors(self) -> tuple[type[Exception], ...]:
        errors: tuple[type[Exception], ...] = self._app.connection_for_write().connection_errors
        return errors

    def _send(
        self,
        producer: Any,
        run_id: str,
        queue: str,
        calls: Sequence[str],
        sent_at: float,
        priority: int,
        task_id: str | None = None,
        **group: Any,
    ) -> None:
        message = self._app.amqp.as_task_v2(
            task_id or uuid.uuid4().hex,
            _TASKS.get(calls[0][-2:], CALL_TASK),
            (run_id, calls),
            root_id=run_id,
            argsrepr=describe(run_id, calls),
            kwargsrepr="{}",
            ignore_result=True,
            origin="mosaic",
            **group,
        )
        headers = {**message.headers, "sent_at": sent_at}
        if len(calls) > 1:
            headers[WEIGHT_HEADER] = len(calls)
        producer.publish(
            message.body,
            exchange="",
            routing_key=queue,
            serializer="json",
            headers=headers,
            priority=priority,
            retry=True,
            retry_policy=_RETRY,
            **message.properties,
        )


class _Noting:
    """A channel of kombu's Redis transport that notes what it would send, for a producer that sends one message.

    Attributes:
        commands: names, keys without the channel's prefix, and arguments.
        delivery_tag: the message's.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.commands: list[tuple[Any, ...]] = []
        self.delivery_tag = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def basic_publish(self, message: Any, **options: Any) -> None:
        """Has the channel put the message into a batch, which is this."""
        self._channel.basic_publish(message, _publish_batch=self, **options)
        self.delivery_tag = message["properties"]["delivery_tag"]

    def add(self, *command: Any) -> None:
        """Called by the channel."""
        self.commands.append(command)


def keep_client(channel: Any) -> None:
    """Has a channel of kombu's Redis transport use one client for all that it publishes.

    kombu makes one for each message, which takes longer than to send it (redis-py copies a table of some 150
    callbacks); any of them takes its connections from the channel's pool.
    """
    make = getattr(channel, "_create_client", None)
    if make is None or hasattr(make, "client"):
        return

    def kept(asynchronous: bool = False) -> Any:
        return make(asynchronous=True) if asynchronous else client

    client = kept.client = make()  # type: ignore[attr-defined]
    channel._create_client = kept


def describe(run_id: str, calls: Sequence[str]) -> str:
    """The arguments of a call message as Flower shows them."""
    named = ", ".join(calls[:3])
    return f"({run_id}, [{named}{', ...' if len(calls) > 3 else ''}], {len(calls)} calls)"


def _messages(groups: Iterable[Group], batch_size: BatchSize) -> Iterator[Group]:
    """The groups cut into messages."""
    for queue, calls in groups:
        size = batch_size(queue, calls)
        for first in range(0, len(calls), size):
            yield queue, calls[first : first + size]
