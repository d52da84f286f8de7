"""A window in which requests gather, for engines that compute batches and cannot let a request into a running one.

When a batch goes is decided by `gathers_s`, a pure function: alone it goes at once, under load it waits for others, as
long as the batch before it took at most. The order of requests is kept. A request that is cancelled leaves its batch,
and the last one ends it; a batch that fails takes its own members with it, and no others.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from mosaic_queues.errors import CallTimeout, EngineError
from mosaic_tasks.engines.protocol import Completion, EngineRequest, Events, Finished, TextDelta


class BatchEngine(Protocol):
    """An engine that answers many requests at once."""

    @property
    def name(self) -> str:
        """The scheme that chooses it."""

    async def complete_many(self, requests: Sequence[EngineRequest]) -> Sequence[Completion]:
        """The answers, in the order of the requests.

        Raises:
            EngineError: or one of its kinds, when there are none.
        """

    async def aclose(self) -> None:
        """Frees what it holds."""


class GatherWindow(msgspec.Struct, frozen=True):
    """How many requests a batch holds at most, and how long it gathers them at most."""

    max_size: int
    max_wait_s: float


class Pace(msgspec.Struct, frozen=True):
    """How the last batch did.

    Attributes:
        size: how many requests it had.
        took_s: how long it ran.
        ended_at: when, on the loop's clock.
    """

    size: int = 0
    took_s: float = 0.0
    ended_at: float = -math.inf


def gathers_s(
    window: GatherWindow, pace: Pace, *, waiting: int, oldest_at: float, busy: bool, now: float
) -> float:
    """Seconds for which requests are still to be gathered; 0: the batch goes now.

    It goes when it is full. While another one runs, or has just run and had more requests, it gathers as long as that
    one took, but no longer than the window allows.

    Args:
        waiting: requests that have gathered.
        oldest_at: when the first of them came.
        busy: whether a batch runs.
        now: on the loop's clock.
    """
    lately = now - pace.ended_at <= window.max_wait_s
    expected = pace.size if lately else 1
    if waiting >= window.max_size or not (busy or waiting < expected):
        return 0.0
    return max(0.0, oldest_at + min(pace.took_s, window.max_wait_s) - now)


class _Waiting(msgspec.Struct, eq=False):
    request: EngineRequest
    came_at: float
    answer: asyncio.Future[Completion]
    batch: _Batch | None = None


class _Batch(msgspec.Struct, eq=False):
    members: list[_Waiting]
    task: asyncio.Task[None] | None = None

    def end_if_left(self) -> None:
        """Stops the work once nobody waits for it any more."""
        if self.task is not None and all(member.answer.done() for member in self.members):
            self.task.cancel()


class BatchingEngine:
    """Makes a streaming engine of one that computes batches.

    Args:
        engine: computes the batches.
        max_size: most requests in one.
        max_wait_ms: how long a request waits for others at most.
        max_batches: how many run at once. While so many run, requests gather however long that takes.
    """

    def __init__(
        self, engine: BatchEngine, *, max_size: int, max_wait_ms: float, max_batches: int = 1
    ) -> None:
        self._engine = engine
        self._window = GatherWindow(max_size, max_wait_ms / 1000)
        self._max_batches = max_batches
        self._pace = Pace()
        self._waiting: deque[_Waiting] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        """That of the engine inside."""
        return self._engine.name

    async def stream(self, request: EngineRequest) -> Events:
        """The answer, in one piece: see `Engine.stream`."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.time(), loop.create_future())
        self._waiting.append(waiting)
        self._look_in(0.0)  # after what else this turn of the loop brings
        try:
            async with asyncio.timeout(request.timeout_s):
                answer = await waiting.answer
        except TimeoutError:
            raise CallTimeout(
                f"engine {self.name!r} did not answer within {request.timeout_s or 0:g} s"
            ) from None
        finally:
            self._leave(waiting)
        if answer.text:
            yield TextDelta(answer.text)
        yield Finished(answer.finish_reason, answer.usage, answer.logprobs)

    async def aclose(self) -> None:
        """Ends what runs and what waits, and closes the engine inside."""
        if self._timer is not None:
            self._timer.cancel()
        _fail(self._waiting, self._closed())
        self._waiting.clear()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self._engine.aclose()

    def _leave(self, waiting: _Waiting) -> None:
        if waiting.batch is not None:
            waiting.batch.end_if_left()
        elif waiting in self._waiting:
            self._waiting.remove(waiting)

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Starts the batches that go now, and comes back when the next one is due."""
        while self._waiting and len(self._running) < self._max_batches:
            now = asyncio.get_running_loop().time()
            wait_s = gathers_s(
                self._window,
                self._pace,
                waiting=len(self._waiting),
                oldest_at=self._waiting[0].came_at,
                busy=bool(self._running),
                now=now,
            )
            if wait_s > 0:
                self._look_in(wait_s)
                return
            self._start()

    def _start(self) -> None:
        members = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._window.max_size))]
        batch = _Batch(members)
        for member in members:
            member.batch = batch
        batch.task = asyncio.get_running_loop().create_task(self._run(members))
        self._running.add(batch.task)
        batch.task.add_done_callback(partial(self._ended, members))

    def _ended(self, members: list[_Waiting], task: asyncio.Task[None]) -> None:
        _fail(members, self._closed())  # those of a batch that was cancelled, be it before its first step
        self._running.discard(task)
        self._look()

    async def _run(self, members: list[_Waiting]) -> None:
        began = asyncio.get_running_loop().time()
        try:
            answers = await self._engine.complete_many([member.request for member in members])
        except Exception as error:  # noqa: BLE001 - whatever it is, the members hear of it
            _fail(members, self._meaning(error), cause=error)
        else:
            self._hand_out(members, answers)
        ended = asyncio.get_running_loop().time()
        self._pace = Pace(len(members), ended - began, ended)

    def _hand_out(self, members: list[_Waiting], answers: Sequence[Completion]) -> None:
        if len(answers) != len(members):
            told = f"engine {self.name!r} gave {len(answers)} answers to {len(members)} requests"
            _fail(members, EngineError(told))
            return
        for member, answer in zip(members, answers, strict=True):
            if not member.answer.done():
                member.answer.set_result(answer)

    def _meaning(self, error: Exception) -> EngineError:
        if isinstance(error, EngineError):
            return error
        return EngineError(f"engine {self.name!r} failed: {type(error).__name__}: {error}")

    def _closed(self) -> EngineError:
        return EngineError(f"engine {self.name!r} was closed")


def _fail(members: Iterable[_Waiting], error: EngineError, *, cause: Exception | None = None) -> None:
    """Ends requests, each by an error of its own: who catches one may write to it."""
    for member in members:
        if not member.answer.done():
            told = type(error)(str(error))
            told.__cause__ = cause
            member.answer.set_exception(told)
