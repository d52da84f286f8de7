"""Answers a request by a run: follows it, tells its answer at once or as it is written, and ends it where nobody waits.

Who leaves without an idempotency key cannot come back for the answer, so the run is cancelled. With a key it goes on,
and the client's next try finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Any, NamedTuple

import structlog
from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from mosaic_queues.events import Event
from mosaic_queues.transitions import RunRecord
from mosaic_tasks.client import Run
from mosaic_tasks.gateway import problems
from mosaic_tasks.gateway.completions.failures import (
    ASK_ONCE,
    Refused,
    cause_of,
    of_cancelled_run,
    of_failed_run,
    of_response,
)
from mosaic_tasks.gateway.completions.models import Model, text_of
from mosaic_tasks.gateway.completions.replies import (
    Envelope,
    Finish,
    TokenCounts,
    event,
    finish_of,
    usage_of,
)
from mosaic_tasks.gateway.completions.telling import AnswerChanged, Telling
from mosaic_tasks.gateway.readers import EVENT_STREAM, HERE, PRINCIPAL, Readers, gone, until_either
from mosaic_tasks.inspection.parts import StreamEvent

log = structlog.get_logger(__name__)

AGAIN_S = 5
"""Who finds no worker, or a gateway that stops, may ask again after so long."""
_LATER = {"Retry-After": str(AGAIN_S)}


class Ending(NamedTuple):
    """How an answer ended."""

    finish: Finish
    usage: TokenCounts


class Patience(NamedTuple):
    """How long is waited.

    Attributes:
        silence_s: where nothing was said for so long, a comment is sent, and it is looked whether anybody serves.
        send_s: who takes nothing for so long has fallen asleep.
    """

    silence_s: float
    send_s: float


class _Asleep(Exception):
    """The client takes nothing any more."""


class _Outcome(NamedTuple):
    """What became of a run that is over; `output` is that of a run that is done."""

    record: RunRecord
    output: Any
    number: int


async def answer(run: Run, model: Model, *, streams: bool) -> AsyncGenerator[str | Ending, None]:
    """The pieces of an answer as they come, then its ending; without `streams` the text is one piece.

    Raises:
        Refused: the run failed or was cancelled.
        AnswerChanged: what was told does not hold any more.
    """
    telling = Telling()
    if streams and model.streams:
        async with run.astream() as said:
            while events := await said.several():
                if new := _heard(events, telling):
                    yield new
    used = await _used(run)
    while (
        outcome := await asyncio.to_thread(_outcome, run)
    ).record.status == "running":  # again, since it ended
        used = await _used(run)
    if outcome.record.status == "failed" and cause_of(outcome.record.error) == "ContentRefused":
        yield Ending("content_filter", usage_of(used))
        return
    _check(outcome.record)
    if rest := telling.end(text_of(outcome.output)):
        yield rest
    yield Ending(finish_of(used, outcome.number), usage_of(used))


def _heard(events: Iterable[StreamEvent], telling: Telling) -> str:
    """What is new of a text. What is taken back needs no telling: what follows says whether it still holds."""
    return "".join(telling.hear(each.offset, each.value) for each in events if each.kind == "text")


async def _used(run: Run) -> list[Event]:
    """What the calls of a run used of engines, once it is over."""
    async with run.aevents() as events:
        return [event async for event in events if event.kind == "usage"]


def _outcome(run: Run) -> _Outcome:
    record = run.record()
    return _Outcome(record, run.output() if record.status == "done" else None, run.plan().output)


def _check(record: RunRecord) -> None:
    if record.status == "failed":
        raise of_failed_run(record.error)
    if record.status == "cancelled":
        raise of_cancelled_run(record.error)


class Answering(Response):
    """The answer to a request, as a response.

    Args:
        readers: of the process; told to end when the gateway stops.
        is_kept: the run goes on when its client leaves.
    """

    def __init__(
        self,
        run: Run,
        model: Model,
        envelope: Envelope,
        readers: Readers,
        *,
        streams: bool,
        is_kept: bool,
        patience: Patience,
    ) -> None:
        self._run, self._envelope, self._readers = run, envelope, readers
        self._streams, self._is_kept, self._patience = streams, is_kept, patience
        self._pieces = answer(run, model, streams=streams)
        self._is_stopped, self._turn = asyncio.Event(), asyncio.Lock()
        self._send: Send
        self._has_begun = self._is_whole = False
        self._said = 0
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        self._send = send
        self._readers.add(self, scope.get("state", {}).get(PRINCIPAL))
        try:
            parts = (self._tell(), self._watch(), gone(receive))
            await until_either(*map(asyncio.create_task, parts))
        except _Asleep:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            with suppress(_Asleep):
                await self._fail(_refused(error))
        finally:
            self._readers.drop(self)
            if not (self._is_whole or self._is_kept):
                await asyncio.shield(asyncio.to_thread(_cancel, self._run))

    def stop(self) -> None:
        """Ends it, as the gateway does."""
        self._is_stopped.set()

    # -- an answer -----------------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        """Tells the answer to its end."""
        text: list[str] = []
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                self._said += 1
                if isinstance(piece, Ending):
                    await self._end("".join(text), piece)
                elif self._streams:
                    await self._more(self._envelope.more(piece))
                else:
                    text.append(piece)

    async def _end(self, text: str, ending: Ending) -> None:
        if self._streams:
            await self._more(self._envelope.ending(*ending), is_last=True)
        else:
            await self._whole(HTTPStatus.OK, self._envelope.whole(text, *ending))
        self._is_whole = True

    async def _fail(self, refused: Refused) -> None:
        if self._has_begun:
            await self._more(event(refused.body()), is_last=True)
        else:
            response = refused.response()
            await self._whole(refused.status, bytes(response.body), refused.headers)

    async def _watch(self) -> None:
        """Looks after an answer of which nothing is heard.

        Raises:
            Refused: nobody serves the run, or the gateway stops.
        """
        heard, unserved = 0, list[str]()
        while not await self._stops():
            if self._said == heard:
                before, unserved = unserved, await asyncio.to_thread(self._run.unserved_queues)
                if before and unserved:
                    raise _no_worker(self._run, unserved)
                if self._streams:
                    await self._more(HERE)
            heard = self._said
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the gateway stops; ask again", headers=_LATER)

    async def _stops(self) -> bool:
        """Waits for as long as silence may last; True: the gateway stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience.silence_s):
                return await self._is_stopped.wait()
        return False

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    async def _more(self, data: bytes, *, is_last: bool = False) -> None:
        async with self._turn:
            if not self._has_begun:
                self._has_begun = True
                await self._start(
                    HTTPStatus.OK, f"{EVENT_STREAM}; charset=utf-8", {"X-Accel-Buffering": "no"}
                )
                data = self._envelope.opening() + data
            await self._take({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def _whole(self, status: HTTPStatus, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        await self._start(status, "application/json", {"Content-Length": str(len(data)), **(headers or {})})
        await self._take({"type": "http.response.body", "body": data})

    async def _start(self, status: HTTPStatus, kind: str, headers: Mapping[str, str]) -> None:
        ours = {"Content-Type": kind, "Cache-Control": "no-store", "X-Mosaic-Run": self._run.id, **headers}
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in ours.items()]
        await self._take({"type": "http.response.start", "status": status.value, "headers": pairs})

    async def _take(self, message: Message) -> None:
        """Has the client take a message.

        Raises:
            _Asleep: it does not.
        """
        try:
            async with asyncio.timeout(self._patience.send_s):
                await self._send(message)
        except TimeoutError:
            raise _Asleep from None


def _refused(error: Exception) -> Refused:
    """The answer to whoever met an error while an answer was made."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, AnswerChanged):
        told = "the answer was corrected after a part of it had been told; ask again for the corrected one"
        return Refused(HTTPStatus.CONFLICT, told, code="answer_changed")
    return of_response(problems.told(error))


def _no_worker(run: Run, unserved: list[str]) -> Refused:
    log.warning("completions.unserved", what="nobody serves a queue of a run", run=run.id, queues=unserved)
    return Refused(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"no worker serves the queues that run {run.id} waits for; whoever operates this gateway is told which by: "
        f"mosaic explain {run.id}",
        headers={**_LATER, **ASK_ONCE},
    )


def _cancel(run: Run) -> None:
    if run.cancel("its client left before the answer was there"):
        log.info("completions.left", what="a client left, its run is cancelled", run=run.id)
