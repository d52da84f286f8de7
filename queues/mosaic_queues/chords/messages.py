"""The task messages of chords: which slot of a join one fills, and how it is kept to be sent again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import structlog
from celery import Celery
from celery.app.task import Context
from kombu import serialization
from kombu.exceptions import EncodeError

from mosaic_queues.chords.joins import Order

log = structlog.get_logger(__name__)

STAMP = "mosaic_chord"
"""Message header `[group id, slot, order]` of a task that a chord waits for."""
BODY_STAMP = "mosaic_body"
"""Message header with the group id of the chord whose body this is."""
_BODY = "body:"


class Message(msgspec.Struct, array_like=True, frozen=True):
    """A task message as it was published."""

    headers: dict[str, Any]
    properties: dict[str, Any]
    content_type: str
    content_encoding: str
    data: bytes
    exchange: str
    routing_key: str


class Place(NamedTuple):
    """The slot that a message fills."""

    group_id: str
    slot: str
    order: Order


def slot_of(task_id: str, index: float | None) -> str:
    """The slot of a header."""
    return f"{task_id}:{index}"


def slot_of_body(task_id: str) -> str:
    """The slot of a body's message."""
    return f"{_BODY}{task_id}"


def is_body(slot: str) -> bool:
    """Whether a slot is a body's."""
    return slot.startswith(_BODY)


def place_of(headers: Mapping[str, Any], embed: Mapping[str, Any]) -> Place | None:
    """Where a message stands in a chord: a header itself, or a step of a chain that ends in a header."""
    chain = embed.get("chain") or ()
    if embed.get("chord"):
        chord, group_id, final = embed["chord"], headers["group"], (headers["id"], headers.get("group_index"))
    elif chain:
        options = _last_options(chain[0])
        chord, group_id = options.get("chord"), options.get("group_id")
        final = options.get("task_id"), options.get("group_index")
    else:
        return None
    if not chord or not group_id or not final[0]:
        return None
    order = headers.get("replaced_task_nesting") or 0, -len(chain), headers.get("retries") or 0
    return Place(group_id, slot_of(*final), order)


def _last_options(step: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of the task whose end is the end of a step."""
    kind = step.get("subtask_type")
    if kind == "chord" and step["kwargs"].get("body"):
        return _last_options(step["kwargs"]["body"])
    if kind == "chain" and step["kwargs"].get("tasks"):
        return _last_options(step["kwargs"]["tasks"][-1])
    if kind == "group" and isinstance(tasks := step["kwargs"].get("tasks"), Sequence) and tasks:
        return _last_options(tasks[0])
    return cast("Mapping[str, Any]", step.get("options") or {})


def stamp_of(request: Context | None) -> Place | None:
    """The place that a received message was stamped with."""
    found = request.get(STAMP) if request else None
    return Place(found[0], found[1], tuple(found[2])) if found else None


def encoded(
    app: Celery,
    name: str,
    body: Any,
    address: tuple[str | None, str | None],
    headers: dict[str, Any],
    properties: dict[str, Any],
) -> bytes | None:
    """The message to be sent again; None when that cannot be, so that its loss will count as a failure."""
    task = app.tasks.get(name)
    serializer = (task and task.serializer) or app.conf.task_serializer
    try:
        content_type, encoding, data = serialization.dumps(body, serializer=serializer)
        data = data.encode(encoding) if isinstance(data, str) else data
        return msgspec.msgpack.encode(
            Message(headers, properties, content_type, encoding, data, address[0] or "", address[1] or "")
        )
    except (EncodeError, TypeError, OverflowError) as error:
        log.info("chord.unnoted", what="message cannot be noted", task=name, error=str(error))
        return None


def decoded(message: bytes) -> Message:
    """A message that `encoded` kept."""
    return msgspec.msgpack.decode(message, type=Message)


def request_of(message: bytes, *, accept: set[str]) -> Context:
    """The request that a worker would make of a message.

    Args:
        accept: the content types that may be read.
    """
    noted = decoded(message)
    args, kwargs, embed = serialization.loads(
        noted.data, noted.content_type, noted.content_encoding, accept=accept
    )
    return Context(noted.headers, args=args, kwargs=kwargs, delivery_info={}, **embed)


def request_of_slot(group_id: str, slot: str) -> Context:
    """What is known of a header's request without its message."""
    task_id, _, index = slot.rpartition(":")
    index_or_none = None if index == "None" else int(index)
    return Context(id=task_id, group=group_id, group_index=index_or_none, chord={}, delivery_info={})
