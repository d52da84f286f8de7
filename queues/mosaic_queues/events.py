"""Reads a run's event stream: one entry a transition, each a list of events."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import msgspec
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_queues.transitions import process_of

EventKind = Literal[
    "opened",  # the run is there; its detail is the workflow's name
    "ready",  # calls may be claimed, in the queue that the detail names
    "routed",  # the router chose who answers, or says why the call waits
    "hedged",  # a call is asked a second time elsewhere
    "overtaken",  # the second asking answered first
    "claimed",  # a process took calls
    "done",  # calls have their results
    "skipped",  # calls do nothing: their condition is false, or their failure does not matter
    "usage",  # what a question to an engine took: tokens, price
    "expanded",  # a fan-out has so many calls
    "retry",  # a call failed, and is tried again after a pause
    "failed",  # a call failed for good
    "released",  # a process gave calls back before they were over
    "lost",  # calls whose process died, or that were overdue, were taken back
    "idle",  # a node has read what there was of its streams, and waits for more
    "redo",  # nodes run again, in a new epoch
    "cut",  # a mixture does not need these calls any more
    "decided",  # a mixture came to its end
    "closed",  # the run is over; the detail is its status, with the error
]


class Event(NamedTuple):
    """One thing that happened to a run.

    Attributes:
        id: position in the stream, `entry/index`; give it as `after` to read on from here.
        at_ms: server time.
        calls: the calls it happened to, empty for the run itself.
        holder: the process, where one acted.
        detail: queue of `ready`; error of `retry` and `failed`; item count of `expanded`; status of `closed`;
            workflow name of `opened`; model of `usage`; number of the new epoch of `redo`, whose calls are its nodes;
            reason of `routed` and `hedged`, whose call is the shadow; of `decided` what a mixture came to, as JSON.
        target: of `routed` and `hedged`.
        fence: of `routed` and `hedged`, of the claim that comes next.
        pause_ms: of `retry`, and of `routed` where it goes nowhere yet.
        tokens: of `usage`: input and output.
        cached_tokens: of `usage`: so many of the input were spared by a prefix cache.
        cost_usd: of `usage`, None where the price is not known.
        finish: of `usage`: why the engine ended its answer, such as `stop` or `length`; empty: it gave none.
    """

    id: str
    at_ms: int
    kind: EventKind
    calls: tuple[str, ...] = ()
    holder: str = ""
    detail: str = ""
    pause_ms: int = 0
    tokens: tuple[int, int] = (0, 0)
    cached_tokens: int = 0
    cost_usd: float | None = None
    target: str = ""
    fence: int = 0
    finish: str = ""


def read_events(client: Redis, keys: Keys, run_id: str, *, after: str = "0") -> list[Event]:
    """All events after the one with the id `after`."""
    entry, index = _position(after)
    found = cast(
        "list[tuple[bytes, dict[bytes, bytes]]]",
        client.xrange(keys.run(run_id)[3], min=entry if index >= 0 else f"({entry}"),
    )
    return [event for event in events_of(found) if is_after(event, after)]


def follow_events(
    client: Redis, keys: Keys, run_id: str, *, after: str = "0", block_ms: int = 1000
) -> Iterator[Event | None]:
    """Events as they happen, to the run's end; also those of nodes that ran again after an earlier end.

    Yields None after each `block_ms` of silence; the caller may stop.
    """
    entry, index = _position(after)
    if index >= 0:
        for event in read_events(client, keys, run_id, after=after):
            yield event
            if event.kind == "closed" and not _is_reopened(client, keys, run_id):
                return
            entry = event.id.partition("/")[0]
    stream = keys.run(run_id)[3]
    while True:
        answer = cast("list[tuple[bytes, Any]] | None", client.xread({stream: entry}, block=block_ms))
        if not answer:
            yield None
            continue
        for event in events_of(answer[0][1]):
            yield event
            if event.kind == "closed" and not _is_reopened(client, keys, run_id):
                return
            entry = event.id.partition("/")[0]


def _is_reopened(client: Redis, keys: Keys, run_id: str) -> bool:
    """Whether the run goes on after it was closed: some of its nodes run again."""
    return client.hget(keys.run(run_id)[0], "status") == b"running"


def await_end(client: Redis, keys: Keys, run_id: str, *, block_ms: int) -> bool:
    """Blocks until the run is over, or for `block_ms`. True: it is over. Costs the same for any size of run."""
    return bool(client.xread({keys.run(run_id)[5]: "0"}, block=block_ms))


def _position(event_id: str) -> tuple[str, int]:
    entry, _, index = event_id.partition("/")
    return entry, int(index) if index else -1


def is_after(event: Event, after: str) -> bool:
    """Whether an event, not before the entry of `after`, comes behind the one with that id."""
    (entry, index), (own, own_index) = _position(after), _position(event.id)
    return own != entry or 0 <= index < own_index


def events_of(entries: Any) -> Iterator[Event]:
    """Events from entries as the server gives them."""
    for entry_id, fields in entries:
        entry = entry_id.decode()
        at_ms = int(entry.partition("-")[0])
        for index, raw in enumerate(msgspec.msgpack.decode(fields[b"e"])):
            yield _event(f"{entry}/{index}", at_ms, raw)


def _event(event_id: str, at_ms: int, raw: list[Any]) -> Event:
    kind = raw[0]
    event = partial(Event, event_id, at_ms, kind)
    match kind:
        case "opened":
            return event(detail=raw[2])
        case "ready":
            return event(tuple(raw[1]), detail=raw[2])
        case "usage":
            return _usage(event, raw)
        case "routed":
            _, call, target, reason, pause_ms, fence = raw
            return event((call,), detail=reason, pause_ms=int(pause_ms), target=target, fence=int(fence))
        case "hedged":
            _, call, target, reason, holder, fence = raw
            return event((call,), holder=process_of(holder), detail=reason, target=target, fence=int(fence))
        case "expanded":
            return event((raw[1],), holder=process_of(raw[3]), detail=str(int(raw[2])))
        case "retry":
            return event((raw[1],), holder=process_of(raw[4]), detail=raw[2], pause_ms=int(raw[3]))
        case "redo":
            nodes = tuple(str(int(number)) for number in raw[1])
            return event(nodes, holder=process_of(raw[2]), detail=str(int(raw[3])))
        case "failed":
            return event((raw[1],), holder=process_of(raw[3]), detail=raw[2])
        case "decided":
            return event(tuple(raw[1]), holder=process_of(raw[2]), detail=raw[3])
        case "closed":
            return event(detail=f"{raw[1]}: {raw[2]}" if raw[2] else raw[1])
        case _:
            return event(tuple(raw[1]), holder=process_of(raw[2]))


def _usage(event: partial[Event], raw: list[Any]) -> Event:
    _, call, model, read, written, cost, cached, _fence, finish = raw
    return event(
        (call,),
        detail=model,
        tokens=(int(read), int(written)),
        cached_tokens=int(cached),
        cost_usd=None if cost == "" else cost,
        finish=finish,
    )
