"""A Celery result backend whose chords survive dead workers and lost messages: `result_backend="mosaic+redis://host"`.

It is Celery's Redis backend with another join (`mosaic_queues.chords`). Importing it connects Celery's signals, so
that an ordinary app needs nothing but the setting: publishers note the messages of chords; a worker's main process
claims what it receives, renews its liveness key and sweeps. (A worker started with `celery -q` loads no result
backend by itself: its app must then import this module.)

The lease on a complete join lets one process dispatch the body. If that one dies after publishing and before it
recorded so, the body is published again with the same task ids, and an errback is called again, in that case only.

A quorum, `body.set(quorum=3)`, runs the body as soon as three headers succeeded. It gets a list as long as the
header, with None where a header failed or was too late.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import msgspec
import structlog
from celery import Celery, current_app, signals, states
from celery._state import get_current_worker_task
from celery.app.task import Context
from celery.backends.redis import RedisBackend
from celery.canvas import Signature, maybe_signature
from celery.exceptions import ChordError, WorkerLostError
from celery.result import GroupResult
from celery.utils.functional import _regen
from kombu import serialization
from kombu.exceptions import EncodeError, OperationalError
from redis.exceptions import RedisError

from mosaic_queues.chords import Chords, ChordSweeper, Order, Part, Record, Slot, decode_slot, new_token
from mosaic_queues.keys import Keys
from mosaic_queues.liveness import Liveness
from mosaic_queues.settings import settings
from mosaic_queues.sweeper import server_ms

__all__ = ["LedgerBackend"]

log = structlog.get_logger(__name__)

STAMP = "mosaic_chord"
"""Message header `[group id, slot, order]` of a task that a chord waits for."""
BODY_STAMP = "mosaic_body"
"""Message header with the group id of the chord whose body this is."""
NOTES_A_TRIP = 100


class LedgerBackend(RedisBackend):
    """Celery's Redis backend with joins that are idempotent per header, growable, quorum-aware and mended."""

    def _params_from_url(self, url: str, defaults: dict[str, Any]) -> dict[str, Any]:
        scheme, _, rest = url.partition("://")
        known = {"redis+socket": "socket", "unix": "socket", "valkey": "redis", "valkeys": "rediss"}
        return cast(
            "dict[str, Any]", super()._params_from_url(f"{known.get(scheme, scheme)}://{rest}", defaults)
        )

    @property
    def chords(self) -> Chords:
        """The joins of this server."""
        found: Chords | None = self.__dict__.get("_chords")
        if found is None:
            prefix = self._transport_options.get("global_keyprefix") or ""
            found = self.__dict__["_chords"] = Chords(self.client, namespace=prefix + settings().namespace)
        return found

    # -- Celery's interface ------------------------------------------------------------------------------------

    def apply_chord(self, header_result_args: tuple[str, Any], body: Signature, **_options: Any) -> None:
        """Opens the join, before the header is published."""
        group_id, results = header_result_args
        _publishing.open(self, group_id)
        self.chords.open(
            group_id,
            body=self._pack(body),
            shape=_shape(results),
            quorum=int(body.options.get("quorum") or 0),
            expire_s=int(self.chord_expires or 0),
            look_ms=0,
        )

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Seals the join that this thread opened; Celery also sets the size of groups that are no header."""
        records = _publishing.close(group_id)
        if records is not None:
            self._advance(group_id, records=records, size=chord_size)

    def add_to_chord(self, group_id: str, _result: object) -> None:
        """Makes the join larger by one."""
        self._advance(group_id, grow=1)

    def on_chord_part_return(self, request: Context, state: str, result: Any, **_kwargs: Any) -> None:
        """Counts a finished header and dispatches the body after the last one."""
        if not request.group or not request.id:
            return
        payload = self.encode([1, request.id, state, self.encode_result(result, state)])
        if isinstance(payload, str):
            payload = payload.encode()
        part = Part(request.group_index, request.id, state not in states.EXCEPTION_STATES, payload)
        if self._advance(request.group, part=(_slot(request.id, request.group_index), part)) < 0:
            log.info(
                "chord.unknown",
                what="no such chord: a late copy of a header, or its publisher has another result backend",
                chord=request.group,
                task=request.id,
            )

    def mark_as_done(
        self, task_id: str, result: Any, request: Context | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """Stores a result and counts it."""
        super().mark_as_done(task_id, result, request, *args, **kwargs)
        chain = request.chain if request else None
        if chain and maybe_signature(chain[-1], app=self.app).subtask_type in ("chord", "group"):
            self._watch_no_longer(request)

    def mark_as_failure(
        self, task_id: str, exc: BaseException, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> None:
        """Stores an error and counts it; a header that may run again does so when its process was killed."""
        if not (isinstance(exc, WorkerLostError) and self._runs_again(request)):
            super().mark_as_failure(task_id, exc, traceback, request, **kwargs)

    # -- the join ----------------------------------------------------------------------------------------------

    def _advance(self, group_id: str, **step: Any) -> int:
        token = new_token()
        answer = cast(int, self.ensure(lambda: self.chords.advance(group_id, token=token, **step), ()))
        if answer == 1:
            self.chords.look_again(group_id, server_ms(self.client) + _grace_ms())
            self.dispatch(group_id, token)
        return answer

    def note(self, group_id: str, records: Sequence[Record]) -> None:
        """Notes published messages of a join."""
        self._advance(group_id, records=records)

    def dispatch(self, group_id: str, token: str) -> None:
        """Publishes the body of a complete join, or calls its errbacks, while `token` has the lease."""
        join = self.chords.read(group_id)
        if join is None:
            return
        body = maybe_signature(self._unpack(join.body), app=self.app)
        body.options.pop("quorum", None)
        records: list[Record] = []
        try:
            results = self._results(group_id, quorum=join.quorum, size=join.size, shape=join.shape)
            if not self.chords.lease(group_id, seen=token, token=token):
                return
            with _publishing.body_of(group_id) as records:
                self.app.amqp._retry_publish(body.delay, results)
        except ChordError as error:
            self._fail_body(body, error)
        except (OperationalError, *self.connection_errors) as error:
            log.warning(
                "chord.down",
                what="broker does not answer, the body is published later",
                chord=group_id,
                error=str(error),
            )
            return
        except Exception as error:  # noqa: BLE001  as Celery: whatever it is, the body's errback gets it
            records = []
            self._fail_body(body, ChordError(f"Callback error: {error!r}"))
        self.chords.sent(group_id, token=token, records=records)

    def _fail_body(self, body: Signature, error: ChordError) -> None:
        log.warning("chord.failed", what="chord failed", body=body.task, error=str(error))
        self.chord_error_from_stack(body, error)
        outer = body.options.get("chord")
        if outer:
            request = Context(
                {**body.options, "task": body.task, "id": body.id, "group": body.options.get("group_id")}
            )
            self.on_chord_part_return(request, states.FAILURE, error)

    def _results(self, group_id: str, *, quorum: int, size: int, shape: bytes) -> list[Any]:
        """What the body gets.

        Raises:
            ChordError: a header failed, and no quorum makes up for it.
        """
        parts = self.chords.parts(group_id)
        if quorum and sum(part.ok for part in parts) >= quorum:
            parts = [part for part in parts if part.ok]
        else:
            quorum = 0
        values = [self._unpack_chord_result(part.payload, self.decode) for part in parts]
        if shape:
            by_id = {part.task_id: value for part, value in zip(parts, values, strict=True)}
            return cast("list[Any]", _shaped(msgspec.json.decode(shape), by_id))
        if quorum:
            return _placed(parts, values, size)
        return values

    def _pack(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(serialization.dumps(value, serializer=self.app.conf.task_serializer))

    def _accepted(self) -> set[str]:
        """The content types that the app accepts, as it declared them; others are refused."""
        accepted: set[str] = serialization.prepare_accept_content(self.app.conf.accept_content)
        return accepted

    def _unpack(self, packed: bytes) -> Any:
        content_type, encoding, data = msgspec.msgpack.decode(packed)
        return serialization.loads(data, content_type, encoding, accept=self._accepted())

    # -- recovery ----------------------------------------------------------------------------------------------

    def resend(self, message: bytes) -> None:
        """Publishes a noted message again."""
        noted = msgspec.msgpack.decode(message, type=_Message)
        with self.app.producer_pool.acquire(block=True) as producer:
            producer.publish(
                noted.data,
                content_type=noted.content_type,
                content_encoding=noted.content_encoding,
                headers=noted.headers,
                exchange=noted.exchange,
                routing_key=noted.routing_key,
                retry=True,
                **noted.properties,
            )

    def settle(self, group_id: str, slot: str, message: bytes | None) -> bool:
        """Counts the header (strikes off the body) whose success is stored although nobody counted it."""
        if message is None:
            return False
        request = self._request(message)
        meta = self.get_task_meta(request.id, cache=False)
        if meta["status"] != states.SUCCESS:
            return False
        if slot.startswith(_BODY):
            self.chords.body_received(group_id, slot)
        elif request.chord:
            self.on_chord_part_return(request, states.SUCCESS, meta["result"])
        else:
            return False
        return True

    def fail(self, group_id: str, slot: str, message: bytes | None) -> None:
        """Records a header as failed, since its worker died."""
        request = self._request(message) if message else self._bare_request(group_id, slot)
        error = WorkerLostError(f"the worker that ran {request.id} of chord {group_id} died")
        super().mark_as_failure(request.id, error, request=request, store_result=not request.ignore_result)

    def _request(self, message: bytes) -> Context:
        noted = msgspec.msgpack.decode(message, type=_Message)
        args, kwargs, embed = serialization.loads(
            noted.data, noted.content_type, noted.content_encoding, accept=self._accepted()
        )
        return Context(noted.headers, args=args, kwargs=kwargs, delivery_info={}, **embed)

    def _bare_request(self, group_id: str, slot: str) -> Context:
        task_id, _, index = slot.rpartition(":")
        index_or_none = None if index == "None" else int(index)
        return Context(id=task_id, group=group_id, group_index=index_or_none, chord={}, delivery_info={})

    def _runs_again(self, request: Context | None) -> bool:
        """Sends a killed header again, if its task may run twice and has not been lost too often."""
        stamp = _stamp(request)
        if stamp is None:
            return False
        group_id, slot, order = stamp
        raw, message = self.chords.slot(group_id, slot), self.chords.message(group_id, slot)
        if raw is None or message is None:
            return False
        seen = decode_slot(raw)
        if seen.order != order or not seen.acks_late or seen.losses >= settings().max_losses:
            return False
        new = seen._replace(
            status="w", at_ms=server_ms(self.client), holder="", tag="", losses=seen.losses + 1
        )
        if self.chords.change(group_id, slot, raw, new):
            self.resend(message)
        return True

    def _watch_no_longer(self, request: Context) -> None:
        """The task is over, its part comes from what it published: a replacement, a nested chord."""
        stamp = _stamp(request)
        raw = self.chords.slot(stamp[0], stamp[1]) if stamp else None
        if stamp and raw and decode_slot(raw).order == stamp[2]:
            self.chords.change(stamp[0], stamp[1], raw, None)


# -- what travels --------------------------------------------------------------------------------------------------

_BODY = "body:"


class _Message(msgspec.Struct, array_like=True, frozen=True):
    """A task message as it was published."""

    headers: dict[str, Any]
    properties: dict[str, Any]
    content_type: str
    content_encoding: str
    data: bytes
    exchange: str
    routing_key: str


class _Place(NamedTuple):
    """The slot that a message fills."""

    group_id: str
    slot: str
    order: Order


def _slot(task_id: str, index: float | None) -> str:
    return f"{task_id}:{index}"


def _place(headers: Mapping[str, Any], embed: Mapping[str, Any]) -> _Place | None:
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
    return _Place(group_id, _slot(*final), order)


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


def _stamp(request: Context | None) -> _Place | None:
    found = request.get(STAMP) if request else None
    return _Place(found[0], found[1], tuple(found[2])) if found else None


def _shape(results: Any) -> bytes:
    """The nested task ids of a header that is not flat; nothing for a flat one or a generator."""
    if isinstance(results, _regen) or not any(isinstance(result, GroupResult) for result in results):
        return b""
    return msgspec.json.encode([_ids(result) for result in results])


def _ids(result: Any) -> Any:
    return [_ids(child) for child in result.results] if isinstance(result, GroupResult) else result.id


def _shaped(ids: Any, by_id: Mapping[str, Any]) -> Any:
    return [_shaped(child, by_id) for child in ids] if isinstance(ids, list) else by_id.get(ids)


def _placed(parts: Sequence[Part], values: Sequence[Any], size: int) -> list[Any]:
    """The values at their index; those without a place of their own follow."""
    placed: list[Any] = [None] * size
    taken: set[int] = set()
    for part, value in zip(parts, values, strict=True):
        if part.position is not None and part.position < size and part.position not in taken:
            taken.add(int(part.position))
            placed[int(part.position)] = value
        else:
            placed.append(value)
    return placed


# -- the publisher's side ------------------------------------------------------------------------------------------


class _Publishing(threading.local):
    """What this thread is publishing: headers of open joins, noted in bulk until sealed, and the body of one."""

    def __init__(self) -> None:
        self._owner: weakref.ref[LedgerBackend] | None = None
        self._buffers: dict[str, list[Record]] = {}
        self.body_group: str | None = None
        self.body_records: list[Record] = []

    def open(self, backend: LedgerBackend, group_id: str) -> None:
        self._owner = weakref.ref(backend)
        while len(self._buffers) >= NOTES_A_TRIP:
            self._buffers.pop(next(iter(self._buffers)))
        self._buffers[group_id] = []

    def close(self, group_id: str) -> list[Record] | None:
        return self._buffers.pop(group_id, None)

    def backend(self) -> LedgerBackend | None:
        task = get_current_worker_task()
        found = task.app.backend if task else (self._owner and self._owner()) or current_app.backend
        return found if isinstance(found, LedgerBackend) else None

    def note(self, backend: LedgerBackend, group_id: str, record: Record) -> None:
        if group_id not in self._buffers:
            backend.note(group_id, [record])
            return
        self._buffers[group_id].append(record)
        if len(self._buffers[group_id]) >= NOTES_A_TRIP:
            records, self._buffers[group_id] = self._buffers[group_id], []
            backend.note(group_id, records)

    @contextmanager
    def body_of(self, group_id: str) -> Iterator[list[Record]]:
        before = self.body_group, self.body_records
        self.body_group, self.body_records = group_id, []
        try:
            yield self.body_records
        finally:
            self.body_group, self.body_records = before


_publishing = _Publishing()


def _on_publish(
    sender: str,
    body: Any,
    exchange: str | None,
    routing_key: str | None,
    declare: Iterable[Any] | None,
    headers: dict[str, Any],
    properties: dict[str, Any],
    **_signal: Any,
) -> None:
    """Notes the message of a chord, and marks it for the worker that will receive it."""
    if not isinstance(body, tuple):
        return
    place = _place(headers, body[2])
    if place is None and _publishing.body_group is None:
        return
    backend = _publishing.backend()
    if backend is None:
        return
    headers.pop(BODY_STAMP, None)
    if place is not None:
        headers[STAMP] = place
    else:
        headers[BODY_STAMP] = _publishing.body_group
        place = _Place(_publishing.body_group or "", f"{_BODY}{headers['id']}", (0, 0, 0))
    queue = routing_key if not exchange else next((queue.name for queue in declare or ()), routing_key)
    message = _encoded(backend.app, sender, body, (exchange, routing_key), headers, properties)
    if message is None:
        return
    record = Record(place.slot, place.order, queue or "", headers["id"], message)
    if BODY_STAMP in headers:
        _publishing.body_records.append(record)
    else:
        _publishing.note(backend, place.group_id, record)


def _encoded(
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
            _Message(headers, properties, content_type, encoding, data, address[0] or "", address[1] or "")
        )
    except (EncodeError, TypeError, OverflowError) as error:
        log.info("chord.unnoted", what="message cannot be noted", task=name, error=str(error))
        return None


# -- the worker's side ---------------------------------------------------------------------------------------------


class _WorkerSide:
    """The liveness key and the sweeper thread of a worker's main process."""

    def __init__(self, app: Celery, backend: LedgerBackend) -> None:
        self._app, self._keys = app, Keys(settings().namespace)
        self.liveness = Liveness(backend.client, self._keys, expiry_s=settings().liveness_s)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mosaic-chord-sweeper", daemon=True)

    def start(self) -> None:
        self.liveness.start()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.liveness.stop()

    def _run(self) -> None:
        backend = self._app.backend
        sweeper = chord_sweeper(backend)
        lock = backend.client.lock(
            f"{backend.chords.index}:sweeper", timeout=settings().liveness_s, thread_local=False
        )
        while not self._stopped.wait(settings().sweep_s):
            try:
                if (lock.owned() and lock.reacquire()) or lock.acquire(blocking=False):
                    sweeper.sweep()
            except Exception:
                log.exception("chord.sweep", what="sweep failed, the next one tries again")
        try:
            if lock.owned():
                lock.release()
        except RedisError as error:
            log.info("chord.resign", what="lock left to expire", error=str(error))


def chord_sweeper(backend: LedgerBackend) -> ChordSweeper:
    """A sweeper of the backend's chords, with the limits of this process's settings."""
    return ChordSweeper(
        backend.chords,
        mender=backend,
        app=backend.app,
        keys=Keys(settings().namespace),
        grace_s=settings().outbox_grace_s,
        max_losses=settings().max_losses,
    )


def _grace_ms() -> int:
    return int(settings().outbox_grace_s * 1000)


_sides: weakref.WeakKeyDictionary[Celery, _WorkerSide] = weakref.WeakKeyDictionary()


def _side(app: Celery) -> _WorkerSide | None:
    found = _sides.get(app)
    backend = app.backend
    if found is None and isinstance(backend, LedgerBackend):
        found = _WorkerSide(app, backend)
        found.start()
        _sides[app] = found
    return found


def _on_worker_start(sender: Any, **_signal: Any) -> None:
    _side(sender.app)


def _on_worker_shutdown(sender: Any, **_signal: Any) -> None:
    side = _sides.pop(sender.app, None)
    if side is not None:
        side.stop()


def _on_received(request: Any, **_signal: Any) -> None:
    """A worker's main process received a message: it holds it from now on."""
    headers = request.request_dict
    stamp, body_group = headers.get(STAMP), headers.get(BODY_STAMP)
    side = _side(request.app) if stamp or body_group else None
    if side is None:
        return
    backend = request.app.backend
    try:
        if body_group:
            backend.chords.body_received(body_group, f"{_BODY}{request.id}")
        else:
            group_id, slot, order = stamp
            backend.chords.claim(group_id, slot, _claimed(request, order, side.liveness.name))
    except RedisError as error:
        log.warning("chord.claim", what="cannot claim", task=request.id, error=str(error))


def _claimed(request: Any, order: Sequence[int], holder: str) -> Slot:
    return Slot(
        order=cast(Order, tuple(order)),
        status="c",
        queue=request.delivery_info.get("routing_key") or "",
        at_ms=0,
        holder=holder,
        tag=str(request.message.delivery_tag or ""),
        losses=0,
        acks_late=bool(request.task.acks_late),
        task_id=request.id,
    )


def _on_postrun(task: Any, state: str | None, **_signal: Any) -> None:
    """A task that ended without a result (replaced, ignored) is watched no longer; what it published is."""
    backend = task.app.backend
    if state == states.IGNORED and isinstance(backend, LedgerBackend):
        backend._watch_no_longer(task.request)


signals.before_task_publish.connect(_on_publish, weak=False)
signals.worker_ready.connect(_on_worker_start, weak=False)
signals.worker_ready.connect(_on_worker_start, weak=False)
signals.worker_shutdown.connect(_on_worker_shutdown, weak=False)
signals.task_received.connect(_on_received, weak=False)
signals.task_postrun.connect(_on_postrun, weak=False)
