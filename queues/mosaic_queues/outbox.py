"""Publishes ready calls as Celery messages: many calls a message, many messages a round trip.

The ledger is the truth: a call that is ready stays in the outbox until it is claimed, so a message that is lost or
sent twice costs time, never a result.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import structlog
from celery import Celery, chord
from kombu.exceptions import OperationalError
from redis import Redis

from mosaic_queues.broker import is_redis
from mosaic_queues.stencils import Parcel, Stencil
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
_EXAMPLES = {CALL_TASK: "0", **{task: f"0{end}" for end, task in _TASKS.items()}}
"""A call of each task."""

BatchSize = Callable[[str, Sequence[str]], int]
"""How many of these calls, in this queue, one message may carry."""

_STENCILS_KEPT = 1024
"""Workers come and go, and have queues of their own."""
_LOOK_S = 5.0
"""So long nobody looks again whether a broker that did not answer is the ledger's server."""
_PUSHED = 500
"""Messages that one command puts into a list."""
_RETRY = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 1.0}


def one_call_a_message(_queue: str, _calls: Sequence[str]) -> int:
    """The batch size without knowledge of the calls."""
    return 1


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
        self._stencils: dict[tuple[str, str, int], Stencil | None] = {}
        self._reaches_ledger: bool | None = None
        self._looks_at = -math.inf

    def publish(
        self,
        run_id: str,
        groups: Iterable[Group],
        *,
        batch_size: BatchSize = one_call_a_message,
        priority: int = 0,
        plan: str = "",
    ) -> bool:
        """Publishes; False when the broker does not answer (the sweeper publishes later).

        Args:
            priority: 0 is the most urgent, as in Celery on Redis.
            plan: content hash of the run's plan, for those who have it at hand.
        """
        parcels = [(queue, Parcel(run_id, calls, plan)) for queue, calls in _messages(groups, batch_size)]
        return not parcels or self._publish(run_id, parcels, priority)

    def publish_chord(
        self,
        run_id: str,
        header: Iterable[Group],
        close: Group,
        *,
        batch_size: BatchSize = one_call_a_message,
        priority: int = 0,
        plan: str = "",
    ) -> bool:
        """Publishes the calls of a fan-out as the header of a chord; False as `publish`.

        The ledger applies the chord: it makes the body ready with the last call's transition, so header messages
        need not carry the body, and the result backend has nothing to join.
        """
        node = self._chord(run_id, list(_messages(header, batch_size)), close)
        if node is None:
            return True
        parcels = [
            (member.options["queue"], Parcel(run_id, member.args[1], plan, _membership(node, index)))
            for index, member in enumerate(node.tasks)
        ]
        return self._publish(run_id, parcels, priority)

    def letters(
        self,
        run_id: str,
        groups: Iterable[Group],
        *,
        batch_size: BatchSize = one_call_a_message,
        priority: int = 0,
        plan: str = "",
    ) -> list[Letter] | None:
        """The messages of calls, for a transition that puts them into their queues itself.

        None: the broker is not the ledger's server, or does more than to put a message into a list.
        """
        sent_at, found = self._clock(), list[Letter]()
        for queue, calls in _messages(groups, batch_size):
            stencil = self._stencil_for_letters(run_id, queue, calls, priority)
            if stencil is None:
                return None
            text = stencil.text(Parcel(run_id, calls, plan), sent_at)
            found.append(Letter(calls[0], queue, f"{stencil.prefix}{stencil.key}", text))
        return found

    # -- sending -----------------------------------------------------------------------------------------------

    def _publish(self, run_id: str, parcels: Sequence[tuple[str, Parcel]], priority: int) -> bool:
        def send(producer: Any) -> bool:
            sent_at, texts, others = self._clock(), dict[str, list[str]](), list[tuple[str, Parcel]]()
            has_lists = is_redis(producer.connection)  # where a broker fails over, this may change
            for queue, parcel in parcels:
                stencil = (
                    self._stencil(producer, task_of(parcel.calls), queue, priority) if has_lists else None
                )
                if stencil is None:
                    others.append((queue, parcel))
                else:
                    texts.setdefault(stencil.key, []).append(stencil.text(parcel, sent_at))
            if texts:
                producer.connection.ensure(producer, _push, **_RETRY)(producer, texts)
            with producer.batch() if len(others) > 1 else nullcontext():
                for queue, parcel in others:
                    self._send(producer, queue, parcel, sent_at, priority)
            return True

        return bool(self._with_producer(run_id, send))

    def _stencil(self, producer: Any, task: str, queue: str, priority: int) -> Stencil | None:
        """None: each message has to be made by Celery and kombu."""
        key = task, queue, priority
        if key in self._stencils:
            return self._stencils.get(key)
        if len(self._stencils) >= _STENCILS_KEPT:
            self._stencils.clear()
        stencil = self._stencils[key] = self._cut(producer, _EXAMPLES[task], queue, priority)
        return stencil

    def _cut(self, producer: Any, example: str, queue: str, priority: int) -> Stencil | None:
        def send(channel: Any) -> None:
            sender = self._app.amqp.Producer(channel, auto_declare=False)
            self._send(sender, queue, Parcel("", [example]), 0.0, priority)

        return Stencil.cut(producer.channel, send)

    def _stencil_for_letters(
        self, run_id: str, queue: str, calls: Sequence[str], priority: int
    ) -> Stencil | None:
        """Asks for a producer only where it has not yet seen what one would send."""
        key = task_of(calls), queue, priority
        if self._reaches_ledger is None and time.monotonic() >= self._looks_at:
            self._reaches_ledger = self._with_producer(run_id, self._is_at_ledger)
            self._looks_at = time.monotonic() + _LOOK_S  # who is not there is not waited for each time
        if not self._reaches_ledger:
            return None
        if key in self._stencils:
            return self._stencils.get(key)
        return self._with_producer(run_id, lambda producer: self._stencil(producer, *key))

    def _is_at_ledger(self, producer: Any) -> bool:
        """Whether broker and ledger are one database of one server, for the same user."""
        if (
            self._ledger is None
            or not is_redis(producer.connection)
            or len(producer.connection.alt or ()) > 1
        ):
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

    def _with_producer(self, run_id: str, use: Callable[[Any], _T]) -> _T | None:
        """What `use` makes of a producer. None: the broker does not answer, which is logged; the calls stay in the
        outbox."""
        try:
            with self._app.producer_pool.acquire(block=True) as producer:
                keep_client(producer.channel)
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

    def _send(self, producer: Any, queue: str, parcel: Parcel, sent_at: float, priority: int) -> None:
        message = self._app.amqp.as_task_v2(
            uuid.uuid4().hex,
            task_of(parcel.calls),
            (parcel.run_id, parcel.calls),
            kwargsrepr="{}",
            ignore_result=True,
            origin="mosaic",
        )
        producer.publish(
            message.body,
            exchange="",
            routing_key=queue,
            serializer="json",
            headers={**message.headers, **parcel.headers(sent_at)},
            priority=priority,
            retry=True,
            retry_policy=_RETRY,
            **message.properties,
        )


def task_of(calls: Sequence[str]) -> str:
    """The task whose messages carry these calls."""
    return _TASKS.get(calls[0][-2:], CALL_TASK)


def _membership(node: Any, index: int) -> dict[str, Any]:
    """The headers of a member of a chord."""
    return {"group": node.id, "group_index": index}


def _push(producer: Any, texts: Mapping[str, Sequence[str]]) -> None:
    """Puts messages into the broker's lists, in one trip."""
    with producer.channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
        for key, all_ in texts.items():
            for first in range(0, len(all_), _PUSHED):
                pipe.lpush(key, *all_[first : first + _PUSHED])
        pipe.execute()


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


def _messages(groups: Iterable[Group], batch_size: BatchSize) -> Iterator[Group]:
    """The groups cut into messages."""
    for queue, calls in groups:
        size = batch_size(queue, calls)
        for first in range(0, len(calls), size):
            yield queue, calls[first : first + size]
